"""Which model a server has to offer, whether it is loaded, and what else it tells of itself."""

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import httpx

from clairvoyant_cli.calibrate.asking import Asker
from clairvoyant_cli.errors import ClairvoyantError, ExitCode
from profiles.records import Served, place_of


@dataclass(frozen=True, slots=True)
class Survey:
    """What a server tells. `busy` counts the requests of others in it, None where it does not say."""

    served: Served
    resident: bool = False
    slots: int | None = None
    busy: int | None = None


async def survey(asker: Asker, wanted: str | None) -> Survey:
    """Find the model to ask, and set it as the asker's; ClairvoyantError if there is none."""
    target = asker.target
    served = Served(
        target.backend, "", target.url + target.prefix, place_of(target.url), version=target.version
    )
    if target.backend == "ollama":
        found = await _ollama(asker, served, wanted)
    else:
        found = await _openai(asker, served, wanted)
    asker.target = replace(target, model=found.served.model)
    return found


async def load_model(asker: Asker, *, unload_first: bool) -> float | None:
    """Have Ollama load the model and return how long that took; None on servers that load by themselves."""
    if asker.target.backend != "ollama":
        return None
    body = {"model": asker.target.model}
    if unload_first:
        await _post(asker, "/api/generate", body | {"keep_alive": 0})
    begun = time.monotonic()
    await _post(asker, "/api/generate", body)
    return time.monotonic() - begun


async def _ollama(asker: Asker, served: Served, wanted: str | None) -> Survey:
    known = {str(m.get("name")): m for m in (await _get(asker, "/api/tags")).get("models") or ()}
    loaded = [str(m.get("name")) for m in (await _get(asker, "/api/ps")).get("models") or ()]
    local = [name for name, model in known.items() if not model.get("remote_host")]
    name = _chosen(wanted, local, loaded, "ollama pull gemma3:4b")
    details = known[name].get("details") or {}
    return Survey(
        replace(
            served,
            model=name,
            digest=str(known[name].get("digest") or ""),
            quantisation=str(details.get("quantization_level") or ""),
            parameters=str(details.get("parameter_size") or ""),
        ),
        resident=name in loaded,
    )


async def _openai(asker: Asker, served: Served, wanted: str | None) -> Survey:
    listed = (await _get(asker, "/v1/models")).get("data") or ()
    known = {str(model.get("id")): model for model in listed if isinstance(model, dict)}
    slots = busy = None
    if asker.target.backend == "llamacpp":
        slots, busy = await _llamacpp(asker)
    name = _chosen(wanted, list(known), [], "the server's own way to load one")
    meta = known[name].get("meta") or {}
    parameters = meta.get("n_params")
    return Survey(
        replace(
            served,
            model=name,
            digest=str(meta.get("size") or ""),
            quantisation=str(meta.get("ftype") or ""),
            parameters=f"{parameters / 1e9:.3g}B" if isinstance(parameters, int) else "",
        ),
        resident=asker.target.backend == "llamacpp",
        slots=slots,
        busy=busy,
    )


async def _llamacpp(asker: Asker) -> tuple[int | None, int | None]:
    slots = busy = None
    with suppress(ClairvoyantError):
        slots = (await _get(asker, "/props")).get("total_slots")
    with suppress(httpx.HTTPError, ValueError):
        told = (await asker.client.get("/slots")).json()
        if isinstance(told, list):
            busy = sum(bool(slot.get("is_processing")) for slot in told if isinstance(slot, dict))
    return slots if isinstance(slots, int) else None, busy


def _chosen(wanted: str | None, known: list[str], loaded: list[str], remedy: str) -> str:
    if not known:
        raise ClairvoyantError(f"the server has no model; get one first ({remedy})", ExitCode.FAILURE)
    if wanted is not None:
        for name in (wanted, f"{wanted}:latest"):
            if name in known:
                return name
        raise ClairvoyantError(f"the server has no model {wanted!r}; it has {_some(known)}", ExitCode.USAGE)
    if len(known) == 1:
        return known[0]
    if len(loaded) == 1 and loaded[0] in known:
        return loaded[0]
    raise ClairvoyantError(f"which model? name one with --model: {_some(known)}", ExitCode.USAGE)


def _some(names: list[str]) -> str:
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return ", ".join(names[:8]) + more


async def _get(asker: Asker, path: str) -> Mapping[str, Any]:
    try:
        response = await asker.client.get(path)
    except httpx.HTTPError as error:
        raise asker.unreachable(error) from None
    return _object(asker, response)


async def _post(asker: Asker, path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
    try:
        response = await asker.client.post(path, json=dict(body))
    except httpx.HTTPError as error:
        raise asker.unreachable(error) from None
    return _object(asker, response)


def _object(asker: Asker, response: httpx.Response) -> Mapping[str, Any]:
    if response.status_code != 200:
        raise asker.refused(response)
    try:
        said = response.json()
    except ValueError:
        said = None
    if not isinstance(said, dict):
        raise ClairvoyantError(f"{asker.target.url} does not answer like {asker.target.backend}")
    return said
