"""Checks of the LLM server: there or not, whose it is, its models, its slots, and who goes past the proxy."""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import psutil

from clairvoyant_cli.addresses import BACKEND_NAMES, is_loopback
from clairvoyant_cli.backends.adapter import Found
from clairvoyant_cli.backends.discovery import find_backend
from clairvoyant_cli.backends.priority import UNKNOWN, Heeding
from clairvoyant_cli.backends.prober import Prober
from clairvoyant_cli.config import BackendConfig, ServeConfig
from clairvoyant_cli.doctor.finding import Finding, broken, note, ok, warning
from clairvoyant_cli.errors import ClairvoyantError
from clairvoyant_cli.http.upstream import Upstream
from clairvoyant_cli.proxy.access.keys import read_backend_key
from clairvoyant_cli.system import CURL, REDIRECT


@dataclass(frozen=True, slots=True)
class Server:
    """An LLM server that was found, the models it names (None: it would not say), what is set of it, and
    whether it orders its own queue by priority.
    """

    found: Found
    models: tuple[str, ...] | None
    settings: BackendConfig = field(default_factory=BackendConfig)
    heeding: Heeding = UNKNOWN

    @property
    def port(self) -> int:
        """The port it listens on."""
        url = urlsplit(self.found.url)
        return url.port or (443 if url.scheme == "https" else 80)


async def look_at_backends(config: ServeConfig) -> tuple[list[Finding], list[Server]]:
    """Look for the servers as `serve` does; return what is to be said, and those that answer."""
    _, listen_port = config.address()
    looks = await asyncio.gather(*(_look_at(settings, listen_port) for settings in config.servers()))
    findings = [finding for said, _ in looks for finding in said]
    return findings, [server for _, server in looks if server is not None]


async def _look_at(settings: BackendConfig, listen_port: int) -> tuple[list[Finding], Server | None]:
    try:
        key = read_backend_key(settings.key_file)
    except ClairvoyantError as error:
        return [broken("backend", str(error), "clairvoyant serve --backend-key-file FILE")], None
    async with Prober(key) as prober:
        try:
            found, answering = await find_backend(settings.url, prober, listen_port=listen_port)
        except ClairvoyantError as error:
            fix = "clairvoyant serve --backend URL    # of the LLM server itself"
            return [broken("backend", str(error), fix)], None
        if not answering:
            where = f"{found.adapter.name} does not answer at {found.url}"
            text = where if settings.url else "no LLM server answers at the usual ports"
            by_url = settings.url is not None and settings.url not in BACKEND_NAMES
            fix = f"{CURL} -i {found.url}    # start it there" if by_url else found.adapter.start_command
            return [broken("backend", text, fix)], None
        ask, upstream = prober.asking(found.url, found.prefix), Upstream(found.url)
        offered = await found.adapter.offered_models(ask)
        heeding = await found.adapter.heeding(ask, upstream.port if is_loopback(upstream.host) else None)
    findings = []
    if len(answering) > 1:
        others = ", ".join(f"{each.adapter.name} at {each.url}" for each in answering[1:])
        choose = f"clairvoyant serve --backend {answering[1].url}"
        findings.append(note("backend", f"also there: {others}", choose))
    models = None if offered is None else tuple(model.name for model in offered)
    server = Server(found, models, settings, heeding)
    return [*check_server(server), *check_priority(server), *findings], server


def check_server(server: Server) -> Iterator[Finding]:
    """Say which server answers, with how many slots, and whether it has a model."""
    found, wanted = server.found, server.settings.slots
    slots = wanted or found.slots or 1
    how = "set" if wanted else "as the server says" if found.slots else "assumed"
    name = f"{found.adapter.name} {found.version}".strip()
    yield ok("backend", f"{name} at {found.url}, slots: {slots} ({how})")
    if wanted and found.slots and wanted != found.slots and server.heeding.priority is None:
        few = wanted < found.slots
        loss = "slots stay empty" if few else "requests queue inside the server, in arrival order"
        yield warning(
            "slots",
            f"slots is {wanted}, but the server has {found.slots}: {loss}",
            f"clairvoyant serve --slots {found.slots}    # or leave --slots out",
        )
    if server.models is None:
        yield note(
            "models", "the server does not name its models; it may want a key", "--backend-key-file FILE"
        )
    elif not server.models:
        yield warning("models", "the server has no model", found.adapter.get_model_command)
    else:
        shown = ", ".join(server.models[:4])
        more = len(server.models) - 4
        yield ok("models", f"{shown} and {more} more" if more > 0 else shown)


def check_priority(server: Server) -> Iterator[Finding]:
    """Say whether an engine that may order its own queue by priority does, so that nothing is held back."""
    adapter, heeding = server.found.adapter, server.heeding
    if adapter.PRIORITY is None:
        return
    flag = adapter.PRIORITY.flag
    if heeding.priority is not None:
        yield ok("priority", f"{adapter.title} orders by the priority that each request gets ({heeding.why})")
    elif heeding.known:
        text = (
            f"{adapter.title} does not order by priority ({heeding.why}), so requests are held back from it"
        )
        yield note("priority", text, f"{adapter.start_command} {flag}")
    else:
        fix = f"clairvoyant serve --annotate on    # if it was started with {flag}"
        yield note("priority", f"nothing shows from here whether {adapter.title} orders by priority", fix)


def check_direct_clients(port: int, direct: Sequence[str]) -> Iterator[Finding]:
    """Clients that talk to the backend itself overtake everybody who queues at the proxy."""
    if direct:
        names = ", ".join(sorted(set(direct)))
        yield warning(
            "clients",
            f"connected to port {port} directly, past the proxy: {names}",
            f"{REDIRECT}    # then start the client again",
        )


def direct_clients(port: int, *, but: frozenset[int]) -> list[str]:
    """Name the local processes that hold a connection to a port, without those in `but` and the server.

    Empty where the system does not let one look.
    """
    try:
        connections = psutil.net_connections("tcp")
    except (psutil.Error, OSError):
        return []
    direct = {
        each.pid
        for each in connections
        if each.raddr and each.raddr.port == port and each.status == psutil.CONN_ESTABLISHED and each.pid
    }
    names = []
    for pid in direct - but:
        try:
            names.append(f"{psutil.Process(pid).name()} (pid {pid})")
        except psutil.Error:
            continue
    return names
