"""llama-cpp-python's server, 0.3.36 (llama_cpp/server/app.py)."""

from clairvoyant_cli.backends.adapter import Adapter, Status, Turn
from clairvoyant_cli.backends.prober import Ask
from clairvoyant_cli.protocols import probes
from clairvoyant_cli.protocols.model_settings import ModelSettings
from clairvoyant_cli.protocols.routes import ROUTES, Family

DESCRIPTION, TITLE = "/openapi.json", "🦙 llama.cpp Python API"


class LlamaCppPython(Adapter):
    """Gives one answer at a time. By default it ends a running stream, without an error, when any request
    comes that needs the model, even one for the list of models. So only its description is asked for.
    """

    name = "llama-cpp-python"
    title = "llama-cpp-python"
    usual_ports = (8000,)
    start_command = "python -m llama_cpp.server --model model.gguf --interrupt_requests False"
    get_model_command = start_command
    LIMITS = (
        "unless it is started with --interrupt_requests False, any other request cuts a running stream "
        "short, so no client may bypass the proxy; listing models or counting tokens through the proxy "
        "reaches it as well"
    )
    SPEAKS = frozenset((Family.OPENAI,))
    routes = ROUTES | {"/v1/engines/copilot-codex/completions": ROUTES["/v1/completions"]}
    TURN = Turn.DISTURBED
    CONTINUES = ()
    ANSWERS_ANY_MODEL = True
    KNOWN_BY_PORT = False
    health_path = DESCRIPTION

    async def version(self, ask: Ask) -> str | None:
        return probes.openapi_version((await ask(DESCRIPTION)).body, TITLE)

    async def list_models(self, ask: Ask, status: Status) -> None:
        """Leave them unknown: it answers for any name."""

    async def settings(self, ask: Ask, model: str, version: str) -> ModelSettings | None:
        return None


KIND = LlamaCppPython()
