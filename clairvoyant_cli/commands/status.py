"""`clairvoyant status`: the state of a running daemon, once."""

from pathlib import Path

import click

from clairvoyant_cli.commands.options import json_option, token_file_option, url_option
from clairvoyant_cli.commands.plain_output import say, say_json
from clairvoyant_cli.errors import printable
from clairvoyant_cli.state.client import ControlClient, ask_daemon
from clairvoyant_cli.state.snapshot import Snapshot


@click.command()
@url_option
@token_file_option
@json_option("Print the whole state as JSON.")
def command(url: str | None, token_file: Path | None, as_json: bool) -> None:
    """Print the state of a running daemon once."""
    snapshot = ask_daemon(url, token_file, ControlClient.snapshot)
    if as_json:
        say_json(snapshot)
    else:
        _print(snapshot)


def _print(snapshot: Snapshot) -> None:
    from tui.formatting import duration

    tau = snapshot.tau
    tau_text = (
        "off" if tau.tau_s is None else f"{tau.tau_s:g} s ({tau.source}), fired {tau.firings_total} times"
    )
    tau_text += "" if tau.guards else "; this policy does not use it"
    rest = f" on {snapshot.listen}, up {duration(snapshot.uptime_s)}, policy {snapshot.policy}"
    click.echo(click.style(printable(snapshot.mode), bold=True) + printable(rest))
    say(snapshot.verdict.text)
    for backend in snapshot.backends:
        detail = "".join(f", {said}" for said in (backend.standing, backend.detail) if said)
        busy = f"{backend.busy} of {backend.slots} slots busy"
        busy += f", {backend.waiting} waiting for it alone" if backend.waiting else ""
        say(f"backend {backend.name} {backend.url} {backend.state}{detail}, {busy}")
    say(f"tau {tau_text}")
    counts = snapshot.counters
    click.echo(
        f"{snapshot.waits} waiting, {len(snapshot.running)} running, {counts.completed} completed, "
        f"{counts.client_cancelled} cancelled, {counts.upstream_error} failed, "
        f"{counts.rejected + counts.timeout} refused"
    )
    if snapshot.running or snapshot.queue or snapshot.clients:
        from tui.print_tables import output_width, requests  # slow to load

        for line in requests(snapshot, output_width()):
            say(line)
