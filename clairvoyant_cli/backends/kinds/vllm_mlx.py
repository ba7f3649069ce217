"""vllm-mlx (vllm_mlx/server.py), for MLX models, mostly on Macs."""

from clairvoyant_cli.backends.adapter import Found
from clairvoyant_cli.backends.kinds.mlx_lm import MlxLm
from clairvoyant_cli.backends.prober import Ask
from clairvoyant_cli.protocols import probes
from clairvoyant_cli.protocols.routes import Family


class VllmMlx(MlxLm):
    """Without `--continuous-batching` it answers a second request with an error."""

    name = "vllm-mlx"
    title = "vllm-mlx"
    usual_ports = (8000,)
    start_command = "vllm-mlx serve MODEL"
    get_model_command = "vllm-mlx serve MODEL"
    SPEAKS = frozenset((Family.OPENAI, Family.ANTHROPIC))
    SLOTS_FLAGS = ("--max-num-seqs",)
    USUAL_SLOTS = None

    async def identify(self, ask: Ask, url: str, prefix: str) -> Found | None:
        return Found(self, url, prefix) if await self.is_still(ask) else None

    async def is_still(self, ask: Ask) -> bool:
        models = probes.openai_models((await ask(self.models_path)).body)
        return models is not None and [each.owner for each in models[:1]] == [self.name]

    def local_slots(self, port: int) -> int | None:
        batches = "--continuous-batching" in self.command_line(port)
        return super().local_slots(port) if batches else None


KIND = VllmMlx()
