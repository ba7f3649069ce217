"""SMG, the router that began as SGLang's (lightseekorg/smg, model_gateway)."""

from typing import ClassVar

from clairvoyant_cli.backends.adapter import Adapter, Turn
from clairvoyant_cli.backends.priority import Priority
from clairvoyant_cli.backends.prober import Ask
from clairvoyant_cli.protocols import probes
from clairvoyant_cli.protocols.probes import EngineMetrics

VERSION_PREFIX = "smg-"


class Smg(Adapter):
    """Orders its queue by four classes, and by arrival within each.

    `system` and `interactive` stop running requests of the classes below, so only the other two are used.
    """

    name = "smg"
    title = "SMG"
    usual_ports = (30000,)
    start_command = "smg launch --worker-urls URL --priority-scheduler-enabled"
    PRIORITY: ClassVar[Priority | None] = Priority(
        "--priority-scheduler-enabled",
        EngineMetrics("smg_scheduler_inflight", "smg_scheduler_queue_depth", port=29000),
        headers=(b"x-smg-priority",),
        from_arrival=True,
        classes=(b"default", b"bulk"),
        orders=(b"x-smg-priority",),
        session_header=b"x-smg-routing-key",
        dropped_header=b"x-smg-error-code",
    )
    KNOWN_BY_PORT = False
    TURN = Turn.ROUTER

    async def version(self, ask: Ask) -> str | None:
        """Return its own version: it passes on other questions to its workers."""
        version = probes.version_of((await ask("/get_loads")).body) or ""
        return version.removeprefix(VERSION_PREFIX) if version.startswith(VERSION_PREFIX) else None


KIND = Smg()
