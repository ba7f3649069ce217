"""vLLM (vllm/entrypoints/openai)."""

from clairvoyant_cli.backends.adapter import LISTED_OR_LOCKED, Adapter, Found
from clairvoyant_cli.backends.asking import Ask
from clairvoyant_cli.backends.continuation import GO_ON
from clairvoyant_cli.protocols import probes


class Vllm(Adapter):
    """Answers many requests at once, and orders its own queue by priority if it was started so."""

    name = "vllm"
    title = "vLLM"
    usual_ports = (8000,)
    start_command = "vllm serve MODEL"
    CANCELS = True
    CONTINUES = (GO_ON,)
    TAKES_PRIORITY = True
    SETS_LENGTH = True
    KNOWN_BY_PORT = False

    async def identify(self, ask: Ask, url: str, prefix: str) -> Found | None:
        """Know it by its version's route, which LocalAI has, too, and by who owns its models."""
        listing = await ask(self.models_path)
        models = probes.openai_models(listing.body)
        if listing.status not in LISTED_OR_LOCKED or (models and models[0].owner != self.name):
            return None
        version = await self.version(ask)
        return None if version is None else Found(self, url, prefix, version)

    async def version(self, ask: Ask) -> str | None:
        """Return its version; None if this is another server, "" if it does not say."""
        return probes.version_of((await ask("/version")).body)


ADAPTER = Vllm()
