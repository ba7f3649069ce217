"""Which model a server has to offer, whether it is loaded, and what else it tells of itself."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from clairvoyant_cli.calibrate.client import Client
from clairvoyant_cli.errors import ClairvoyantError, ExitCode
from clairvoyant_cli.protocols.probes import OfferedModel
from profiles.records import Served, place_of


@dataclass(frozen=True, slots=True)
class Survey:
    """What a server tells. `busy` counts the requests of others in it, None where it does not say."""

    served: Served
    resident: bool = False
    slots: int | None = None
    busy: int | None = None


async def survey(client: Client, wanted: str | None) -> Survey:
    """Find the model to ask, and set it as the client's; ClairvoyantError if there is none."""
    found, adapter = client.found, client.found.adapter
    offered = await adapter.offered_models(client.get)
    if offered is None:
        raise ClairvoyantError(f"{found.url} does not answer like {adapter.name}")
    busy = None
    with suppress(ClairvoyantError):
        slots = await adapter.busy_slots(client.get)
        busy = None if slots is None else len(slots)
    local = [model for model in offered if not model.remote]
    model = _chosen(wanted, local, adapter.get_model_command)
    client.model = model.name
    served = Served(
        backend=adapter.name,
        model=model.name,
        url=found.base_url,
        place=place_of(found.url),
        version=found.version,
        digest=model.digest,
        quantisation=model.quantisation,
        parameters=model.parameters,
    )
    return Survey(served, model.loaded, found.slots, busy)


async def load_model(client: Client, *, unload_first: bool) -> float | None:
    """Have the server load the model and return the seconds it took; None where it loads by itself."""
    adapter = client.found.adapter
    if not adapter.UNLOADS_MODELS:
        return None
    if unload_first:
        await client.post(*adapter.keep_request(client.model, loaded=False))
    begun_s = client.clock()
    await client.post(*adapter.keep_request(client.model, loaded=True))
    return client.clock() - begun_s


def _chosen(wanted: str | None, offered: Sequence[OfferedModel], remedy: str) -> OfferedModel:
    known = {model.name: model for model in offered}
    if not known:
        raise ClairvoyantError(f"the server has no model; get one first ({remedy})", ExitCode.FAILURE)
    if wanted is not None:
        for name in (wanted, f"{wanted}:latest"):
            if name in known:
                return known[name]
        raise ClairvoyantError(
            f"the server has no model {wanted!r}; it has {_some(list(known))}", ExitCode.USAGE
        )
    for choice in (list(known.values()), [model for model in known.values() if model.loaded]):
        if len(choice) == 1:
            return choice[0]
    raise ClairvoyantError(f"which model? name one with --model: {_some(list(known))}", ExitCode.USAGE)


def _some(names: list[str]) -> str:
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return ", ".join(names[:8]) + more
