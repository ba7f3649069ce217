"""`clairvoyant doctor`: checks the set-up and prints the command that fixes each problem."""

import asyncio
import json
import os
import sys
import time
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path

import click

from clairvoyant_cli.commands.options import config_option, json_option, token_file_option, url_option
from clairvoyant_cli.config import (
    BackendConfig,
    ServeConfig,
    default_config_file,
    load_serve_config,
    load_top_config,
)
from clairvoyant_cli.doctor.finding import Finding, Level, broken, exit_code_of, ok
from clairvoyant_cli.errors import ClairvoyantError
from clairvoyant_cli.protocols.printable import plural

MARKS = {
    Level.OK: ("✓", "green"),
    Level.NOTE: ("·", "dim"),
    Level.WARNING: ("!", "yellow"),
    Level.BROKEN: ("✗", "red"),
}


@click.command()
@click.option("--backend", metavar="NAME|URL", help="As for serve. Unset: the configured one, else search.")
@url_option
@token_file_option
@config_option
@json_option("Print the findings as JSON.")
def command(
    backend: str | None, url: str | None, token_file: Path | None, config_file: Path | None, as_json: bool
) -> None:
    """Check the set-up and print the command that fixes each problem.

    The exit code is 0 if all is well, 4 on warnings, 1 if something is broken.
    """
    findings = asyncio.run(_examine(backend, url, token_file, config_file))
    if as_json:
        plain = [asdict(finding) | {"level": finding.level.name.lower()} for finding in findings]
        click.echo(json.dumps({"findings": plain, "exit_code": exit_code_of(findings)}, indent=2))
    else:
        _print(findings)
    sys.exit(exit_code_of(findings))


async def _examine(
    backend: str | None, url: str | None, token_file: Path | None, config_file: Path | None
) -> list[Finding]:
    from clairvoyant_cli.doctor import installation

    findings = [installation.check_version()]
    try:
        config = load_serve_config({"backend": backend} if backend else {}, file=config_file)
    except ClairvoyantError as error:
        findings.append(broken("configuration", str(error), "clairvoyant serve --help"))
        config = ServeConfig()
        with suppress(ClairvoyantError):  # the backend may be what is wrong
            config = ServeConfig(backend=backend)
    else:
        try:
            load_top_config(config_file)
        except ClairvoyantError as error:
            findings.append(broken("configuration", str(error), "clairvoyant top --help"))
    findings += installation.check_names(config_file or default_config_file())
    findings += await _connections(config, url, token_file)
    findings += _predictor(config)
    findings += installation.check_files(config)
    return findings


async def _connections(config: ServeConfig, url: str | None, token_file: Path | None) -> list[Finding]:
    from clairvoyant_cli.doctor import backend, proxy
    from clairvoyant_cli.state.client import admin_token, daemon_url, running_daemons

    at, token, findings = daemon_url(url), None, []
    try:
        token = admin_token(token_file)
    except ClairvoyantError as error:
        findings.append(broken("files", str(error), "clairvoyant doctor --token-file FILE"))
    daemon, snapshot = await proxy.look_at_daemon(at, token)
    named = config.backend is not None or config.backends or config.backend_key_file is not None
    if snapshot is not None and not named and at in {each.url for each in running_daemons()}:
        # Check the servers of the running daemon, not whatever listens on the default ports.
        own = tuple(BackendConfig(name=each.name, url=each.url) for each in snapshot.backends)
        config = replace(config, backends=own)
    found, servers = await backend.look_at_backends(config)
    port = config.addresses()[0][1]
    proxy_port = port if snapshot is None else int(snapshot.listen.rpartition(":")[2])
    findings = [*found, *findings, *daemon]
    findings += proxy.check_port(config, ours=snapshot is not None and proxy_port == port)
    findings += proxy.check_openness(config)
    kinds = {server.port: server.found.adapter.name for server in servers}
    findings += _takeover() or proxy.check_clients(os.environ, proxy_port, kinds)
    for each, kind in sorted(kinds.items()):
        findings += backend.check_direct_clients(each, backend.direct_clients(each), kind)
    return findings


def _takeover() -> list[Finding]:
    from clairvoyant_cli.takeover.journal import read

    record = read()
    if record is None:
        return []
    if record.step == "done":
        return [ok("clients", f"the proxy is in the place of {record.kind} at {record.address}")]
    why = f"a takeover of {record.kind} at {record.address} was interrupted"
    return [broken("clients", why, "clairvoyant takeover --undo")]


def _predictor(config: ServeConfig) -> list[Finding]:
    from clairvoyant_cli.commands.setup import load_predictor
    from clairvoyant_cli.doctor.installation import REINSTALL
    from predictor.record import PromptView

    try:
        predictor = load_predictor(config.predictor)
    except ClairvoyantError as error:
        other = "clairvoyant serve    # without --predictor: the built-in one"
        return [broken("predictor", str(error), other if config.predictor else REINSTALL)]
    begun_s = time.perf_counter()
    predictor.predict(PromptView("What is the capital of France?"))
    took_ms = (time.perf_counter() - begun_s) * 1000
    return [ok("predictor", f"{predictor.name}, {took_ms:.2f} ms per prediction")]


def _print(findings: list[Finding]) -> None:
    from rich.table import Table
    from rich.text import Text

    from clairvoyant_cli.commands.console import PlainConsole

    console = PlainConsole()
    table = Table.grid(padding=(0, 1))
    for finding in findings:
        mark, style = MARKS[finding.level]
        table.add_row(Text(mark, style), Text(finding.topic, "bold"), Text(finding.text))
        if finding.fix:
            table.add_row("", "", Text(f"→ {finding.fix}", "cyan"))
    console.print(table)
    counts = [sum(finding.level is level for finding in findings) for level in (Level.BROKEN, Level.WARNING)]
    console.print(f"{counts[0]} broken, {plural(counts[1], 'warning')}", style="bold", highlight=False)
