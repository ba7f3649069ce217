"""Checks of the LLM server: there or not, whose it is, its models, its slots, and who goes past the proxy."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil

from clairvoyant_cli.backends.adapter import Found
from clairvoyant_cli.backends.discovery import find_backend
from clairvoyant_cli.backends.prober import Prober
from clairvoyant_cli.config import ServeConfig
from clairvoyant_cli.doctor.finding import Finding, broken, note, ok, warning
from clairvoyant_cli.errors import ClairvoyantError
from clairvoyant_cli.proxy.access import read_secret


@dataclass(frozen=True, slots=True)
class Server:
    """The LLM server that was found, and the models it names (None: it would not say)."""

    found: Found
    models: tuple[str, ...] | None


async def look_at_backend(config: ServeConfig) -> tuple[list[Finding], Server | None]:
    """Look for the backend as `serve` does; return what is to be said, and the server if one answers."""
    _, listen_port = config.address()
    key = read_secret(Path(config.backend_key_file), "backend key") if config.backend_key_file else None
    prober = Prober(key)
    try:
        found, answering = await find_backend(config.backend, prober, listen_port=listen_port)
        offered = await found.adapter.offered_models(prober.asking(found.url, found.prefix))
    except ClairvoyantError as error:
        fix = "clairvoyant serve --backend URL    # of the LLM server itself"
        return [broken("backend", str(error), fix)], None
    finally:
        await prober.close()
    if not answering:
        where = f"{found.adapter.name} does not answer at {found.url}"
        text = where if config.backend else "no LLM server answers at the usual ports"
        return [broken("backend", text, found.adapter.start_command)], None
    findings = []
    if len(answering) > 1:
        others = ", ".join(f"{each.adapter.name} at {each.url}" for each in answering[1:])
        choose = f"clairvoyant serve --backend {answering[1].url}"
        findings.append(note("backend", f"also there: {others}", choose))
    server = Server(found, None if offered is None else tuple(model.name for model in offered))
    return [*check_server(server, config), *findings], server


def check_server(server: Server, config: ServeConfig) -> Iterator[Finding]:
    """Say which server answers, with how many slots, and whether it has a model."""
    found = server.found
    slots = config.slots or found.slots or 1
    how = "set" if config.slots else "told by the server" if found.slots else "assumed"
    name = f"{found.adapter.name} {found.version}".strip()
    yield ok("backend", f"{name} at {found.url}, slots: {slots} ({how})")
    if config.slots and found.slots and config.slots != found.slots:
        few = config.slots < found.slots
        loss = "slots stay empty" if few else "requests queue inside the server, in arrival order"
        yield warning(
            "slots",
            f"slots is {config.slots}, but the server has {found.slots}: {loss}",
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


def server_port(server: Server) -> int:
    """Return the port the server listens on."""
    url = httpx.URL(server.found.url)
    return url.port or (443 if url.scheme == "https" else 80)


def check_direct_clients(server: Server | None, direct: Sequence[str]) -> Iterator[Finding]:
    """Clients that talk to the backend itself overtake everybody who queues at the proxy."""
    if server is not None and direct:
        names = ", ".join(sorted(set(direct)))
        port = server_port(server)
        yield warning(
            "clients",
            f"connected to port {port} directly, past the proxy: {names}",
            'eval "$(clairvoyant env)"    # then start the client again',
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
