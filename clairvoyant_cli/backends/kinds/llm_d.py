"""llm-d's endpoint picker behind Envoy or another gateway (llm-d/llm-d-router, pkg/epp)."""

from typing import ClassVar

from clairvoyant_cli.backends.adapter import Adapter, Found, Turn
from clairvoyant_cli.backends.priority import Priority
from clairvoyant_cli.backends.prober import Ask
from clairvoyant_cli.protocols.probes import EngineMetrics

SEEN_BY_PICKER = b"x-went-into-resp-headers"


class LlmD(Adapter):
    """Orders its queue by arrival plus the milliseconds that a request brings. Those without come last."""

    name = "llm-d"
    title = "llm-d"
    usual_ports = ()
    start_command = "epp --config-file CONFIG"
    PRIORITY: ClassVar[Priority | None] = Priority(
        "flow control and slo-deadline-ordering-policy",
        EngineMetrics("llm_d_epp_request_running", "llm_d_epp_flow_control_queue_size", port=9090),
        headers=(b"x-llm-d-slo-ttft-ms", b"x-slo-ttft-ms"),
        from_arrival=True,
        orders=(b"x-llm-d-", b"x-slo-", b"x-gateway-"),
        client_header=b"x-llm-d-inference-fairness-id",
        dropped_header=b"x-llm-d-request-dropped-reason",
    )
    KNOWN_BY_PORT = False
    TURN = Turn.ROUTER

    async def identify(self, ask: Ask, url: str, prefix: str) -> Found | None:
        """Know it by a header of its answers, which come from its workers otherwise."""
        listing = await ask(self.models_path)
        return Found(self, url, prefix) if SEEN_BY_PICKER in listing.headers else None


KIND = LlmD()
