"""MLX Omni Server, 0.5.3 (src/mlx_omni_server/main.py, chat/openai/router.py)."""

from clairvoyant_cli.backends.adapter import Adapter
from clairvoyant_cli.backends.prober import Ask
from clairvoyant_cli.protocols import probes
from clairvoyant_cli.protocols.routes import Family

DESCRIPTION, TITLE = "/openapi.json", "MLX Omni Server"


class MlxOmniServer(Adapter):
    """Generates on the thread that serves its connections: one answer at a time, no question is answered
    meanwhile, and it does not notice that a client has left.
    """

    name = "mlx-omni-server"
    title = "MLX Omni Server"
    usual_ports = (10240,)
    start_command = "mlx-omni-server"
    get_model_command = "hf download MODEL"
    LIMITS = "an answer goes on when its client has left; a request for another model loads that, too"
    SPEAKS = frozenset((Family.OPENAI, Family.ANTHROPIC))
    KNOWN_BY_PORT = False
    RUNS_ON_S = 600.0

    async def version(self, ask: Ask) -> str | None:
        """Return "": its description has the version of its framework's example."""
        return None if probes.openapi_version((await ask(DESCRIPTION)).body, TITLE) is None else ""


KIND = MlxOmniServer()
