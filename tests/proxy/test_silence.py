"""A request is overdue once its server has been silent for far longer than it ever needed, and no sooner."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from clairvoyant_cli.backends.speeds import Speeds
from clairvoyant_cli.http.upstream import UpstreamError
from clairvoyant_cli.proxy.queue.exchange import Exchange
from clairvoyant_cli.proxy.requests import heartbeat
from clairvoyant_cli.proxy.servers.silence import COLD_S, HEARTBEATS_END_S, LEAST_S, Silences, overdue
from tests.fakes.daemon_parts import DaemonParts, daemon_parts, named

MEASURED = Speeds(decode_tokens_per_s=20.0, prefill_tokens_per_s=500.0)


def streaming(parts: DaemonParts, prompt: str = "0.1 hi") -> Exchange:
    """Return a request that its server has just got, which answered another a moment ago."""
    exchange = parts.queued(prompt)
    assert exchange.attempt is not None
    exchange.asked.parsed.stream = True
    parts.pool.server_of(exchange).silences.heard(exchange.attempt, parts.now[0])
    return exchange


def bound_s(exchange: Exchange, speeds: Speeds = MEASURED, known: Silences | None = None, **how: Any) -> int:
    """Return after how many seconds of silence a request is overdue."""
    attempt = exchange.attempt
    assert attempt is not None
    assert attempt.heard_s is not None
    if known is None:
        known = Silences()
        known.heard(attempt, attempt.heard_s)
    how = {"loads": False, "queues": False} | how
    seconds = range(1, 40_000)
    return next(s for s in seconds if overdue([attempt], known, speeds, attempt.heard_s + s, **how))


async def test_the_bound_follows_what_may_take_long() -> None:
    parts = daemon_parts()
    exchange = streaming(parts)
    assert bound_s(exchange) == LEAST_S + 1
    assert bound_s(exchange, loads=True) == COLD_S + 1
    assert bound_s(exchange, known=Silences(), loads=None) == COLD_S + 1, "its model has not answered lately"
    assert bound_s(exchange, known=Silences(_model="other"), loads=None) == COLD_S + 1, "it may swap models"
    assert bound_s(exchange, known=Silences(longest_s=60.0)) == 121
    hot = Speeds(decode_tokens_per_s=20.0, prefill_tokens_per_s=500.0)
    hot.learn(20, 10.0, None, None)
    assert hot.slowdown > 8.0, "its last answer came at 2 tokens a second"
    exchange.job.prompt_tokens = 50_000.0
    assert bound_s(exchange, hot) > 8 * bound_s(exchange)
    assert bound_s(exchange) > 4 * 250, "the end of a long prompt is read more slowly"
    assert bound_s(exchange, Speeds()) > 4 * 2000, "a CPU may read it"
    exchange.job.prompt_tokens = 4.0
    exchange.asked.parsed.stream = False
    assert bound_s(exchange) > 4 * 25, "any answer may be long"
    exchange.asked.parsed.view = None
    assert bound_s(exchange) > COLD_S


@pytest.mark.parametrize(
    ("first_byte_s", "granted_later_s", "queues", "late"),
    [
        (0.0, -1.0, False, True),  # its answer stopped in the middle
        (None, 1.0, False, True),  # a request that was granted later has been begun
        (None, -1.0, False, False),  # it may wait inside the server, which has fewer slots than it is said to
        (None, 1.0, True, False),  # an engine with priorities begins them in another order
    ],
)
async def test_one_hangs_while_its_server_answers_others(
    first_byte_s: float | None, granted_later_s: float, queues: bool, late: bool
) -> None:
    parts = daemon_parts(slots=2)
    exchange = streaming(parts)
    attempt, known = exchange.attempt, Silences()
    assert attempt is not None
    attempt.heard_s, attempt.first_byte_s = parts.now[0], first_byte_s
    run = replace(attempt.run, started_s=attempt.heard_s + granted_later_s)
    other = cast(Any, SimpleNamespace(run=run, heard_s=None))
    known.heard(other, now := attempt.heard_s + LEAST_S + 1.0)
    assert bool(overdue([attempt], known, MEASURED, now, loads=False, queues=queues)) is late


async def test_a_request_stays_overdue_until_it_is_heard_itself() -> None:
    parts = daemon_parts(slots=2)
    exchange, other = streaming(parts), streaming(parts, "0.1 other")
    server, attempt = parts.pool.first, exchange.attempt
    assert attempt is not None
    assert other.attempt is not None
    parts.now[0] += LEAST_S + 1.0
    overdue_s = list[float | None]()
    for heard in (None, other.attempt, None, attempt):
        parts.now[0] += 1.0
        if heard is not None:
            server.silences.heard(heard, parts.now[0])
        parts.lifecycle._check_overdue(server)
        overdue_s.append(attempt.overdue_s)
    assert overdue_s[0] == overdue_s[1] == overdue_s[2] is not None
    assert overdue_s[3] is None


async def test_a_client_that_does_not_read_is_no_silence_of_the_server() -> None:
    exchange = streaming(daemon_parts())
    assert exchange.attempt is not None
    exchange.attempt.connection = cast(Any, SimpleNamespace(paused=True))
    with pytest.raises(StopIteration):
        bound_s(exchange)


async def test_an_overdue_request_is_tried_elsewhere_and_its_server_rests_until_it_answers() -> None:
    parts = daemon_parts("mac", "rtx", slots=2)
    exchange, given_up = streaming(parts), list[UpstreamError]()
    mac, attempt = named(parts.pool, parts.on(exchange)), exchange.attempt
    assert attempt is not None
    attempt.give_up = given_up.append
    parts.now[0] += LEAST_S - 1.0
    parts.lifecycle._check_overdue(mac)
    assert (given_up, mac.standing, parts.snapshot().verdict.level) == ([], "", "good")
    parts.now[0] += 2.0
    parts.lifecycle._check_overdue(mac)
    assert (len(given_up), mac.standing) == (1, "silent")
    state = parts.snapshot()
    assert state.running[0].state == "silent"
    assert state.verdict.text == f"{mac.name} may hang: no answer after 31 s, far longer than expected"
    assert {parts.on(parts.queued("0.1 b")), parts.on(parts.queued("0.1 c"))} == {"mac", "rtx"} - {mac.name}
    parts.now[0] += 1.0
    mac.silences.heard(attempt, parts.now[0])
    parts.lifecycle._check_overdue(mac)
    assert (mac.standing, attempt.overdue_s) == ("", None)


async def test_alone_it_is_not_given_up_and_gets_no_empty_events_in_the_end() -> None:
    parts, sent = daemon_parts(slots=4), list[bytes]()
    exchange = streaming(parts)
    attempt = exchange.attempt
    assert attempt is not None
    attempt.give_up = lambda error: pytest.fail(str(error))
    request = SimpleNamespace(complete=True, connection=SimpleNamespace(send_body=sent.append))
    beats = heartbeat.Heartbeat(exchange, cast(Any, request), parts.refusals, None)
    parts.now[0] += LEAST_S + 1.0
    parts.lifecycle._check_overdue(parts.pool.first)
    assert parts.on(parts.queued("0.1 b")) == "", "it gets one request at a time"
    beats._send(lambda: b"empty", 9.0)
    parts.now[0] += HEARTBEATS_END_S
    beats._send(lambda: b"empty", 9.0)
    beats.stop()
    assert sent == [b"empty"]


async def test_time_in_which_the_daemon_was_stopped_is_no_silence() -> None:
    parts = daemon_parts("mac", "rtx", slots=2)
    exchange = streaming(parts)
    mac, attempt = named(parts.pool, parts.on(exchange)), exchange.attempt
    assert attempt is not None
    late = list[float | None]()
    for passed_s in (0.0, 3600.0, 5.0, LEAST_S):  # a suspended laptop, with its server
        parts.now[0] += passed_s
        parts.lifecycle._check_overdue(mac)
        late.append(attempt.overdue_s)
    assert [each is not None for each in late] == [False, False, False, True]
