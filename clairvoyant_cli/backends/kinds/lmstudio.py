"""LM Studio (lmstudio.ai/docs)."""

from clairvoyant_cli.backends.adapter import Adapter, Found, Status
from clairvoyant_cli.backends.prober import Ask
from clairvoyant_cli.protocols import probes
from clairvoyant_cli.protocols.probes import ProbeAnswer


class LmStudio(Adapter):
    """Loads models on demand. Since 0.4 it reports those that are loaded, and their slots, which share one KV
    cache: when that is full, all answers end with an error.
    """

    name = "lmstudio"
    title = "LM Studio"
    usual_ports = (1234,)
    start_command = "lms server start"
    TELLS_SLOTS = True
    REPORTS_LOADING = False

    async def identify(self, ask: Ask, url: str, prefix: str) -> Found | None:
        """Know it by its own list of models. It answers 200 on any route, but with an error."""
        listed = probes.openai_models((await ask("/api/v0/models")).body)
        return None if listed is None else Found(self, url, prefix)

    async def inspect(
        self, ask: Ask, status: Status, health: ProbeAnswer, local_port: int | None, *, was_up: bool
    ) -> None:
        status.detail = ""
        listing = await ask("/api/v1/models")
        if listing.status != 200:
            return
        loaded = probes.lmstudio_loaded(listing.body)
        status.models = tuple(model for model, _ in loaded)
        if slots := [each for _, each in loaded if each is not None]:
            status.slots, status.shares_cache = min(slots), True


KIND = LmStudio()
