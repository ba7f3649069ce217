"""mlx_lm.server (mlx_lm/server.py), for MLX models, mostly on Macs.

It has the slots of its command line, else four. More share its decoding so thinly that short answers wait for
long ones; its cache has ten prompts (`--prompt-cache-size`).
"""

from typing import ClassVar

from clairvoyant_cli.backends.adapter import Adapter, Found
from clairvoyant_cli.backends.prober import Ask
from clairvoyant_cli.protocols import probes
from clairvoyant_cli.protocols.routes import Family


class MlxLm(Adapter):
    """Answers HTTP/1.0 without keep-alive. Unstreamed answers go on when their client has left."""

    name = "mlx-lm"
    title = "mlx_lm.server"
    usual_ports = (8080,)
    start_command = "mlx_lm.server --model MODEL"
    get_model_command = "mlx_lm.server --model MODEL"
    SPEAKS = frozenset((Family.OPENAI,))
    KNOWN_BY_PORT = False
    RUNS_ON_S = 600.0
    USUAL_SLOTS: ClassVar[int | None] = 4
    PROCESS_NAMES = ("python", "Python", "mlx_lm", "vllm-mlx")
    SLOTS_FLAGS = ("--decode-concurrency",)
    health_path = "/health"  # it searches the cache of models for each list of them

    async def identify(self, ask: Ask, url: str, prefix: str) -> Found | None:
        """Know it by its models, which nobody owns, and by how it answers at an unknown path: as JSON that is
        none. Starlette, say, answers in plain text.
        """
        listed = await ask(self.models_path)
        models = probes.openai_models(listed.body)
        # It answers with nothing where no model was ever downloaded, as with `--model DIRECTORY` alone.
        nothing = (listed.status, listed.text) == (200, b"")
        if not nothing and (models is None or any(model.owner for model in models)):
            return None
        return Found(self, url, prefix) if await self.is_still(ask) else None

    async def is_still(self, ask: Ask) -> bool:
        unknown = await ask("/props")
        is_json = unknown.headers.get(b"content-type", b"").startswith(b"application/json")
        return is_json and (unknown.status, unknown.text) == (404, b"Not Found")


KIND = MlxLm()
