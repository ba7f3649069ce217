"""What servers have in common that answer Ollama's questions, besides OpenAI's, but are not Ollama."""

from collections.abc import Mapping

from clairvoyant_cli.backends.adapter import Adapter, Status, Turn
from clairvoyant_cli.backends.kinds.ollama import full_name
from clairvoyant_cli.backends.prober import Ask
from clairvoyant_cli.protocols import probes
from clairvoyant_cli.protocols.probes import ProbeAnswer
from clairvoyant_cli.protocols.routes import ROUTES, Family, Route


class ImitatesOllama(Adapter):
    """Loads models on demand and lists those loaded as Ollama does. No answer is preempted: a proof on one of
    its APIs says nothing of the other, and it generates when it is asked to render a prompt alone.
    """

    SPEAKS = frozenset((Family.OPENAI, Family.ANTHROPIC, Family.OLLAMA))
    TURN = Turn.IMITATOR
    CONTINUES = ()
    REPORTS_LOADING = False
    SWAPS_MODELS = True
    KNOWN_BY_PORT = False

    async def inspect(
        self, ask: Ask, status: Status, health: ProbeAnswer, local_port: int | None, *, was_up: bool
    ) -> None:
        await super().inspect(ask, status, health, local_port, was_up=was_up)
        before = {model.name for model in status.models}
        status.models = probes.loaded_models((await ask("/api/ps")).body) or ()
        if before:
            status.swaps += sum(model.name not in before for model in status.models)

    def known_as(self, model: str) -> str:
        return full_name(model)


def under(*prefixes: str) -> Mapping[str, Route]:
    """Return all routes, and those of OpenAI's and Anthropic's APIs again below each prefix."""
    return ROUTES | {
        prefix + path: route
        for prefix in prefixes
        for path, route in ROUTES.items()
        if path.startswith("/v1/")
    }
