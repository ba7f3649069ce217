"""NVIDIA Dynamo's frontend (lib/llm/src/http/service, lib/kv-router)."""

from typing import ClassVar

from clairvoyant_cli.backends.adapter import Adapter, Found, Turn
from clairvoyant_cli.backends.priority import Priority
from clairvoyant_cli.backends.prober import Ask
from clairvoyant_cli.protocols import probes
from clairvoyant_cli.protocols.probes import EngineMetrics

TITLE = "NVIDIA Dynamo OpenAI Frontend"


class Dynamo(Adapter):
    """Orders its router's queue by arrival, less a head start in whole seconds that a request brings.

    It refuses bodies with fields that it does not know, such as vLLM's `priority`.
    """

    name = "dynamo"
    title = "Dynamo"
    usual_ports = (8000,)
    start_command = "python -m dynamo.frontend --router-mode kv --router-queue-threshold 0"
    PRIORITY: ClassVar[Priority | None] = Priority(
        "--router-mode kv --router-queue-threshold 0",
        EngineMetrics(
            "dynamo_frontend_inflight_requests", "dynamo_frontend_queued_requests", counts_all=True
        ),
        per_s=1,
        lower_first=False,
        headers=(b"x-dynamo-request-priority", b"x-dynamo-request-strict-priority"),
        has_levels=True,
        orders=(b"x-dynamo-request-",),
        from_arrival=True,
    )
    KNOWN_BY_PORT = False
    TURN = Turn.ROUTER

    async def identify(self, ask: Ask, url: str, prefix: str) -> Found | None:
        """Know it by who owns its models, and the title of its API."""
        models = probes.openai_models((await ask(self.models_path)).body)
        if models is None or (models and models[0].owner != "nvidia"):
            return None
        return await super().identify(ask, url, prefix)

    async def version(self, ask: Ask) -> str | None:
        return probes.openapi_version((await ask("/openapi.json")).body, TITLE)


KIND = Dynamo()
