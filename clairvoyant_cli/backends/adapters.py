"""The servers whose behaviour is known; LM Studio and Jan, which differ little, are here."""

from clairvoyant_cli.backends.adapter import Adapter, Found, Status
from clairvoyant_cli.backends.dynamo import Dynamo
from clairvoyant_cli.backends.llamacpp import LlamaCpp
from clairvoyant_cli.backends.llm_d import LlmD
from clairvoyant_cli.backends.mlx import MlxLm, VllmMlx
from clairvoyant_cli.backends.ollama import Ollama
from clairvoyant_cli.backends.prober import Ask
from clairvoyant_cli.backends.sglang import SgLang
from clairvoyant_cli.backends.smg import Smg
from clairvoyant_cli.backends.vllm import Vllm
from clairvoyant_cli.http.heads import ResponseHead
from clairvoyant_cli.protocols import probes
from clairvoyant_cli.protocols.errors import Refusal, response
from clairvoyant_cli.protocols.probes import ProbeAnswer
from clairvoyant_cli.protocols.routes import Route

NO_KEY = b"Invalid or missing authorization token"  # Jan's refusal (src-tauri, proxy.rs)


class LmStudio(Adapter):
    """Loads models on demand. Since 0.4 it reports those that are loaded, and their slots, which share one KV
    cache: when that is full, all answers end with an error (lmstudio.ai/docs).
    """

    name = "lmstudio"
    title = "LM Studio"
    usual_ports = (1234,)
    start_command = "lms server start"
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


class Jan(Adapter):
    """Passes requests on to a llama.cpp server for each model; wants a key, and errs in plain text."""

    name = "jan"
    title = "Jan"
    usual_ports = (1337,)
    start_command = "jan serve    # or Settings, Local API Server"
    REPORTS_LOADING = False

    async def identify(self, ask: Ask, url: str, prefix: str) -> Found | None:
        """Know it by its refusal of those who have no key; with one it answers like any other."""
        answer = await ask(self.models_path)
        return Found(self, url, prefix) if answer.status == 401 and NO_KEY in (answer.text or b"") else None

    def render(self, refusal: Refusal, route: Route) -> tuple[ResponseHead, bytes]:
        """Return a refusal in plain text."""
        return response(refusal, b"text/plain", refusal.message.encode())


ADAPTERS: tuple[Adapter, ...] = (
    LlmD(),  # first: it passes most questions on to a worker of any kind
    *(Ollama(), LlamaCpp(), LmStudio(), Jan()),
    *(Dynamo(), Smg()),  # before their workers, too
    *(Vllm(), SgLang(), MlxLm(), VllmMlx()),
)
"""In the order in which a server is asked whether it is one, and in which one is chosen if several run."""

OTHER = Adapter()  # any other OpenAI-compatible server


def adapter_of(name: str) -> Adapter:
    """Return the adapter of that name, as snapshots, profiles and the history have it."""
    return next((adapter for adapter in ADAPTERS if adapter.name == name), OTHER)
