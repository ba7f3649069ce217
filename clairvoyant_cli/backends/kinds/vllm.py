"""vLLM (vllm/entrypoints/openai, vllm/v1/core/sched)."""

import asyncio
from typing import ClassVar

from clairvoyant_cli.backends.adapter import LISTED_OR_LOCKED, Adapter, Found
from clairvoyant_cli.backends.continuation import GO_ON
from clairvoyant_cli.backends.priority import UNKNOWN, Heeding, Priority
from clairvoyant_cli.backends.prober import Ask
from clairvoyant_cli.backends.process_inspection import values_of
from clairvoyant_cli.protocols import probes
from clairvoyant_cli.protocols.probes import EngineMetrics
from clairvoyant_cli.protocols.routes import Family

POLICY_FLAGS = ("--scheduling-policy", "--scheduling_policy")


class Vllm(Adapter):
    """Batches requests, and orders its queue by priority if it was started so.

    The V1 engine silently accepts priorities otherwise; only its command line shows. Anthropic's messages
    have no such field there and count as priority 0 (vllm/entrypoints/anthropic/protocol.py).
    """

    name = "vllm"
    title = "vLLM"
    usual_ports = (8000,)
    start_command = "vllm serve MODEL"
    SPEAKS = frozenset((Family.OPENAI, Family.ANTHROPIC, Family.VLLM))
    CONTINUES = (GO_ON,)
    PROCESS_NAMES = ("python", "vllm", "VLLM")
    SLOTS_FLAGS = ("--max-num-seqs", "--max_num_seqs")
    PRIORITY: ClassVar[Priority | None] = Priority(
        "--scheduling-policy priority",
        EngineMetrics(
            "vllm:num_requests_running",
            "vllm:num_requests_waiting",
            "vllm:num_preemptions_total",
            "vllm:kv_cache_usage_perc",
        ),
    )
    KNOWN_BY_PORT = False

    async def identify(self, ask: Ask, url: str, prefix: str) -> Found | None:
        """Know it by its version's route, which LocalAI has, too, and by who owns its models."""
        listing = await ask(self.models_path)
        models = probes.openai_models(listing.body)
        if listing.status not in LISTED_OR_LOCKED or (models and models[0].owner != self.name):
            return None
        return await super().identify(ask, url, prefix)

    async def version(self, ask: Ask) -> str | None:
        return probes.version_of((await ask("/version")).body)

    async def heeding(self, ask: Ask, local_port: int | None) -> Heeding:
        """Read it from the command line of its process."""
        words = [] if local_port is None else await asyncio.to_thread(self.command_line, local_port)
        policies = list(values_of(words, *POLICY_FLAGS))
        if not words or (not policies and any(values_of(words, "--config"))):
            return UNKNOWN
        if policies and policies[-1] == "priority":
            return Heeding(known=True, priority=self.PRIORITY, why="enabled on its command line")
        return Heeding(known=True, why="not enabled")


KIND = Vllm()
