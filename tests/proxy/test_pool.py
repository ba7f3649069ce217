"""Several servers behind one queue, without a socket: their states change, the queue follows."""

import pytest

from clairvoyant_cli.backends.adapters import adapter_of
from clairvoyant_cli.config import BackendConfig
from clairvoyant_cli.protocols.can_continue import Continuable
from clairvoyant_cli.protocols.probes import OfferedModel
from clairvoyant_cli.protocols.routes import Shape
from clairvoyant_cli.protocols.splice import Splice
from clairvoyant_cli.proxy.queue.exchange import AttemptEnd, OutageError
from clairvoyant_cli.proxy.requests.admission import Refused
from clairvoyant_cli.proxy.requests.serving_rules import Answered, Failed, WaitAgain
from clairvoyant_cli.proxy.servers.health import TROUBLE_AFTER
from clairvoyant_cli.proxy.servers.server_actions import RefusedError, ServerActions
from tests.fakes.daemon_parts import DaemonParts, daemon_parts, named


async def test_a_server_is_renamed_while_it_answers() -> None:
    parts = daemon_parts("other")
    (server,) = parts.pool
    first, second = parts.queued("x"), parts.queued("y")
    server.config, server.adapter = BackendConfig(), adapter_of("llamacpp")
    parts.lifecycle.changed(server)
    assert (named(parts.pool, "llamacpp"), parts.on(first), parts.on(second)) == (server, "llamacpp", "")
    parts.after(first, Answered(200))
    assert parts.on(second) == "llamacpp"
    assert [each.backend for each in parts.stats.recent] == ["llamacpp"]


async def test_a_worker_that_was_never_there_takes_none_while_another_is() -> None:
    parts = daemon_parts("mac", "rtx")
    named(parts.pool, "rtx").status.seen = False
    parts.becomes("mac", "up")
    named(parts.pool, "rtx").status.state = "down"
    parts.becomes("mac", "up")
    exchanges = [parts.queued(f"0.5 number {n}") for n in range(2)]
    assert [parts.on(each) for each in exchanges] == ["mac", ""]
    parts.becomes("mac", "down")
    assert parts.after(exchanges[0], Failed(AttemptEnd.UNREACHABLE)) == WaitAgain(AttemptEnd.UNREACHABLE)
    assert [parts.on(each) for each in exchanges] == ["", ""]


async def test_queued_requests_fail_only_when_every_worker_is_given_up() -> None:
    parts = daemon_parts("mac", "rtx")
    for name in ("mac", "rtx"):
        parts.becomes(name, "down")
    waiting = parts.queued("patient")
    named(parts.pool, "mac").health._expire()
    assert not waiting.granted.done()
    named(parts.pool, "rtx").health._expire()
    with pytest.raises(OutageError):
        waiting.granted.result()


async def test_speeds_are_learned_of_the_worker_that_answered() -> None:
    parts = daemon_parts("mac", "rtx")
    exchange = parts.queued("x")
    attempt = exchange.attempt
    assert attempt is not None
    attempt.totals = type(attempt.totals)(tokens=100, decode_s=1.0, complete=True)
    parts.after(exchange, Answered(200))
    speeds = {server.id: server.speeds.decode_tokens_per_s for server in parts.pool}
    other = next(name for name in speeds if name != attempt.run.server_id)
    assert (speeds[attempt.run.server_id], speeds[other]) == (100.0, None)


def offers(parts: DaemonParts, **models: set[str]) -> None:
    for name, offered in models.items():
        backend = named(parts.pool, name)
        backend.status.offered = {backend.adapter.known_as(name): OfferedModel(name) for name in offered}
        parts.lifecycle.changed(named(parts.pool, name))


async def test_a_model_that_comes_while_it_is_waited_for_is_found() -> None:
    parts = daemon_parts("mac", "rtx")
    offers(parts, mac={"small"}, rtx={"large"})
    parts.queued("0.5 a", model="large")
    waits = parts.queued("0.5 b", model="large")
    assert parts.on(waits) == ""
    offers(parts, mac={"small", "large"})
    assert parts.on(waits) == "mac"


async def test_what_one_alone_could_serve_is_refused_when_that_is_given_up() -> None:
    parts = daemon_parts("mac", "rtx")
    offers(parts, mac={"small"}, rtx={"large"})
    parts.becomes("rtx", "down")
    waits = parts.queued("0.5 a", model="large")
    named(parts.pool, "rtx").health._expire()
    with pytest.raises(OutageError):
        waits.granted.result()
    refused = parts.ask("0.5 b", model="large")
    assert isinstance(refused, Refused)
    assert "9001 is not reachable" in refused.refusal.message
    assert parts.on(parts.queued("0.5 c", model="small")) == "mac"


async def test_draining_server_finishes_its_own_requests() -> None:
    parts = daemon_parts("mac", "rtx")
    offers(parts, mac={"small"}, rtx={"small", "large"})
    runs, waits = parts.queued("0.5 a", model="large"), parts.queued("0.5 b", model="large")
    parts.lifecycle.withdraw(named(parts.pool, "rtx"), "draining")
    refused = parts.ask("0.5 c", model="large")
    assert isinstance(refused, Refused)
    assert (refused.refusal.status, "only rtx can" in refused.refusal.message) == (503, True)
    parts.after(runs, Answered(200))
    assert parts.on(waits) == "rtx"
    parts.after(waits, Answered(200))
    others = [parts.queued(f"0.5 {n}", model="small") for n in range(2)]
    assert [parts.on(each) for each in others] == ["mac", ""]
    parts.lifecycle.bring_up(named(parts.pool, "rtx"))
    assert parts.on(others[1]) == "rtx"


async def test_what_was_cut_on_one_that_drains_goes_on_there() -> None:
    parts = daemon_parts("mac", "rtx")
    occupied, cut = parts.queued("0.1 a"), parts.queued("0.9 b")
    on = parts.on(cut)
    parts.after(cut, Failed(AttemptEnd.PREEMPTED))
    parts.lifecycle.withdraw(named(parts.pool, on), "leaving")
    assert parts.on(cut) == on
    assert named(parts.pool, on).standing == "leaving"
    parts.after(cut, Answered(200))
    assert [server.name for server in parts.pool] == [parts.on(occupied)]


async def test_one_that_is_removed_while_it_is_away_holds_up_nobody() -> None:
    parts = daemon_parts("mac", "rtx")
    offers(parts, mac={"small"}, rtx={"large"})
    cut = parts.queued("0.9 a", model="large")
    cut.splice = Splice(Continuable(Shape.OLLAMA_CHAT, {}, streamed=True))
    cut.splice.pieces.append("One")
    parts.after(cut, Failed(AttemptEnd.PREEMPTED))
    parts.becomes("rtx", "down")
    parts.after(cut, Failed(AttemptEnd.UNREACHABLE))
    waits = parts.queued("0.5 b", model="large")
    parts.lifecycle.withdraw(named(parts.pool, "rtx"), "leaving")
    assert [server.name for server in parts.pool] == ["mac"]
    assert parts.on(waits) == "mac"  # which answers that it has no such model
    with pytest.raises(OutageError):
        cut.granted.result()


async def test_the_last_one_stays() -> None:
    parts = daemon_parts("mac", "rtx")
    parts.queued("0.5 a", model="m")
    actions = ServerActions(parts.lifecycle)
    assert (await actions.run({"do": "remove", "name": "mac"}))["standing"] == "leaving"
    with pytest.raises(RefusedError, match="rtx is the only one"):
        await actions.run({"do": "remove", "name": "rtx"})


async def test_one_that_fails_at_once_does_not_draw_all_the_work() -> None:
    parts = daemon_parts("mac", "rtx")
    well = parts.queued("0.5 long")
    on_mac = parts.on(well)
    other = next(server.name for server in parts.pool if server.name != on_mac)
    failed = 0
    while failed < 10 and parts.on(bad := parts.queued(f"0.5 {failed}")) == other:
        parts.after(bad, Failed(AttemptEnd.BROKEN, "it broke", 500))
        failed += 1
    assert failed == TROUBLE_AFTER
    assert named(parts.pool, other).standing == "resting"
    named(parts.pool, other).health._rested()
    assert parts.on(bad) == other, "it is tried with one"
    parts.after(bad, Answered(200))
    assert named(parts.pool, other).standing != "resting"


async def test_one_that_is_alone_is_trusted_whatever_it_does() -> None:
    parts = daemon_parts("mac")
    for number in range(2 * TROUBLE_AFTER):
        failing = parts.queued(f"0.5 {number}")
        assert parts.on(failing) == "mac"
        parts.after(failing, Answered(500))


async def test_one_that_comes_back_is_given_one_and_then_twice_as_many() -> None:
    parts = daemon_parts("mac", "rtx", slots=4)
    parts.becomes("rtx", "down")
    parts.becomes("rtx", "up")
    exchanges = [parts.queued(f"0.5 {number}") for number in range(8)]

    def at_work() -> int:
        return sum(parts.on(each) == "rtx" for each in exchanges)

    assert at_work() == 1
    named(parts.pool, "rtx").health.began()
    assert at_work() == 2
    named(parts.pool, "rtx").health.began()
    assert at_work() == 4


async def test_a_server_that_does_not_answer_is_not_asked_in_place_of_another() -> None:
    parts = daemon_parts("mac", "rtx", "pi", "cpu")
    exchange = parts.queued("x")
    down, silent, fit = (server for server in parts.pool if server.name != parts.on(exchange))
    down.status.seen, down.status.state, silent.health.hung = False, "down", 1
    assert parts.pool.elsewhere(exchange) == [fit]
    parts.after(exchange, Failed(AttemptEnd.REFUSED))
    assert parts.on(exchange) == fit.name
    assert parts.pool.elsewhere(exchange) == [], "each is asked once"
