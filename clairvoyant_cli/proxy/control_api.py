"""The daemon's own routes under /_clairvoyant/: its state, its metrics, and the actions on it."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request as WebRequest
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route as WebRoute

from clairvoyant_cli import __version__
from clairvoyant_cli.errors import ClairvoyantError
from clairvoyant_cli.http.asgi import serve_asgi
from clairvoyant_cli.http.heads import ResponseHead
from clairvoyant_cli.http.request import Request
from clairvoyant_cli.http.status import reason_of
from clairvoyant_cli.protocols.printable import printable
from clairvoyant_cli.proxy.access.keys import Access, bearer_of
from clairvoyant_cli.proxy.access.origins import from_our_own_page
from clairvoyant_cli.proxy.observing.metrics import Metrics
from clairvoyant_cli.proxy.observing.queue_rows import MAX_ROWS, Window
from clairvoyant_cli.proxy.observing.request_stats import RequestStats
from clairvoyant_cli.proxy.observing.snapshots import SnapshotBuilder
from clairvoyant_cli.proxy.observing.stepwise_drawing import Drawings, Steps
from clairvoyant_cli.proxy.queue.operation import Operation
from clairvoyant_cli.proxy.servers.server_actions import SECRETS, BackendActions, InvalidError, RefusedError
from clairvoyant_cli.scheduler.policy import SERVABLE
from clairvoyant_cli.scheduler.starvation import tau_from_setting
from clairvoyant_cli.scheduler.urgency import LEVELS, Said
from clairvoyant_cli.state.client import ACTIONS, AUTO, PREFIX, encode
from clairvoyant_cli.state.selection import SORTS, Order
from clairvoyant_cli.state.source import ON_REQUEST
from clairvoyant_cli.state.state_history import Past

EVENT_EVERY_S = 0.08
"""Snapshots a second on the event stream are bounded by this; changes in between are one change."""

MAX_EVERY_S = 5.0
"""A reader that has use for fewer says so (`every_ms`), up to this: it takes one that is silent for gone."""

HEARTBEAT_S = 1.0
"""A stream without changes still ticks, so that ages and elapsed times move."""


OUTLOOK_SHARE = 4
"""An outlook, for which an operator waits, takes a fifth of the daemon's time at most."""

MAX_FILTER_CHARS = 200


class Changes:
    """Lets any number of listeners wait for the next change of state."""

    def __init__(self) -> None:
        self._next = asyncio.Event()

    def note(self) -> None:
        """Something has changed."""
        self._next.set()
        self._next = asyncio.Event()

    async def wait(self, timeout_s: float) -> None:
        """Return at the next change, or after `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._next.wait()
        except TimeoutError:
            return


@dataclass(slots=True)
class Actions:
    """What an operator may do to a running daemon; each returns what is said back."""

    operation: Operation
    stats: RequestStats
    backends: BackendActions
    reload: Callable[[], str]

    async def run(self, action: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Carry out an action by name."""
        if action in ON_REQUEST:
            result = self._on_request(action, arguments)
        elif action == "backend":
            result = await self.backends.run(arguments)
        elif action == "model":
            result = await self.backends.keep_model(arguments)
        else:
            result = self._on_daemon(action, arguments)
        self.stats.journal.event(logging.INFO, f"operator: {action} {_plain(arguments)}".rstrip())
        self.operation.dispatcher.moved()
        return result

    def _on_request(self, action: str, arguments: dict[str, Any]) -> dict[str, Any]:
        job_id = arguments.get("id")
        if not isinstance(job_id, str):
            raise InvalidError(f'{action} needs the request\'s id, as {{"id": "..."}}')
        if not self._do(action, job_id, arguments):
            raise RefusedError(f"no request {job_id} that {action} could apply to; it may have ended")
        return {"id": job_id, "done": action}

    def _do(self, action: str, job_id: str, arguments: dict[str, Any]) -> bool:
        dispatcher = self.operation.dispatcher
        scheduler, now = dispatcher.scheduler, self.stats.journal.clock()
        if action == "cancel":
            done = dispatcher.cancel(job_id)
        elif action == "promote":
            done = scheduler.promote(job_id, now)
        elif action == "hold":
            done = scheduler.hold(job_id, now)
        elif action == "release":
            done = scheduler.release(job_id, now)
        elif action == "urgency":
            level, exchange = int(_number(arguments, "level", 0, LEVELS - 1)), dispatcher.live.get(job_id)
            done = exchange is not None and dispatcher.set_urgency(exchange, level, Said.OPERATOR)
        else:
            done = scheduler.reprioritise(job_id, int(_number(arguments, "priority", -100, 100)), now)
        return done

    def _on_daemon(self, action: str, arguments: dict[str, Any]) -> dict[str, Any]:
        operation = self.operation
        if action == "pause":
            operation.dispatcher.scheduler.pause()
        elif action == "resume":
            if operation.stopping:
                raise RefusedError("the daemon is going down; start it again")
            operation.resume()
        elif action == "drain":
            operation.draining = True
        elif action == "reload":
            return self._reload()
        elif action == "policy":
            name = str(arguments.get("policy"))
            if name not in SERVABLE:
                raise InvalidError(f"policy must be one of {', '.join(SERVABLE)}")
            operation.choose_policy(name)
        elif arguments.get("tau_s") == AUTO:
            operation.release_tau()
        else:
            operation.choose_tau(tau_from_setting(_number(arguments, "tau_s", 0, 86_400)))
        return {"done": action}

    def _reload(self) -> dict[str, Any]:
        try:
            return {"done": "reload", "note": self.reload()}
        except ClairvoyantError as error:
            raise RefusedError(str(error)) from None


def _number(arguments: dict[str, Any], name: str, low: float, high: float) -> float:
    value = arguments.get(name)
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise InvalidError(f"{name} must be a number")
    if not low <= value <= high:
        raise InvalidError(f"{name} must be between {low:g} and {high:g}")
    return value


def _window(request: WebRequest) -> Window:
    """Return the part of the queue asked for, as `?from=1001&rows=200`; what is no number is not heard. Of
    what waits, `filter`, or `kind` and `name` of a group, leave out the others; `by` sorts it, `reverse=1`
    the other way round.
    """
    asked = request.query_params
    by = asked.get("by", "")
    words = asked.get("filter", "")[:MAX_FILTER_CHARS]
    order = Order(by if by in SORTS else "", asked.get("reverse") == "1", words)
    rows = min(_asked(request, "rows", MAX_ROWS), MAX_ROWS)
    return Window(max(1, _asked(request, "from", 1)), rows, order)


def _asked(request: WebRequest, name: str, otherwise: int) -> int:
    text = request.query_params.get(name, "")
    return int(text[:9]) if text.isascii() and text.isdigit() else otherwise


def _is_json(content_type: bytes) -> bool:
    # The type itself: `text/plain; x=json` is one that a page may send to any site.
    return content_type.split(b";", 1)[0].strip().lower() == b"application/json"


def _plain(arguments: dict[str, Any]) -> str:
    shown = (each for each in arguments.items() if each[0] not in SECRETS)
    given = (f"{key}={value}" for key, value in shown if isinstance(value, str | int | float))
    return printable(" ".join(given), 120)


class ControlApi:
    """The Starlette application behind the control prefix, and the guard before it."""

    def __init__(
        self,
        access: Access,
        actions: Actions,
        snapshots: SnapshotBuilder,
        changes: Changes,
        metrics: Metrics,
        past: Past,
    ) -> None:
        self._access = access
        self._past = past
        self._actions = actions
        self._snapshots = snapshots
        self._changes = changes
        clock = actions.stats.journal.clock
        self._states = Drawings[Window](self._draw_state, clock)
        self._metrics = Drawings[None](lambda _: self._draw_metrics(metrics), clock)
        self._outlooks = Drawings[None](lambda _: self._draw_outlook(), clock, share=OUTLOOK_SHARE)
        self._stopped = asyncio.Event()
        self._app = Starlette(
            routes=[
                WebRoute(f"{PREFIX}/health", self._health),
                WebRoute(f"{PREFIX}/state", self._state),
                WebRoute(f"{PREFIX}/events", self._events),
                WebRoute(f"{PREFIX}/metrics", self._metrics_text),
                WebRoute(f"{PREFIX}/outlook", self._outlook),
                WebRoute(f"{PREFIX}/past", self._past_page),
                WebRoute(f"{PREFIX}/actions/{{action}}", self._act, methods=["POST"]),
            ]
        )

    def stop(self) -> None:
        """End the streams of events: nothing more will happen."""
        if not self._stopped.is_set():
            self._stopped.set()
            self._changes.note()

    async def __call__(self, request: Request) -> None:
        """Serve a request under the prefix, if it may be."""
        refused = self._guard(request)
        if refused is not None:
            status, why = refused
            head = ResponseHead(status, reason_of(status), [(b"Content-Type", b"application/json")])
            request.connection.respond(head, msgspec.json.encode({"error": why}))
            return
        await serve_asgi(self._app, request)

    def _guard(self, request: Request) -> tuple[int, str] | None:
        head = request.head
        host = head.authority.decode("latin-1")
        if not self._access.origins.is_ours(host):
            return 403, f"unknown Host {printable(host)!r}; allow it with --allow-host"
        if not from_our_own_page(head):
            return 403, "requests from other sites' pages are refused"
        if head.path == f"{PREFIX}/health":
            return None
        not_admin = self._access.admin_objection(head)
        if not_admin is not None:
            return 401, not_admin
        if head.method == b"POST" and not _is_json(head.get(b"content-type") or b""):
            return 400, "actions take a JSON body with Content-Type: application/json"
        return None

    async def _health(self, request: WebRequest) -> Response:
        # Asked every few seconds, and by anybody: not worth drawing the whole queue for.
        states = {worker.name: worker.backend.state for worker in self._snapshots.pool}
        mode = self._actions.operation.mode
        return JSONResponse({"status": mode, "version": __version__, "backends": states})

    def _draw_state(self, window: Window) -> Steps[bytes]:
        state = yield from self._snapshots.drawing(window)
        yield
        return encode(state)

    def _draw_metrics(self, metrics: Metrics) -> Steps[bytes]:
        state = yield from self._snapshots.drawing(Window(rows=0, explains=False))
        yield
        return metrics.render(state)

    async def _state(self, request: WebRequest) -> Response:
        return Response(await self._states.next(_window(request)), media_type="application/json")

    async def _events(self, request: WebRequest) -> Response:
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        if request.method == "HEAD":  # whose answer has no body that could end it
            return Response(headers=headers, media_type="text/event-stream")
        every_s = min(max(_asked(request, "every_ms", 0) / 1e3, EVENT_EVERY_S), MAX_EVERY_S)
        events = self._stream(_window(request), every_s)
        return StreamingResponse(events, media_type="text/event-stream", headers=headers)

    async def _stream(self, window: Window, every_s: float) -> AsyncIterator[bytes]:
        while not self._stopped.is_set():
            yield b"event: snapshot\ndata: " + await self._states.next(window) + b"\n\n"
            with suppress(TimeoutError):
                async with asyncio.timeout(every_s):
                    await self._stopped.wait()
            await self._changes.wait(HEARTBEAT_S)

    async def _metrics_text(self, request: WebRequest) -> Response:
        return Response(await self._metrics.next(None), media_type=Metrics.CONTENT_TYPE)

    async def _outlook(self, request: WebRequest) -> Response:
        return Response(await self._outlooks.next(None), media_type="application/json")

    def _draw_outlook(self) -> Steps[bytes]:
        outlook = []
        for policy in SERVABLE:
            outlook.append(self._actions.operation.outlook(policy))
            yield
        return encode(outlook)

    async def _past_page(self, request: WebRequest) -> Response:
        """Answer with the newest page of the past that begins before `?before=`, in epoch seconds."""
        try:
            before = float(request.query_params.get("before", "inf"))
        except ValueError:
            before = inf
        return Response(self._past.page_before(before), media_type="application/x-ndjson")

    async def _act(self, request: WebRequest) -> Response:
        action = request.path_params["action"]
        if action not in ACTIONS:
            return JSONResponse({"error": f"unknown action; there are {', '.join(ACTIONS)}"}, 404)
        if action == "backend":
            token = bearer_of(request.headers.get("authorization", "").encode("latin-1"))
            not_operator = self._access.operator_objection(token)
            if not_operator is not None:
                return JSONResponse({"error": not_operator}, 401)
        try:
            arguments = msgspec.json.decode(await request.body() or b"{}", type=dict[str, Any])
            return JSONResponse(await self._actions.run(action, arguments))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            # msgspec says by the latter two what is not UTF-8, and what is nested too deeply.
            return JSONResponse({"error": "the body is not a JSON object, or nested too deeply"}, 400)
        except RefusedError as error:
            return JSONResponse({"error": str(error)}, error.status)
