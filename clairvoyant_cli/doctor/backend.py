"""Checks of the LLM server: there or not, whose it is, its models, its slots against Ollama's own setting."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil

from clairvoyant_cli.config import ServeConfig
from clairvoyant_cli.doctor.finding import Finding, broken, note, ok, warning
from clairvoyant_cli.errors import ClairvoyantError
from clairvoyant_cli.proxy.access import read_secret
from clairvoyant_cli.proxy.backend import Found, Prober, find_backend
from clairvoyant_cli.proxy.protocols.routes import BackendKind

START = {
    BackendKind.OLLAMA: "ollama serve",
    BackendKind.LLAMACPP: "llama-server --model model.gguf --port 9931",
    BackendKind.LMSTUDIO: "lms server start",
    BackendKind.JAN: "jan serve    # or Settings, Local API Server",
    BackendKind.OTHER: "clairvoyant serve --backend http://HOST:PORT",
}


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
    except ClairvoyantError as error:
        fix = "clairvoyant serve --backend URL    # of the LLM server itself"
        return [broken("backend", str(error), fix)], None
    finally:
        await prober.close()
    if not answering:
        where = f"{found.kind.value} does not answer at {found.url}"
        text = where if config.backend else "no LLM server answers at the usual ports"
        return [broken("backend", text, START[found.kind])], None
    findings = []
    if len(answering) > 1:
        others = ", ".join(f"{each.kind.value} at {each.url}" for each in answering[1:])
        choose = f"clairvoyant serve --backend {answering[1].url}"
        findings.append(note("backend", f"also there: {others}", choose))
    server = Server(found, await _models(found, key))
    return [*check_server(server, config), *findings], server


def check_server(server: Server, config: ServeConfig) -> Iterator[Finding]:
    """Say which server answers, with how many slots, and whether it has a model."""
    found = server.found
    slots = config.slots or found.slots or 1
    how = "set" if config.slots else "told by the server" if found.slots else "assumed"
    name = f"{found.kind.value} {found.version}".strip()
    yield ok("backend", f"{name} at {found.url}, slots: {slots} ({how})")
    if config.slots and found.slots and config.slots != found.slots:
        yield warning(
            "slots",
            f"slots is {config.slots}, but the server has {found.slots}",
            f"clairvoyant serve --slots {found.slots}    # or leave --slots out",
        )
    if server.models is None:
        yield note(
            "models", "the server does not name its models; it may want a key", "--backend-key-file FILE"
        )
    elif not server.models:
        pull = "ollama pull llama3.2" if found.kind is BackendKind.OLLAMA else "load a model in the server"
        yield warning("models", "the server has no model", pull)
    else:
        shown = ", ".join(server.models[:4])
        more = len(server.models) - 4
        yield ok("models", f"{shown} and {more} more" if more > 0 else shown)


async def _models(found: Found, key: str | None) -> tuple[str, ...] | None:
    path, field = ("/api/tags", "models") if found.kind is BackendKind.OLLAMA else ("/v1/models", "data")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    async with httpx.AsyncClient(timeout=2.0, trust_env=False, headers=headers) as client:
        try:
            answer = (await client.get(found.url + found.prefix + path)).json()
            return tuple(str(model.get("name") or model.get("id")) for model in answer[field])
        except (httpx.HTTPError, ValueError, LookupError, TypeError, AttributeError):
            return None


def check_parallel(
    server: Server | None, config: ServeConfig, environments: Iterable[Mapping[str, str]]
) -> Iterator[Finding]:
    """Ollama answers OLLAMA_NUM_PARALLEL requests at once and tells nobody; the proxy's slots must agree."""
    if server is None or server.found.kind is not BackendKind.OLLAMA:
        return
    told = next((env["OLLAMA_NUM_PARALLEL"] for env in environments if "OLLAMA_NUM_PARALLEL" in env), None)
    if told is None or not re.fullmatch("[0-9]{1,6}", told) or int(told) == 0:
        return
    parallel, slots = int(told), config.slots or 1
    if parallel != slots:
        loss = "slots stay empty" if slots < parallel else "requests queue inside Ollama, in arrival order"
        yield warning(
            "slots",
            f"OLLAMA_NUM_PARALLEL is {parallel}, the proxy's slots are {slots}: {loss}",
            f"clairvoyant serve --slots {parallel}",
        )


def ollama_environments() -> list[dict[str, str]]:
    """Return the environments of the running Ollama servers that may be read."""
    found = []
    for process in psutil.process_iter(["name"]):
        if (process.info["name"] or "").startswith("ollama"):
            try:
                found.append(process.environ())
            except (psutil.Error, OSError):
                continue
    return found


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
