"""SGLang (python/sglang/srt/entrypoints/http_server.py)."""

from dataclasses import replace
from typing import ClassVar

from clairvoyant_cli.backends.adapter import LISTED_OR_LOCKED, Adapter, Found
from clairvoyant_cli.backends.continuation import GO_ON
from clairvoyant_cli.backends.priority import UNKNOWN, Heeding, Priority
from clairvoyant_cli.backends.prober import Ask
from clairvoyant_cli.protocols import probes
from clairvoyant_cli.protocols.probes import EngineMetrics
from clairvoyant_cli.protocols.routes import Family

INFO_PATHS = ("/get_server_info", "/server_info")  # the second is its newer name


class SgLang(Adapter):
    """Answers many requests at once, and orders its own queue by priority if it was started so."""

    name = "sglang"
    title = "SGLang"
    usual_ports = (30000,)
    start_command = "python -m sglang.launch_server --model-path MODEL"
    SPEAKS = frozenset((Family.OPENAI, Family.ANTHROPIC, Family.VLLM))
    CONTINUES = (GO_ON,)
    PRIORITY: ClassVar[Priority | None] = Priority(
        "--enable-priority-scheduling",
        EngineMetrics(
            "sglang:num_running_reqs",
            "sglang:num_queue_reqs",
            "sglang:num_retracted_requests_total",
            "sglang:token_usage",
            counts_twice=True,
        ),
        # A running answer makes way for one that is better by more than ten (its preemption threshold): so
        # many seconds, then. And its metrics keep a series for each number that they have seen.
        per_s=1,
        lower_first=False,
    )
    KNOWN_BY_PORT = False

    async def identify(self, ask: Ask, url: str, prefix: str) -> Found | None:
        if (await ask(self.models_path)).status not in LISTED_OR_LOCKED:
            return None
        return await super().identify(ask, url, prefix)

    async def heeding(self, ask: Ask, local_port: int | None) -> Heeding:
        for path in reversed(INFO_PATHS):
            queue = probes.sglang_queue((await ask(path)).body)
            if queue is None:
                continue
            if not queue.by_priority:
                return Heeding(known=True, why="not enabled")
            if queue.counts_each:
                why = "with --enable-metrics it keeps a series per priority; start it without"
                return Heeding(known=True, why=why)
            assert self.PRIORITY is not None  # noqa: S101 - declared above
            priority = replace(self.PRIORITY, lower_first=queue.lower_first)
            return Heeding(known=True, priority=priority, why="reported by the server")
        return UNKNOWN

    async def version(self, ask: Ask) -> str | None:
        for path in INFO_PATHS:
            version = probes.sglang_version((await ask(path)).body)
            if version is not None:
                return version
        return None


KIND = SgLang()
