"""`top --lines`: a sentence when something changes, and no other."""

from dataclasses import replace

from clairvoyant_cli.commands.sentences import REST_S, Sentences
from clairvoyant_cli.state.snapshot import Snapshot, StatusLine
from clairvoyant_cli.state.source import Disconnected
from tests.tui.board import busy


def later(state: Snapshot, seconds: float, **fields: object) -> Snapshot:
    return replace(state, taken_at=state.taken_at + seconds, **fields)  # type: ignore[arg-type]


def test_figures_that_change_are_not_told_and_another_verdict_is() -> None:
    sentences = Sentences()
    assert sentences.take(busy()) == [f"{busy().verdict.text}."]
    for number in range(60):
        text = f"Busy: {16 + number % 3} waiting, {70 + number} s to clear"
        assert sentences.take(later(busy(), number, verdict=StatusLine("good", text))) == []
    down = StatusLine("alert", "local does not answer, 4 waiting")
    assert sentences.take(later(busy(), 60.0, verdict=down)) == ["local does not answer, 4 waiting."]


def test_a_verdict_that_comes_and_goes_is_told_twice_a_minute_at_most() -> None:
    sentences, said = Sentences(), []
    for second in range(60):
        text = "All well: none waiting" if second % 2 else "Busy: 2 waiting"
        said += sentences.take(later(busy(), second, verdict=StatusLine("good", text)))
    assert len(said) <= 2 * 60.0 / REST_S


def test_what_an_operator_and_servers_do_is_told() -> None:
    sentences, (server,) = Sentences(), busy().backends
    sentences.take(busy())
    two = (replace(server, standing="draining"), replace(server, name="desk"))
    assert sentences.take(later(busy(), 1.0, policy="fcfs", backends=two)) == [
        "The order is fcfs now.",
        "Server local is up, draining.",
        "Server desk was added; it is up.",
    ]
    assert sentences.take(later(busy(), 2.0, policy="fcfs", backends=two[:1])) == ["Server desk was removed."]


def test_failures_are_told_with_their_cause_and_many_of_them_are_counted() -> None:
    sentences, row = Sentences(), busy().recent[-1]
    sentences.take(busy())
    failed = tuple(
        replace(row, id=f"f{n}", client="ide", outcome="upstream_error", remark="CUDA error\x1b[2J")
        for n in range(5)
    )
    state = later(busy(), 1.0, recent=(*busy().recent, *failed))
    assert sentences.take(state) == 3 * ["A request of ide failed: CUDA error·[2J."] + ["2 more failed."]
    assert sentences.take(later(state, 1.0)) == []


def test_a_queue_that_has_doubled_or_halved_is_told() -> None:
    sentences = Sentences()
    sentences.take(busy())
    waits, waiting = busy().waits, busy().waiting
    grown = later(busy(), 1.0, waiting=replace(waiting, total=3 * waits))
    assert sentences.take(grown) == [f"{3 * waits} waiting, {waits} before."]
    assert sentences.take(grown) == []


def test_a_lost_daemon_is_told_once_and_so_is_its_return() -> None:
    sentences = Sentences()
    sentences.take(busy())
    lost = Disconnected("no daemon answers at http://127.0.0.1:7117")
    assert sentences.take(lost) == ["No daemon: no daemon answers at http://127.0.0.1:7117."]
    assert sentences.take(lost) == []
    assert sentences.take(busy()) == ["The daemon is back."]
