"""Checks of the proxy itself: running or not, its version and state, its port, and where clients point."""

import socket
from collections.abc import Collection, Iterator, Mapping
from urllib.parse import urlsplit

from clairvoyant_cli import __version__
from clairvoyant_cli.config import ServeConfig
from clairvoyant_cli.doctor.finding import Finding, broken, note, ok, warning
from clairvoyant_cli.errors import ClairvoyantError, ExitCode
from clairvoyant_cli.state.client import ControlClient, own_daemons
from clairvoyant_cli.state.snapshot import Snapshot
from clairvoyant_cli.system import CURL, REDIRECT, claim_alone

CLIENT_VARIABLES = ("OLLAMA_HOST", "OPENAI_BASE_URL", "OPENAI_API_BASE", "ANTHROPIC_BASE_URL")


async def look_at_daemon(url: str, token: str | None) -> tuple[list[Finding], Snapshot | None]:
    """Ask the daemon for its state; return what is to be said, and the state."""
    try:
        async with ControlClient(url, token) as control:
            snapshot = await control.snapshot()
    except ClairvoyantError as error:
        if error.exit_code is ExitCode.UNREACHABLE:
            start = "clairvoyant service install    # or, in the foreground: clairvoyant serve"
            return [warning("daemon", f"no daemon answers at {url}", start)], None
        return [warning("daemon", str(error), "clairvoyant doctor --url URL --token-file FILE")], None
    return list(check_daemon(snapshot)), snapshot


def check_daemon(snapshot: Snapshot) -> Iterator[Finding]:
    """Say how a running daemon does."""
    tau = "off" if snapshot.tau.tau_s is None or not snapshot.tau.guards else f"{snapshot.tau.tau_s:g} s"
    yield ok(
        "daemon",
        f"{snapshot.mode} on {snapshot.listen}, policy {snapshot.policy}, tau {tau} ({snapshot.tau.source}), "
        f"predictor {snapshot.predictor.name}",
    )
    if snapshot.daemon_version != __version__:
        yield warning(
            "daemon",
            f"it runs version {snapshot.daemon_version}, installed is {__version__}",
            "clairvoyant service stop && clairvoyant service start",
        )
    if snapshot.mode != "serving":
        yield warning(
            "daemon", f"it is {snapshot.mode}: nothing new is started", "clairvoyant top    # then P"
        )
    for backend in snapshot.backends:
        if backend.state not in ("up", "unknown"):
            text = (
                f"the daemon finds {backend.name} at {backend.url} {backend.state} {backend.detail}".rstrip()
            )
            yield broken("daemon", text, f"{CURL} -i {backend.url}")
    if snapshot.predictor.distrusted:
        names = ", ".join(snapshot.predictor.distrusted)
        yield warning(
            "predictor",
            f"it ranks no better than chance, so that requests are predicted alike, for: {names}",
            "clairvoyant forget --all    # erases what it learned, and starts afresh",
        )


def check_port(config: ServeConfig, *, ours: bool) -> Iterator[Finding]:
    """The port must be free, unless it is our own daemon that has it."""
    host, port = config.address()
    if ours:
        return
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        claim_alone(probe)
        try:
            probe.bind((host, port))
        except OSError as error:
            if config.listen.rpartition(":")[2] in {url.rpartition(":")[2] for url in own_daemons()}:
                yield ok("port", f"{config.listen} is that of another daemon of yours")
                return
            why = error.strerror or str(error)
            other = f"{host}:{port + 1}"
            yield broken("port", f"{config.listen} is taken ({why})", f"clairvoyant serve --listen {other}")
            return
    yield ok("port", f"{config.listen} is free")


def check_openness(config: ServeConfig) -> Iterator[Finding]:
    """Beyond loopback, keys are demanded, and dashboards under other names must be allowed.

    Whether a clients' file holds keys is seen when it is read.
    """
    host, _ = config.address()
    if host in ("localhost", "::1") or host.startswith("127."):
        return
    if (config.api_key_file or config.clients) is None or config.admin_token_file is None:
        fix = "clairvoyant serve --api-key-file FILE --admin-token-file FILE"
        yield broken("access", f"{config.listen} lets others in, and serve refuses without keys", fix)
    elif config.allow_host is None:
        fix = "clairvoyant serve --allow-host NAME"
        yield note("access", "the control API answers under this machine's name and addresses alone", fix)


def check_clients(
    environment: Mapping[str, str], proxy_port: int, backend_ports: Collection[int]
) -> Iterator[Finding]:
    """Where this shell's variables send its clients."""
    for name in CLIENT_VARIABLES:
        value = environment.get(name)
        if not value:
            continue
        port = _port(value)
        if port in backend_ports:
            yield warning("clients", f"{name} is {value}: that is the backend, not the proxy", REDIRECT)
        elif port == proxy_port:
            yield ok("clients", f"{name} points at the proxy")
    if not any(environment.get(name) for name in CLIENT_VARIABLES):
        yield note("clients", "no variable of this shell points a client at the proxy", REDIRECT)


def _port(value: str) -> int | None:
    try:
        return urlsplit(value if "://" in value else f"http://{value}").port
    except ValueError:
        return None
