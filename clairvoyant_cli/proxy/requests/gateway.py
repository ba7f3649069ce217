"""Routes each request: to the control API, straight to a server, or through the queue."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from clairvoyant_cli.http.request import Request
from clairvoyant_cli.proxy.queue.exchange import Exchange
from clairvoyant_cli.proxy.requests.admission import Admission, PassOn
from clairvoyant_cli.proxy.requests.passthrough import Passthrough
from clairvoyant_cli.proxy.requests.serving import Serving

CONTROL_PREFIX = "/_clairvoyant/"


@dataclass(slots=True)
class Gateway:
    """Handles each request that the listener receives; `control` serves the daemon's own routes."""

    admission: Admission
    serving: Serving
    passing: Passthrough
    control: Callable[[Request], Awaitable[None]]

    async def handle(self, request: Request) -> None:
        if request.head.path.startswith(CONTROL_PREFIX):
            await self.control(request)
            return
        admitted = await self.admission.admit(request)
        if isinstance(admitted, Exchange):
            await self.serving.serve(admitted, request)
        elif isinstance(admitted, PassOn):
            self.serving.stats.passed_through += 1
            await self.passing.pass_on(request, admitted.route, admitted.model)
        else:
            self.serving.refusals.send(request, admitted.route, admitted.refusal)
