"""LM Studio (lmstudio.ai/docs)."""

from clairvoyant_cli.backends.adapter import Adapter, Found
from clairvoyant_cli.backends.prober import Ask
from clairvoyant_cli.protocols import probes


class LmStudio(Adapter):
    """Loads models on demand, but reports neither slots nor loaded models."""

    name = "lmstudio"
    title = "LM Studio"
    usual_ports = (1234,)
    start_command = "lms server start"
    REPORTS_LOADING = False

    async def identify(self, ask: Ask, url: str, prefix: str) -> Found | None:
        """Know it by its own list of models. It answers 200 on any route, but with an error."""
        listed = probes.openai_models((await ask("/api/v0/models")).body)
        return None if listed is None else Found(self, url, prefix)


ADAPTER = LmStudio()
