"""Finds the servers that a configuration names, or guesses what will be at their addresses; notices when one
is replaced by another.
"""

import asyncio
import logging
from collections.abc import Sequence

from clairvoyant_cli.addresses import Address, is_loopback
from clairvoyant_cli.backends.adapter import Status
from clairvoyant_cli.backends.adapters import ADAPTERS, OTHER, adapter_of
from clairvoyant_cli.backends.discovery import locate_server, recognise, split_prefix
from clairvoyant_cli.backends.prober import AskingOnce, Prober
from clairvoyant_cli.config import BackendConfig, ServeConfig
from clairvoyant_cli.errors import ClairvoyantError, ExitCode
from clairvoyant_cli.http.upstream import Upstream
from clairvoyant_cli.protocols.probes import openai_models
from clairvoyant_cli.proxy.access.keys import read_backend_key
from clairvoyant_cli.proxy.servers.server import Server

log = logging.getLogger("clairvoyant")

UNCLEAR = (0, 401, 403, 408, 429)  # statuses that do not tell what has answered, as those from 500 on


async def find_servers(config: ServeConfig, own: Sequence[Address]) -> list[Server]:
    """Find all servers in a configuration. With several, unusable ones are left out with a warning;
    ClairvoyantError if none is left. The proxy listens on its `own` addresses.
    """
    wanted = config.servers()
    keys = [read_backend_key(each.key_file) for each in wanted]
    found = await asyncio.gather(
        *(
            find_server(config, each, own, key=key, several=len(wanted) > 1)
            for each, key in zip(wanted, keys, strict=True)
        ),
        return_exceptions=True,
    )
    servers = [each for each in found if isinstance(each, Server)]
    errors = [each for each in found if isinstance(each, BaseException)]
    fatal = next((each for each in errors if not isinstance(each, ClairvoyantError) or not servers), None)
    if (fatal := fatal or _twins(servers)) is not None:
        for server in servers:
            await server.close()
        raise fatal
    for error in errors:
        log.warning("a server is left out: %s", error)
    return servers


async def find_server(
    config: ServeConfig, wanted: BackendConfig, own: Sequence[Address], *, key: str | None, several: bool
) -> Server:
    """Find a server, or guess what will be there; ClairvoyantError if it cannot be one."""
    prober = Prober(key)
    try:
        if wanted.url is not None and "://" in wanted.url:  # asking the proxy itself would only time out
            _refuse_ourselves(Upstream(split_prefix(wanted.url)[0]), own)
        found, all_found = await locate_server(wanted.url, prober, own_ports=[port for _, port in own])
        for each in all_found:
            log.info("found %s", each)
        if not all_found:
            log.warning("nothing answers at %s yet; waiting for a server there", found.url)
        elif len(all_found) > 1:
            log.info("using %s at %s; choose another with --backend", found.adapter.name, found.url)
        upstream = Upstream(found.url)
        _refuse_ourselves(upstream, own)
        adapter = found.adapter if wanted.kind in (None, found.adapter.name) else adapter_of(wanted.kind)
        server = Server(
            wanted.name or adapter.name,
            adapter,
            upstream,
            prober,
            found.prefix,
            wanted,
            key=key.encode() if key else None,
            annotate=config.annotate,
            guessed=not all_found and wanted.kind is None,
            status=Status(seen=bool(all_found), version=found.version, slots=found.slots or 1),
        )
        if all_found:
            if adapter.PRIORITY is not None:
                server.status.heeding = await adapter.heeding(server.ask, server.local_port)
            if several:
                await adapter.list_models(server.ask, server.status)
    except BaseException:
        await prober.close()
        raise
    return server


async def recognise_again(server: Server, ask: AskingOnce) -> None:
    """Take a server for what answers at its address now, of which nothing else is known yet."""
    if not await _may_be_another(server, ask):
        return
    found = await recognise(server.prober, server.upstream.url, server.prefix)
    # One that never answered as its kind does may be it all the same, as at its usual port.
    known = (server.adapter,) if server.confirmed else (server.adapter, OTHER)
    if found is None or not (server.guessed or found.adapter not in known):
        return
    slots = found.slots or (server.status.slots if server.guessed else 1)
    server.status = Status(seen=server.status.seen, version=found.version, slots=slots)
    server.adapter, server.guessed, server.confirmed = found.adapter, False, False
    log.info("found %s", found)


async def _may_be_another(server: Server, ask: AskingOnce) -> bool:
    """Whether another may be at a server's address: it is only guessed, was away, or answers as another."""
    if server.guessed or server.config.kind is not None:
        return server.guessed
    if server.status.seen and server.status.state == "down":
        return True
    if server.adapter is OTHER:  # which anything is: another if its models have another owner, say
        listed = await ask(OTHER.models_path)
        models = openai_models(listed.body) or ()
        sign = listed.headers.get(b"server", b""), models[0].owner if models else ""
        is_still = listed.status != 200 or not server.is_news("sign", sign) or not server.confirmed
    else:
        is_still = await server.adapter.is_still(ask)
    if any(answer.status in UNCLEAR or answer.status >= 500 for answer in ask.answers.values()):
        return False
    # Routers pass most questions on, so they are looked for among the answers of a worker, too.
    before = ADAPTERS[: ADAPTERS.index(server.adapter)] if server.adapter in ADAPTERS else ()
    is_still = is_still and not [adapter for adapter in before if await adapter.is_still(ask.answered)]
    server.confirmed = server.confirmed or is_still
    return server.confirmed and not is_still


def _twins(servers: list[Server]) -> ClairvoyantError | None:
    """Return an error if two spellings of an address name the same server."""
    known: dict[tuple[str, int, str], Server] = {}
    for each in servers:
        twin = known.setdefault(each.place, each)
        if twin is not each:
            both = f"{twin.name} ({twin.id}) and {each.name} ({each.id})"
            return ClairvoyantError(f"{both} are the same server; give it once", ExitCode.USAGE)
    return None


def _refuse_ourselves(upstream: Upstream, own: Sequence[Address]) -> None:
    """Raise ClairvoyantError if a server's address is visibly one that the proxy listens on."""
    host = upstream.host

    def reaches(listening: str) -> bool:
        everywhere = listening in ("0.0.0.0", "::")  # noqa: S104 - compared
        return host == listening or (is_loopback(host) and (everywhere or is_loopback(listening)))

    if any(reaches(listening) and upstream.port == port for listening, port in own):
        remedy = "give the LLM server's, or --listen another"
        raise ClairvoyantError(f"{upstream.url} is this proxy's own address; {remedy}", ExitCode.USAGE)
