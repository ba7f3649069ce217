"""Checks the LLM servers: models, slots, priority scheduling, and clients that bypass the proxy."""

import asyncio
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import psutil

from clairvoyant_cli.addresses import BACKEND_NAMES, MOVABLE, is_loopback
from clairvoyant_cli.backends.adapter import Found, Turn
from clairvoyant_cli.backends.adapters import OTHER
from clairvoyant_cli.backends.discovery import locate_server
from clairvoyant_cli.backends.priority import UNKNOWN, Heeding
from clairvoyant_cli.backends.prober import Prober, engine_load
from clairvoyant_cli.config import BackendConfig, ServeConfig
from clairvoyant_cli.doctor.finding import Finding, broken, note, ok, warning
from clairvoyant_cli.errors import ClairvoyantError
from clairvoyant_cli.http.upstream import Upstream
from clairvoyant_cli.protocols.probes import EngineLoad
from clairvoyant_cli.proxy.access.keys import read_backend_key
from clairvoyant_cli.system import CURL, REDIRECT, for_shell

OWN_PROGRAMS, MOST_WORDS = ("clairvoyant", "clairvoyant_cli"), 4
"""Our script or module is among the first words of a command line: python -P -m clairvoyant_cli."""


@dataclass(frozen=True, slots=True)
class CheckedServer:
    """An LLM server that answers. `models` is None if it does not list them."""

    found: Found
    models: tuple[str, ...] | None
    settings: BackendConfig = field(default_factory=BackendConfig)
    heeding: Heeding = UNKNOWN
    load: EngineLoad | None = None  # what an engine that schedules by priority has in its own queue

    @property
    def port(self) -> int:
        url = urlsplit(self.found.url)
        return url.port or (443 if url.scheme == "https" else 80)


async def look_at_backends(config: ServeConfig) -> tuple[list[Finding], list[CheckedServer]]:
    """Search for the servers like `serve`; return the findings, and the servers that answer."""
    own_ports = [port for _, port in config.addresses()]
    looks = await asyncio.gather(*(_look_at(settings, own_ports) for settings in config.servers()))
    findings = [finding for found, _ in looks for finding in found]
    return findings, [server for _, server in looks if server is not None]


async def _look_at(
    settings: BackendConfig, own_ports: Sequence[int]
) -> tuple[list[Finding], CheckedServer | None]:
    try:
        key = read_backend_key(settings.key_file)
    except ClairvoyantError as error:
        return [broken("backend", str(error), "clairvoyant serve --backend-key-file FILE")], None
    async with Prober(key) as prober:
        try:
            found, answering = await locate_server(settings.url, prober, own_ports=own_ports)
        except ClairvoyantError as error:
            fix = "clairvoyant serve --backend URL    # of the LLM server itself"
            return [broken("backend", str(error), fix)], None
        if not answering:
            silent = f"{found.adapter.title} does not answer at {found.url}"
            text = silent if settings.url else "no LLM server answers on the default ports"
            by_url = settings.url is not None and settings.url not in BACKEND_NAMES
            fix = (
                f"{for_shell(CURL, '-i', found.url)}    # start it there"
                if by_url
                else found.adapter.start_command
            )
            return [broken("backend", text, fix)], None
        ask, upstream = prober.asking(found.url, found.prefix), Upstream(found.url)
        disturbs = found.adapter.TURN is Turn.DISTURBED
        offered = None if disturbs else await found.adapter.offered_models(ask)
        heeding = await found.adapter.heeding(ask, upstream.port if is_loopback(upstream.host) else None)
        load = None
        if heeding.priority is not None and heeding.priority.metrics is not None:
            metrics, url = heeding.priority.metrics, settings.metrics_url
            load = await engine_load(metrics, ask, prober, upstream.host, url)
    findings = []
    if len(answering) > 1:
        others = ", ".join(f"{each.adapter.name} at {each.url}" for each in answering[1:])
        choose = for_shell("clairvoyant", "serve", "--backend", answering[1].url)
        findings.append(note("backend", f"also found: {others}", choose))
    models = None if offered is None else tuple(model.name for model in offered)
    server = CheckedServer(found, models, settings, heeding, load)
    return [*check_server(server), *check_priority(server), *findings], server


def check_server(server: CheckedServer) -> Iterator[Finding]:
    """Check the slots and models of a server."""
    found, wanted = server.found, server.settings.slots
    slots = wanted or found.slots or 1
    source = "configured" if wanted else "reported by the server" if found.slots else "assumed"
    name = f"{found.adapter.name} {found.version}".strip()
    yield ok("backend", f"{name} at {found.url}, slots: {slots} ({source})")
    if not wanted and not found.slots and found.adapter is OTHER:
        text = "how many answers it gives at once is unknown, so it gets one request at a time"
        yield note("slots", text, "clairvoyant calibrate    # measures it, while nobody else uses the server")
    if wanted and found.slots and wanted != found.slots and server.heeding.priority is None:
        inside = "requests queue inside the server, in arrival order"
        loss = "slots stay empty" if wanted < found.slots else inside
        text = f"slots is {wanted}, but the server has {found.slots}: {loss}"
        yield warning("slots", text, f"clairvoyant serve --slots {found.slots}    # or remove --slots")
    if found.adapter.LIMITS:
        yield note("limits", f"{found.adapter.title}: {found.adapter.LIMITS}")
    if server.models is None and found.adapter.TURN is Turn.DISTURBED:
        return
    if server.models is None:
        text = "the server does not list its models; it may need a key"
        yield note("models", text, "--backend-key-file FILE")
    elif not server.models:
        yield warning("models", "the server has no model", found.adapter.get_model_command)
    else:
        more = len(server.models) - 4
        yield ok("models", ", ".join(server.models[:4]) + (f" and {more} more" if more > 0 else ""))


def check_priority(server: CheckedServer) -> Iterator[Finding]:
    """Check whether an engine or a router schedules by priority."""
    adapter, heeding = server.found.adapter, server.heeding
    if adapter.PRIORITY is None:
        return
    flag = adapter.PRIORITY.flag
    if heeding.priority is not None and not heeding.known:
        text = f"{adapter.title} does not tell whether it schedules by priority; it does {heeding.why}"
        yield note("priority", text, adapter.start_command)
    elif heeding.priority is not None:
        yield ok("priority", f"{adapter.title} schedules by priority ({heeding.why})")
    elif heeding.known:
        text = f"{adapter.title} does not schedule by priority ({heeding.why}); requests queue in the proxy"
        yield note("priority", text, f"{adapter.start_command} {flag}")
    else:
        fix = f"clairvoyant serve --annotate on    # if it was started with {flag}"
        yield note("priority", f"unknown whether {adapter.title} schedules by priority", fix)
    if server.load is not None:
        told = {"running": server.load.running, "waiting": server.load.waiting}
        counts = ", ".join(f"{count} {what}" for what, count in told.items() if count is not None)
        yield ok("queue", f"inside {adapter.title}: {counts or 'it does not say'}")
    elif heeding.priority is not None and heeding.priority.metrics is not None:
        fix = "metrics_url in the [[backends]] table    # where its metrics are"
        yield note("queue", f"{adapter.title} does not tell how many requests wait inside it", fix)


def check_direct_clients(port: int, direct: Sequence[str], kind: str = "") -> Iterator[Finding]:
    """Warn about clients that bypass the proxy, and so its queue, at a server of a kind."""
    if direct:
        names = ", ".join(direct)
        yield warning(
            "clients",
            f"connected directly to port {port}, bypassing the proxy: {names}",
            f"clairvoyant takeover {kind}" if kind in MOVABLE else f"{REDIRECT}    # then restart the client",
        )


def direct_clients(port: int) -> list[str]:
    """Return the local processes connected to a port, except our own: the daemon, `calibrate` and `bench`.

    Empty if the system does not permit it.
    """
    pids: set[int] = set()
    with suppress(psutil.Error, OSError):
        for each in psutil.net_connections("tcp"):
            if each.raddr and each.raddr.port == port and each.status == psutil.CONN_ESTABLISHED and each.pid:
                pids.add(each.pid)
    names = []
    for pid in sorted(pids - {os.getpid()}):
        with suppress(psutil.Error):
            process, words = psutil.Process(pid), list[str]()
            with suppress(psutil.AccessDenied):  # another account's
                words = process.cmdline()[:MOST_WORDS]
            if not any(Path(word).stem in OWN_PROGRAMS for word in words):
                names.append(f"{process.name()} (pid {pid})")
    return names
