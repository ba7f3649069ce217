"""The daemon's own routes under /_clairvoyant/: its state, its metrics, and the actions on it."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from typing import Any

import msgspec

from clairvoyant_cli import __version__
from clairvoyant_cli.errors import ClairvoyantError
from clairvoyant_cli.http.heads import RequestHead
from clairvoyant_cli.http.request import Request
from clairvoyant_cli.http.routes import EVENTS, JSON, Answer, Asked, Routes, as_json
from clairvoyant_cli.protocols.printable import printable
from clairvoyant_cli.proxy.access.keys import Access, bearer_of
from clairvoyant_cli.proxy.journal import Journal
from clairvoyant_cli.proxy.observing.metrics import Metrics
from clairvoyant_cli.proxy.observing.queue_rows import MAX_ROWS, STREAMED_ROWS
from clairvoyant_cli.proxy.observing.snapshots import SnapshotBuilder
from clairvoyant_cli.proxy.queue.operation import Operation
from clairvoyant_cli.proxy.servers.server_actions import SECRETS, InvalidError, RefusedError, ServerActions
from clairvoyant_cli.scheduler.policy import tau_from_setting, unknown_policy
from clairvoyant_cli.scheduler.urgency import LEVELS, UrgencySource
from clairvoyant_cli.state.actions import AUTO, COMMANDS, Verb
from clairvoyant_cli.state.client import PREFIX
from clairvoyant_cli.state.encoding import encode
from clairvoyant_cli.state.last_day import LastDay
from clairvoyant_cli.state.state_history import StateHistory

EVENT_EVERY_S = 0.08  # least time between two states of an event stream; changes in between are merged
MAX_EVERY_S = 5.0  # greatest interval a reader can ask for with `every_ms`: it takes a silent daemon for lost
CONTROL_PREFIX = f"{PREFIX}/"
HEARTBEAT_S = 1.0  # a stream without changes still sends a state, so that ages and elapsed times move
REST = 25  # a state rests for this many times as long as it took to build: at most 4 % of the daemon's time
MAX_REST_S = 5.0


class Shared:
    """Builds an answer once for all who wait for it, and rests in proportion to what that took. An answer
    is built after it was asked for, so an operator who has acted sees the effect.
    """

    def __init__(
        self,
        build: Callable[[], Iterable[bytes]],
        rest: float = REST,
        worked: Callable[[], float] = time.thread_time,
    ) -> None:
        """`build` yields the parts of an answer; others get a turn after each. `worked` tells the CPU seconds
        of this thread: on a busy machine wall time says nothing.
        """
        self._build = build
        self._rest = rest
        self._worked = worked
        self._data, self._data_of = b"", 0
        self._begun = 0
        self._rests_until_s = 0.0
        self._building = asyncio.Lock()

    async def next(self) -> bytes:
        begun = self._begun
        async with self._building:  # readers get it one by one: a thousand answers of megabytes take turns
            if self._data_of <= begun:  # built from a state before this reader asked
                await self._build_next()
            return self._data

    async def _build_next(self) -> None:
        loop, parts, worked_s = asyncio.get_running_loop(), list[bytes](), 0.0
        await asyncio.sleep(self._rests_until_s - loop.time())
        self._begun += 1
        number, steps = self._begun, iter(self._build())
        part: bytes | None = b""
        try:
            while part is not None:
                begun_s = self._worked()
                part = next(steps, None)
                worked_s += self._worked() - begun_s
                parts.append(part or b"")
                await asyncio.sleep(0)
        finally:
            self._rests_until_s = loop.time() + min(MAX_REST_S, self._rest * worked_s)
        self._data, self._data_of = b"".join(parts), number


@dataclass(slots=True)
class Actions:
    """Carries out the actions of an operator; each returns the answer."""

    operation: Operation
    journal: Journal
    backends: ServerActions
    say_of: Callable[..., str]  # of a client, whether it is in the background; returns why that fails
    reload: Callable[[], Awaitable[str]]

    async def run(self, action: str, arguments: dict[str, Any]) -> dict[str, Any]:
        verb = Verb(action)
        if "id" in COMMANDS[verb].fields:
            result = self._on_request(verb, arguments)
        elif verb in (Verb.BACKEND, Verb.MODEL):
            act = self.backends.run if verb is Verb.BACKEND else self.backends.keep_model
            result = await act(arguments)
        elif verb is Verb.RELOAD:
            try:
                result = {"done": verb, "note": await self.reload()}
            except ClairvoyantError as error:
                raise RefusedError(str(error)) from None
        else:
            result = self._on_daemon(verb, arguments)
        shown = ((key, value) for key, value in arguments.items() if key not in SECRETS)
        given = [f"{key}={value}" for key, value in shown if isinstance(value, str | int | float)]
        news = f"operator: {action} {printable(' '.join(given), 120)}"
        self.journal.event(logging.INFO, news.rstrip())
        self.operation.dispatcher.moved()
        return result

    def _on_request(self, verb: Verb, arguments: dict[str, Any]) -> dict[str, Any]:
        job_id = arguments.get("id")
        if not isinstance(job_id, str):
            raise InvalidError(f'{verb} needs the request\'s id, as {{"id": "..."}}')
        if not self._do(verb, job_id, arguments):
            raise RefusedError(f"{verb} failed: request {job_id} has started or ended, or is unknown")
        return {"id": job_id, "done": verb}

    def _do(self, verb: Verb, job_id: str, arguments: dict[str, Any]) -> bool:
        dispatcher = self.operation.dispatcher
        scheduler, now = dispatcher.scheduler, self.journal.clock()
        if verb is Verb.CANCEL:
            return dispatcher.cancel(job_id)
        if verb is Verb.PRIORITY:
            return scheduler.reprioritise(job_id, int(_number(arguments, "priority", -100, 100)), now)
        if verb is Verb.URGENCY:
            level = int(_number(arguments, "level", 0, LEVELS - 1))
            exchange = dispatcher.live.get(job_id)
            return exchange is not None and dispatcher.set_urgency(exchange, level, UrgencySource.OPERATOR)
        moves = {Verb.PROMOTE: scheduler.promote, Verb.HOLD: scheduler.hold, Verb.RELEASE: scheduler.release}
        return moves[verb](job_id, now)

    def _on_daemon(self, verb: Verb, arguments: dict[str, Any]) -> dict[str, Any]:
        operation = self.operation
        match verb:
            case Verb.PAUSE:
                operation.dispatcher.scheduler.pause()
            case Verb.RESUME:
                if operation.stopping:
                    raise RefusedError("the daemon is shutting down; start it again")
                operation.resume()
            case Verb.DRAIN:
                operation.draining = True
            case Verb.POLICY:
                try:
                    operation.choose_policy(name := str(arguments.get("policy")))
                except KeyError:
                    raise InvalidError(unknown_policy(name)) from None
            case Verb.BACKGROUND | Verb.INTERACTIVE:
                name, background = str(arguments.get("name", "")), verb is Verb.BACKGROUND
                if why := self.say_of(name, background=background):
                    raise RefusedError(why)
            case Verb.TAU if arguments.get("tau_s") == AUTO:
                operation.release_tau()
            case Verb.TAU:
                operation.choose_tau(tau_from_setting(_number(arguments, "tau_s", 0, 86_400)))
            case _:
                raise NotImplementedError(verb)
        return {"done": verb}


def _number(arguments: dict[str, Any], name: str, low: float, high: float) -> float:
    value = arguments.get(name)
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise InvalidError(f"{name} must be a number")
    if not low <= value <= high:
        raise InvalidError(f"{name} must be between {low:g} and {high:g}")
    return value


def _answer_of(name: str, shared: Shared) -> Callable[[Asked], Awaitable[Answer]]:
    content_type = Metrics.CONTENT_TYPE.encode() if name == "metrics" else JSON

    async def answer(_: Asked) -> Answer:
        return Answer(await shared.next(), content_type=content_type)

    return answer


class ControlApi:
    """The routes under the control prefix, and their access checks."""

    def __init__(
        self,
        access: Access,
        actions: Actions,
        snapshots: SnapshotBuilder,
        metrics: Metrics,
        history: StateHistory,
        predicted: Callable[[str, bytes], Awaitable[dict[str, Any] | None]],
        last_day: Callable[[], LastDay | None],
        body_limit_bytes: int,
    ) -> None:
        """`body_limit_bytes` is the longest body of a request that may be predicted."""
        self._access, self._actions = access, actions
        self._change: asyncio.Event | None = None  # if anybody waits for the next change
        self._snapshots, self._history, self._predicted = snapshots, history, predicted
        self._last_day = last_day

        def encoded(rows: int) -> Iterator[bytes]:
            return (encode(step) if step else b"" for step in snapshots.steps(rows))

        self.streamed = Shared(lambda: encoded(STREAMED_ROWS))
        self.shared = {
            "state": Shared(lambda: encoded(MAX_ROWS)),
            "metrics": Shared(lambda: metrics.render(snapshots.snapshot(0, explains=False))),
        }
        self._stopped = asyncio.Event()
        self.hand_over: Callable[[bytes], AsyncIterator[bytes]] | None = None
        told = {f"{PREFIX}/{name}": _answer_of(name, each) for name, each in self.shared.items()}
        told |= {f"{PREFIX}/health": self._health, f"{PREFIX}/events": self._events}
        told |= {f"{PREFIX}/past": self._past_page, f"{PREFIX}/last-day": self._last_day_page}
        asked = {f"{PREFIX}/predict": self._predict, f"{PREFIX}/actions/": self._act}
        asked |= {f"{PREFIX}/replace": self._replace}
        self._routes = Routes(self._guard, told, asked, {f"{PREFIX}/predict": body_limit_bytes})

    def stop(self) -> None:
        """End the event streams."""
        self._stopped.set()
        self._stopped = asyncio.Event()
        self.changed()

    def next_change(self) -> asyncio.Event:
        """Return what is set at the next change of state: who builds a state takes it before."""
        self._change = self._change or asyncio.Event()
        return self._change

    def changed(self) -> None:
        if self._change is not None:
            self._change.set()
            self._change = None

    async def __call__(self, request: Request) -> None:
        """Serve a request under the prefix, if it is allowed."""
        await self._routes(request)

    def _guard(self, head: RequestHead) -> Answer | None:
        if (objection := self._access.origins.objection(head)) is not None:
            return as_json({"error": objection}, 403)
        if head.path == f"{PREFIX}/health":
            return None
        if (not_admin := self._access.admin_objection(head)) is not None:
            return as_json({"error": not_admin}, 401)
        # The type itself: `text/plain; x=json` is one that a page may send to any site.
        content_type = (head.get(b"content-type") or b"").split(b";", 1)[0].strip().lower()
        if head.method == b"POST" and content_type != b"application/json":
            why = "actions take a JSON body with Content-Type: application/json"
            return as_json({"error": why}, 400)
        return None

    async def _health(self, _: Asked) -> Answer:
        # Anybody may ask, every few seconds: the whole state would cost too much.
        states = {server.name: server.status.state for server in self._snapshots.pool}
        mode = self._actions.operation.mode
        return as_json({"status": mode, "version": __version__, "backends": states})

    async def _events(self, asked: Asked) -> Answer:
        headers = ((b"Cache-Control", b"no-cache"), (b"X-Accel-Buffering", b"no"))
        if asked.head.method == b"HEAD":  # its answer has no body that could end it
            return Answer(content_type=EVENTS, headers=headers)
        every = asked.query("every_ms")
        every_s = int(every[:9]) / 1e3 if every.isascii() and every.isdigit() else 0.0
        return Answer(self._stream(min(max(every_s, EVENT_EVERY_S), MAX_EVERY_S)), 200, EVENTS, headers)

    async def _stream(self, every_s: float) -> AsyncIterator[bytes]:
        stopped = self._stopped
        while not stopped.is_set():
            change = self.next_change()
            yield b"event: snapshot\ndata: " + await self.streamed.next() + b"\n\n"
            with suppress(TimeoutError):
                async with asyncio.timeout(every_s):
                    await stopped.wait()
            with suppress(TimeoutError):
                async with asyncio.timeout(HEARTBEAT_S):
                    await change.wait()

    async def _past_page(self, asked: Asked) -> Answer:
        """Answer with the newest page of the history that begins before `?before=`, in epoch seconds."""
        try:
            before = float(asked.query("before", "inf"))
        except ValueError:
            before = inf
        return Answer(self._history.page_before(before), content_type=b"application/x-ndjson")

    async def _last_day_page(self, _: Asked) -> Answer:
        found = self._last_day()
        if found is None:
            return as_json({"error": "this daemon records no history"}, 409)
        return Answer(encode(found), content_type=JSON)

    async def _predict(self, asked: Asked) -> Answer:
        """Predict the answer to the body of a request to `?path=`, by default a chat of OpenAI's API."""
        path = asked.query("path", "/v1/chat/completions")
        found = await self._predicted(path, asked.body)
        if found is None:
            return as_json({"error": f"nothing is generated at {printable(path)}"}, 400)
        return as_json(found)

    async def _act(self, asked: Asked) -> Answer:
        action = asked.name
        if action not in COMMANDS:
            return as_json({"error": f"unknown action; there are {', '.join(COMMANDS)}"}, 404)
        if action == Verb.BACKEND and (refused := self._not_operator(asked)) is not None:
            return refused
        try:
            arguments = msgspec.json.decode(asked.body or b"{}", type=dict[str, Any])
            return as_json(await self._actions.run(action, arguments))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            # msgspec says by the latter two what is not UTF-8, and what is nested too deeply.
            return as_json({"error": "the body is not a JSON object, or nested too deeply"}, 400)
        except RefusedError as error:
            return as_json({"error": str(error)}, error.status)

    def _not_operator(self, asked: Asked) -> Answer | None:
        """Return the refusal of an action that needs the operator's token even without keys."""
        token = bearer_of(asked.head.get(b"authorization") or b"")
        objection = self._access.operator_objection(token)
        return None if objection is None else as_json({"error": objection}, 401)

    async def _replace(self, asked: Asked) -> Answer:
        """Let the daemon that asks take the place of this one (see `handover`)."""
        if (refused := self._not_operator(asked)) is not None:
            return refused
        if self.hand_over is None:
            return as_json({"error": "this daemon cannot be replaced"}, 409)
        lines = self.hand_over(asked.body)
        try:
            first = await anext(lines)
        except RefusedError as error:
            return as_json({"error": str(error)}, error.status)
        return Answer(_after(first, lines), content_type=EVENTS)


async def _after(first: bytes, lines: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for line in lines:
        yield line
