"""Checks the daemon, its port and access, and the variables that direct clients to it."""

import socket
from collections.abc import Collection, Iterator, Mapping
from heapq import nlargest
from urllib.parse import urlsplit

from clairvoyant_cli import __version__
from clairvoyant_cli.addresses import is_loopback
from clairvoyant_cli.backends.kinds.ollama import larger_context
from clairvoyant_cli.config import ServeConfig
from clairvoyant_cli.doctor.finding import Finding, broken, note, ok, warning
from clairvoyant_cli.errors import ClairvoyantError, ExitCode
from clairvoyant_cli.protocols.printable import plural
from clairvoyant_cli.state.client import ControlClient, running_daemons
from clairvoyant_cli.state.snapshot import Snapshot
from clairvoyant_cli.system import CURL, REDIRECT, claim_alone, for_shell

SLOW_STOP_S = 2.0
SLOW_STOP_TOKENS = 600.0
"""A prompt that is cut is read to the end of its batch, half of one on average: with 512 tokens in a batch it
cannot be more."""

SYSTEM_TEXT_FIX = (
    "clairvoyant serve --stable-prefix known    # and a rule; Claude Code: CLAUDE_CODE_ATTRIBUTION_HEADER=0"
)
LARGER_CACHE = {
    "llamacpp": "llama-server --cache-ram MIB    # default 8192; or run fewer sessions",
    "ollama": "LLAMA_ARG_CACHE_RAM=MIB ollama serve    # default 8192; or run fewer sessions",
}

CLIENT_VARIABLES = ("OLLAMA_HOST", "OPENAI_BASE_URL", "OPENAI_API_BASE", "ANTHROPIC_BASE_URL")


async def look_at_daemon(url: str, token: str | None) -> tuple[list[Finding], Snapshot | None]:
    """Return the findings about the daemon, and its state if it answers."""
    try:
        async with ControlClient(url, token) as control:
            snapshot = await control.snapshot()
    except ClairvoyantError as error:
        if error.exit_code is ExitCode.UNREACHABLE:
            start = "clairvoyant service install    # or: clairvoyant serve"
            return [warning("daemon", f"no daemon answers at {url}", start)], None
        return [warning("daemon", str(error), "clairvoyant doctor --url URL --token-file FILE")], None
    return list(check_daemon(snapshot)), snapshot


def check_daemon(snapshot: Snapshot) -> Iterator[Finding]:
    tau = "off" if snapshot.tau.tau_s is None or not snapshot.tau.guards else f"{snapshot.tau.tau_s:.4g} s"
    yield ok(
        "daemon",
        f"{snapshot.mode} on {snapshot.listen}, policy {snapshot.policy}, tau {tau} ({snapshot.tau.source}), "
        f"predictor {snapshot.predictor.name}",
    )
    if snapshot.daemon_version != __version__:
        yield warning(
            "daemon",
            f"version {snapshot.daemon_version} is running, {__version__} is installed",
            "clairvoyant service stop && clairvoyant service start",
        )
    if snapshot.mode != "serving":
        yield warning("daemon", f"it is {snapshot.mode} and starts no requests", "clairvoyant act resume")
    for backend in snapshot.backends:
        if backend.state not in ("up", "unknown"):
            text = f"{backend.name} at {backend.url} is {backend.state} {backend.detail}".rstrip()
            yield broken("daemon", text, for_shell(CURL, "-i", backend.url))
        if backend.standing == "silent":
            text = f"{backend.name} has not answered a request in far longer than expected: it may hang"
            yield warning("daemon", text, "restart the server; clairvoyant status shows its requests")
        stop_s = backend.prompt_stop_s or 0.0
        tokens = stop_s * (backend.prefill_tokens_per_s or 0.0)
        if backend.kind == "llamacpp" and stop_s > SLOW_STOP_S and tokens > SLOW_STOP_TOKENS:
            text = f"{backend.name} goes on reading a prompt for {stop_s:.0f} s after it was preempted"
            yield note("batch", text, "llama-server --batch-size 512")
        if backend.truncated:
            tokens, context = backend.cut_to
            text = f"{backend.name} cut {plural(backend.truncated, 'prompt')} to its context without an error"
            last = f"the last of about {tokens:,} tokens to {context:,}"
            yield warning("context", f"{text}: {last}", larger_context(tokens))
    yield from _check_sessions(snapshot)


def _check_sessions(snapshot: Snapshot) -> Iterator[Finding]:
    sessions = snapshot.sessions
    broken = [each for each in sessions.listed if each.broken]
    for each in nlargest(3, broken, key=lambda each: each.reread_tokens):
        whose = f" ({each.client})" if each.client else ""
        text = f"session {each.id}{whose} read {each.reread_tokens:,.0f} tokens again: {each.broken}"
        yield warning("prefix", text, SYSTEM_TEXT_FIX if "system text" in each.broken else "")
    live = [each for each in sessions.listed if each.state != "resting"]
    tokens, room = sum(each.context_tokens for each in live), sessions.room_tokens
    crowded = room is not None and tokens > room and len(live) > sum(each.slots for each in snapshot.backends)
    if room is not None and (sessions.parked or crowded):
        then = "they take turns" if sessions.parked else "they evict each other"
        text = f"{len(live)} sessions have {tokens:,.0f} tokens, the server's cache holds {room:,.0f}: {then}"
        fixes = (LARGER_CACHE[each.kind] for each in snapshot.backends if each.kind in LARGER_CACHE)
        yield note("cache", text, next(fixes, "run fewer sessions at once"))


def check_port(config: ServeConfig, *, ours: bool) -> Iterator[Finding]:
    """Check that the port is free, or used by the daemon (`ours`)."""
    host, port = config.addresses()[0]  # the others may be in use: `serve` takes them later
    if ours:
        return
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        claim_alone(probe)
        try:
            probe.bind((host, port))
        except OSError as error:
            if any(each.url.endswith(f":{port}") for each in running_daemons()):
                yield ok("port", f"{config.listen} is used by another daemon of this account")
                return
            other = f"{host}:{port + 1}"
            why = f"{config.listen} is in use ({error.strerror or error})"
            yield broken("port", why, f"clairvoyant serve --listen {other}")
        else:
            yield ok("port", f"{config.listen} is free")


def check_openness(config: ServeConfig) -> Iterator[Finding]:
    """Check that there are keys and allowed host names if the proxy listens beyond loopback."""
    if all(is_loopback(host) for host, _ in config.addresses()):
        return
    if (config.api_key_file or config.clients) is None or config.admin_token_file is None:
        fix = "clairvoyant serve --api-key-file FILE --admin-token-file FILE"
        yield broken("access", f"{config.listen} is open to others; serve requires keys for it", fix)
    elif config.allow_host is None:
        fix = "clairvoyant serve --allow-host NAME"
        yield note("access", "the control API accepts only this machine's name and addresses", fix)


def check_clients(
    environment: Mapping[str, str], proxy_port: int, backend_ports: Collection[int]
) -> Iterator[Finding]:
    """Check where this shell's variables direct clients."""
    given = {name: environment[name] for name in CLIENT_VARIABLES if environment.get(name)}
    for name, value in given.items():
        port = _port(value)
        if port in backend_ports:
            yield warning("clients", f"{name} is {value}, the server instead of the proxy", REDIRECT)
        elif port == proxy_port:
            yield ok("clients", f"{name} points to the proxy")
    if not given:
        yield note("clients", "no variable of this shell points to the proxy", REDIRECT)


def _port(value: str) -> int | None:
    try:
        return urlsplit(value if "://" in value else f"http://{value}").port
    except ValueError:
        return None
