"""Seeded cases of an answer that is cut and continued, well or badly, streamed or not, by the serving code.

No sockets: a server is a function from a request to its response, which arrives in packets of any size; the
client is what it was sent. Admission, queue, splice, relay and the rules of serving are the product's own.
"""

import asyncio
import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, cast

from clairvoyant_cli.http.fields import Fields, Header
from clairvoyant_cli.http.heads import RequestHead, ResponseHead
from clairvoyant_cli.http.limits import ConnectionTable
from clairvoyant_cli.http.request import Request
from clairvoyant_cli.http.upstream import ResponseSink, UnreachableError, UpstreamConnection, UpstreamError
from clairvoyant_cli.protocols.model_settings import ModelSettings
from clairvoyant_cli.protocols.probes import ProbeAnswer
from clairvoyant_cli.protocols.request_parsing import ParsedRequest
from clairvoyant_cli.proxy.queue.ended import Ended, Outcome
from clairvoyant_cli.proxy.queue.exchange import Exchange
from clairvoyant_cli.proxy.requests.admission import ReadBody
from clairvoyant_cli.proxy.requests.serving import ServedRequest
from clairvoyant_cli.proxy.requests.serving_rules import MAX_REPEATS
from clairvoyant_cli.scheduler.policy import POLICIES
from predictor.record import PromptView
from profiles.records import Continuation, Served
from tests.fakes.daemon_parts import daemon_parts, named
from tests.fakes.dialects import BAD, PING, Bad, Dialect, Json, Reply, Said, said
from tests.fakes.remembered import PROFILE

VOLATILE = ("created", "created_at", "total_duration", "eval_duration", "prompt_eval_duration")


@dataclass(frozen=True, slots=True)
class Case:
    """One request: what its server says, how that arrives, when it is cut, and what goes wrong then.

    `cuts` are packets of each part before which a cut is wanted; `bad` what each continuation is at first.
    """

    it: Said
    body: Json
    cuts: tuple[int, ...]
    bad: tuple[Bad, ...]
    packets: str
    pings: bool
    crlf: bool
    first_lost: int | None = None
    """After so many packets the connection of the first part is lost."""

    @property
    def stream(self) -> bool:
        return bool(self.body["stream"])


def case_of(dialect: Dialect, random: Random) -> Case:
    return Case(
        said(random),
        dialect.body(random, stream=random.random() < 0.6),
        tuple(random.randint(0, 12) for _ in range(random.choice((0, 1, 1, 1, 2, 3)))),
        tuple(random.choice(BAD) for _ in range(random.choice((0, 0, 0, 1, 1, 2, 3)))),
        random.choice(("events", "one", "bytes", "mixed")),
        pings=random.random() < 0.3,
        crlf=random.random() < 0.2,
        first_lost=random.randint(0, 12) if random.random() < 0.15 else None,
    )


class Client:
    """What a client was sent."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: list[Header] = []
        self.body = bytearray()
        self.whole = False
        self.was_preempted = False
        self.head_sent = False
        self.gone = False
        self.peer = "ann"
        self.table = ConnectionTable(body_budget_bytes=1)

    def send_head(self, head: ResponseHead, *extra: Header) -> None:
        assert not self.head_sent
        self.head_sent, self.status, self.headers = True, head.status, head.headers

    def send_body(self, data: bytes) -> None:
        assert self.head_sent
        assert not self.whole
        self.body += data

    def send_end(self, trailers: list[Header]) -> None:
        assert not self.whole
        self.whole = True

    def respond(self, head: ResponseHead, body: bytes, *extra: Header) -> None:
        self.send_head(head)
        self.send_body(body)
        self.send_end([])

    def cut(self) -> None:
        self.was_preempted = True

    def nothing(self, *_: object) -> None:
        """Take no notice."""

    fed_by = pause_reading = resume_reading = waits_in_queue = nothing


@dataclass(eq=False)
class Connection:
    """A connection to the server of a case."""

    runner: "CaseRunner"
    throttle: object = None
    _head: RequestHead | None = None
    _sink: ResponseSink | None = None
    _body: bytearray = field(default_factory=bytearray)

    def begin(self, head: RequestHead, wire: bytes, sink: ResponseSink) -> None:
        self._head, self._sink = head, sink

    def body(self, data: bytes) -> None:
        self._body += data

    def body_end(self, trailers: list[Header]) -> None:
        asyncio.get_running_loop().call_soon(self._answer)

    def _answer(self) -> None:
        assert self._head is not None
        reply, cut_before, lost_after = self.runner.reply(self._head.path, json.loads(bytes(self._body)))
        sink = self._sink
        if sink is None:
            return
        if reply.status:
            sink.head(ResponseHead(reply.status, b"X", list(reply.headers)))
        for number, packet in enumerate(self.runner.packets(reply)):
            if number == lost_after:
                reply = replace(reply, lost=True)
                break
            if number == cut_before:
                self.runner.want_cut()
            if self._sink is sink:
                sink.data(packet)
        if self._sink is sink:
            self._sink = None
            if reply.lost:
                sink.failed(UpstreamError("it closed the connection"))
            else:
                sink.end([])

    def let_go(self) -> None:
        self._sink = None

    abort = close = let_go

    async def hang_up(self, patience_s: float) -> bool:
        self._sink = None
        return True


class CaseRunner:
    """One server of a dialect and a daemon before it, for one case after another."""

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect
        self.case = cast(Case, None)
        self.random = Random(0)
        self.exchange: Exchange | None = None
        self.outcomes: list[Outcome] = []
        self.parts = 0
        self.down = False
        parts = self.daemon = daemon_parts("a", kind=dialect.kind, capacity=10**6)
        parts.dispatcher.scheduler.set_policy(POLICIES["boost"], 0.0)
        server = self.server = named(parts.pool, "a")
        proof = Continuation(dialect.way, trials=24, exact=24, resume_s=0.001, fingerprint="f")
        served = Served(dialect.kind, "m", version=server.status.version)
        server.profiles = (replace(PROFILE, served=served, continuations=(proof,)),)
        server.settings = {server._key_of("m"): ModelSettings("f")}
        server.ask = self.ask
        server.upstream.connect = self.connect  # type: ignore[method-assign]
        self.serving = parts.serving
        parts.keepers.functions.append(self.ended)

    async def connect(self, *, fresh: bool = False) -> UpstreamConnection:
        if self.down:
            raise UnreachableError("refused")
        return cast(UpstreamConnection, Connection(self))

    async def ask(self, path: str, timeout_s: float = 2.0, body: Json | None = None) -> ProbeAnswer:
        if (body or {}).get("_debug_render_only"):
            return ProbeAnswer(200, json.dumps({"_debug_info": {"rendered_template": "<?>"}}).encode())
        return ProbeAnswer(0)

    def want_cut(self) -> None:
        exchange = self.exchange
        if exchange is not None and exchange.attempt is not None:
            self.serving.preemption.preempt(exchange)

    def reply(self, path: str, asked: Json) -> tuple[Reply, int | None, int | None]:
        """Return what the server says now, the packet before which it is cut, and the one that is lost."""
        case, number = self.case, self.parts
        self.parts += 1
        good = self.dialect.answer(path, asked, case.it)
        cut = case.cuts[number] if number < len(case.cuts) else None
        if number == 0:
            return good, cut, case.first_lost
        assert good.status != 400, good
        own = asked.get("stream") == case.stream and asked == case.body
        if number <= len(case.bad) and not own and good.status == 200:
            return case.bad[number - 1](self.dialect, good.pieces), None, None
        return good, cut, None

    def packets(self, reply: Reply) -> Iterator[bytes]:
        random, case = self.random, self.case
        pieces = list(reply.pieces)
        if self.dialect.sse and b"event-stream" in str(reply.headers).encode():
            if case.pings:
                pieces = [
                    each
                    for piece in pieces
                    for each in ((PING, piece) if random.random() < 0.3 else (piece,))
                ]
            if case.crlf:
                pieces = [piece.replace(b"\n\n", b"\r\n\r\n") for piece in pieces]
        if case.packets == "events":
            yield from pieces
            return
        whole, at = b"".join(pieces), 0
        while at < len(whole):
            size = {"one": 10**9, "bytes": random.randint(1, 40)}.get(case.packets, random.randint(1, 300))
            yield whole[at : at + size]
            at += size

    async def run(self, seed: int) -> str:
        """Run a case; return what is wrong with what came of it, "" if nothing is."""
        self.random = Random(f"{self.dialect.name} {seed}")
        case = self.case = case_of(self.dialect, self.random)
        self.parts = 0
        client = Client()
        body = json.dumps(case.body).encode()
        head = RequestHead(
            b"POST",
            self.dialect.path.encode(),
            Fields([(b"Host", b"x"), (b"Content-Length", b"%d" % len(body))]),
        )
        request = Request(head, cast(Any, client))
        request.feed(body)
        request.feed_end([])
        route = self.server.adapter.routes[self.dialect.path]
        parsed = ParsedRequest(
            model="m",
            view=PromptView("?"),
            prompt_tokens=4.0,
            affinity="m",
            stream=case.stream,
            only_answers=True,
        )
        exchange = self.exchange = cast(
            Exchange, self.daemon.admission.enqueue(request, ReadBody(route, "ann"), parsed)
        )
        self.server.health.forget()
        self.serving.preemption._plain.clear()
        self.outcomes.clear()
        await ServedRequest(self.serving, exchange, request).serve()
        return self.fault(client, self.outcomes)

    def ended(self, of: Ended) -> None:
        """Keep how it ended."""
        self.outcomes.append(of.outcome)

    # -- what is right ---------------------------------------------------------------------------------

    def fault(self, client: Client, ended: list[Outcome]) -> str:
        case, completed = self.case, ended == [Outcome.COMPLETED]
        direct = self.dialect.answer(self.dialect.path, case.body, case.it)
        if len(ended) != 1:
            return f"ended {len(ended)} times"
        if client.whole and not client.was_preempted and client.status == direct.status:
            ours, theirs = self.read(bytes(client.body)), self.read(b"".join(direct.pieces))
            if ours == theirs:
                failed = direct.status >= 500 or (case.it.more == "error")
                if dict(client.headers).get(b"Content-Type") != dict(direct.headers)[b"Content-Type"]:
                    return f"another type: {client.headers}"
                return "" if completed is not failed else "wrongly counted"
        if not (client.was_preempted or client.status >= 500) or completed:
            return f"a wrong answer: {client.status} {bytes(client.body)!r}"
        return "" if self.may_fail(client) else f"failed without need: {client.status} {bytes(client.body)!r}"

    def may_fail(self, client: Client) -> bool:
        """Whether nothing better could come: the first part was lost with an event half sent, or more went
        wrong than is tried again.
        """
        case, lost = self.case, self.case.first_lost is not None
        too_bad = (
            self.parts > 1 and case.stream and (len(case.bad) + lost > MAX_REPEATS or bool(case.it.more))
        )
        return client.head_sent and (lost or too_bad)

    def read(self, body: bytes) -> list[object]:
        """Return what an answer says, without what differs between any two runs."""
        if not self.case.stream:
            return [same(json.loads(body))]
        lines = (line.removeprefix(b"data:").strip() for line in body.splitlines())
        told = [line for line in lines if line and not line.startswith(b":")]
        try:
            return [same(json.loads(line)) if line.startswith(b"{") else line for line in told]
        except ValueError:
            return [body]


def same(event: Json) -> Json:
    """Return an event without what differs between any two runs."""
    event = {name: value for name, value in event.items() if name not in VOLATILE}
    if "timings" in event:
        timings = event["timings"]
        event["timings"] = [timings["predicted_n"], timings["cache_n"] + timings["prompt_n"]]
    return event


async def faults(dialect: Dialect, seeds: range) -> list[str]:
    """Run many cases of a dialect; return those that went wrong."""
    log = logging.getLogger("clairvoyant")
    before, log.disabled = log.disabled, True
    runner, found = CaseRunner(dialect), []
    try:
        for seed in seeds:
            fault = await runner.run(seed)
            if fault:
                found.append(f"{dialect.name} {seed}: {fault}\n  {runner.case}")
    finally:
        log.disabled = before
    return found
