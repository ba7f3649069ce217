"""Which LLM server to use: the one that was named, or the one that answers at its usual port."""

import asyncio
from collections.abc import Collection
from dataclasses import replace
from itertools import groupby

from clairvoyant_cli.addresses import check_backend, is_loopback
from clairvoyant_cli.backends.adapter import Adapter, Found
from clairvoyant_cli.backends.adapters import ADAPTERS, ADVISED, OTHER, PREFERRED
from clairvoyant_cli.backends.prober import AskingOnce, Prober
from clairvoyant_cli.errors import ClairvoyantError, ExitCode
from clairvoyant_cli.http.upstream import Upstream
from clairvoyant_cli.protocols import probes


async def locate_server(
    wanted: str | None, prober: Prober, *, own_ports: Collection[int] = ()
) -> tuple[Found, list[Found]]:
    """Return the server to use and all that were found; a named one is used although it is down.
    `own_ports`, where the proxy listens, are not searched.
    """
    if wanted is None:
        found = await discover(prober, own_ports)
        return found[0] if found else Found(ADVISED, _urls(ADVISED)[0]), found
    named = next((adapter for adapter in ADAPTERS if adapter.name == wanted), None)
    if named is not None:
        return await _find_named(named, prober, own_ports)
    check_backend(wanted)
    url, prefix = split_prefix(wanted)
    port = Upstream(url).port  # a URL that is none is refused before anything is asked of it
    plain = f"http://{url.removeprefix('https://')}"
    # A TLS server answers plain HTTP with 400 or nothing.
    if plain != url and (await prober.asking(plain)("/v1/models")).status not in (0, 400):
        raise ClairvoyantError(f"{url} speaks plain HTTP; give {plain}", ExitCode.USAGE)
    there = await identify(prober, url, prefix)
    if there is not None:
        return there, [there]
    guess = next((adapter for adapter in PREFERRED if port in adapter.usual_ports), OTHER)
    return Found(guess, url, prefix), []


async def discover(prober: Prober, own_ports: Collection[int]) -> list[Found]:
    """Look for servers at their default ports, except the proxy's own."""
    places = [(adapter, url) for adapter in PREFERRED for url in _urls(adapter, own_ports)]
    urls = list(dict.fromkeys(url for _, url in places))  # several kinds may have the same usual port
    answers = await asyncio.gather(*(_identify_quietly(prober, url) for url in urls))
    at = dict(zip(urls, answers, strict=True))
    found: list[Found] = []
    for adapter, url in places:
        there = at[url]
        if there is not None and there.adapter is not OTHER:
            found += [there] * (there not in found)
        elif there is not None and adapter.KNOWN_BY_PORT:
            found.append(await _taken_for(adapter, there))
    return found


async def identify(prober: Prober, url: str, prefix: str = "") -> Found | None:
    """Find out which server answers at `url`; None if none does, ClairvoyantError if it is one of us."""
    ask = AskingOnce(prober.asking(url, prefix))  # all adapters ask the same few questions
    health = await ask("/_clairvoyant/health")
    if not health.status and await OTHER.identify(ask, url, prefix) is None:
        return None
    if probes.is_clairvoyant(health.body):
        raise ClairvoyantError(
            f"{url} is a clairvoyant already; give the URL of the LLM server itself with --backend"
        )
    for _, turn in groupby((*ADAPTERS, OTHER), lambda adapter: (adapter.TURN, adapter is OTHER)):
        # At once: a server may leave each question unanswered until it times out.
        answers = await asyncio.gather(*(adapter.identify(ask, url, prefix) for adapter in turn))
        found = next(filter(None, answers), None)
        if found is not None:
            return await _taken_for(found.adapter, found)
    return None


async def recognise(prober: Prober, url: str, prefix: str = "") -> Found | None:
    """Identify a server that did not answer when it was looked for; None if it still cannot be. A gateway
    that answers in its place is not mistaken for it: an unknown server must list its models.
    """
    there = await _identify_quietly(prober, url, prefix)
    if there is not None and there.adapter is OTHER:
        listing = await prober.asking(url, prefix)(OTHER.models_path)
        return there if listing.status == 200 else None
    return there


def split_prefix(url: str) -> tuple[str, str]:
    """Return a server's URL without its path, and the API prefix in it; a trailing /v1 is no prefix."""
    if "://" not in url:
        url = f"http://{url}"
    scheme, _, rest = url.partition("://")
    netloc, slash, path = rest.partition("/")
    prefix = (slash + path).rstrip("/").removesuffix("/v1")
    return f"{scheme}://{netloc}", prefix


async def _find_named(
    adapter: Adapter, prober: Prober, own_ports: Collection[int]
) -> tuple[Found, list[Found]]:
    free = []
    for url in _urls(adapter, own_ports):
        try:
            there = await identify(prober, url)
        except ClairvoyantError:
            continue  # one of us: what is looked for sits, or will sit, elsewhere
        if there is not None:
            there = await _taken_for(adapter, there)
            return there, [there]
        free.append(url)
    if not free:
        raise ClairvoyantError("no port left to look at; give the backend's URL", ExitCode.USAGE)
    return Found(adapter, free[0]), []


async def _identify_quietly(prober: Prober, url: str, prefix: str = "") -> Found | None:
    try:
        return await identify(prober, url, prefix)
    except ClairvoyantError:
        return None


async def _taken_for(adapter: Adapter, found: Found) -> Found:
    """Return what was found as that server, with the slots that its process shows if it did not tell."""
    if found.adapter.name == adapter.name:
        adapter = found.adapter  # llama.cpp has two forms
    upstream, slots = Upstream(found.url), found.slots
    if slots is None and is_loopback(upstream.host):
        slots = await asyncio.to_thread(adapter.local_slots, upstream.port)
    return replace(found, adapter=adapter, slots=slots or adapter.USUAL_SLOTS)


def _urls(adapter: Adapter, but: Collection[int] = ()) -> list[str]:
    return [f"http://127.0.0.1:{port}" for port in adapter.usual_ports if port not in but]
