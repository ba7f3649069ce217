"""The way of a request: straight to the control API, straight to a backend, or through the queue."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from clairvoyant_cli.http.loop_turn import READING
from clairvoyant_cli.http.request import Request
from clairvoyant_cli.proxy.admission import Admission, PassOn
from clairvoyant_cli.proxy.exchange import Exchange
from clairvoyant_cli.proxy.forwarding import pass_on
from clairvoyant_cli.proxy.protocols.errors import Refusal
from clairvoyant_cli.proxy.protocols.request_parsing import parse_request
from clairvoyant_cli.proxy.protocols.routes import Route
from clairvoyant_cli.proxy.serving import Serving

CONTROL_PREFIX = "/_clairvoyant/"

Control = Callable[[Request], Awaitable[None]]


@dataclass(slots=True)
class Gateway:
    """Handles each request that the listener hands over. Bodies longer than `body_limit_bytes` are not read
    for a prediction.
    """

    admission: Admission
    serving: Serving
    control: Control
    body_limit_bytes: int = 64 * 1024 * 1024

    async def handle(self, request: Request) -> None:
        """Serve one request to its end."""
        if request.head.path.startswith(CONTROL_PREFIX):
            await self.control(request)
            return
        route = self.admission.route_of(request)
        verdict = self.admission.at_the_door(request, route)
        if isinstance(verdict, Refusal):
            self.admission.refusals.send(request, route, verdict)
            return
        admitted = (
            verdict if isinstance(verdict, PassOn) else await self._read(request, route, verdict.client)
        )
        if isinstance(admitted, Exchange):
            await self.serving.serve(admitted, request)
        elif isinstance(admitted, PassOn):
            await self._pass_on(request, route)
        else:
            self.admission.reject(request, route, admitted)

    async def _read(self, request: Request, route: Route, client: str) -> Exchange | PassOn | Refusal:
        """Read a request's body, and judge it by that."""
        admission = self.admission
        request.schedule()
        pieces = await request.read(self.body_limit_bytes)
        with admission.entering(client) as refusal:
            if refusal is not None:
                return refusal
            parsed = await parse_request(pieces, route, admission.pool.first.backend.kind, client)
            await READING.next()
        if admission.needs_no_slot(parsed):
            request.scheduled = False
            return PassOn()
        with READING:
            return admission.enqueue(request, route, parsed, client)

    async def _pass_on(self, request: Request, route: Route) -> None:
        admission = self.admission
        admission.stats.passed_through += 1
        await pass_on(request, route, admission.pool.first, admission.access, admission.refusals)
