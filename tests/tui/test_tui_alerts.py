"""The terminal's title, and the bell."""

import io
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from clairvoyant_cli.commands.alert_command import run_for_alert
from clairvoyant_cli.state.snapshot import LevelState, Snapshot, UrgencyState
from clairvoyant_cli.state.source import Disconnected
from tests.tui.board import Script, busy, settled
from tests.tui.scene import judged
from tui.alerts import LOST_S, OVER_S, REST_S, Alerts, title_kept
from tui.app import Top


def down(state: Snapshot) -> Snapshot:
    (server,) = state.backends
    return judged(replace(state, running=(), backends=(replace(server, state="down", busy=0),)))


def in_need(state: Snapshot, waited_s: float) -> Snapshot:
    level = LevelState(0, 1, 0, waited_s, state.stats[0].wait)
    return judged(replace(state, urgency=UrgencyState((level,), target_s=10.0, heeded=True)))


def calm() -> Snapshot:
    return replace(busy(), tau=replace(busy().tau, firings_last_minute=0))


def rings(sent: str) -> bool:
    return sent.endswith("\x07\x07")


def test_the_title_tells_the_queue_and_the_slots_and_is_sent_when_it_changes() -> None:
    alerts, state = Alerts(bell=True), calm()
    assert alerts.take(state, 0.0) == f"\x1b]2;{state.waits} waiting, 4/4 - clairvoyant top\x07"
    assert alerts.take(state, 1.0) == ""


@pytest.mark.parametrize("bell", [True, False])
def test_a_server_that_goes_down_is_told_once_in_the_title_and_by_the_bell(bell: bool) -> None:
    alerts = Alerts(bell=bell)
    alerts.take(calm(), 0.0)
    sent = alerts.take(down(calm()), 1.0)
    assert sent.startswith(f"\x1b]2;▲ {down(calm()).verdict.text} - clairvoyant top\x07")
    assert sent.endswith("\x1b]9;local is down\x07\x07") is bell
    assert alerts.take(down(calm()), 2.0) == ""
    assert not rings(alerts.take(calm(), 3.0))
    assert not rings(alerts.take(down(calm()), 1.0 + REST_S)), "it is the same incident"
    alerts.take(calm(), 2.0 + REST_S)
    assert rings(alerts.take(down(calm()), 1.0 + REST_S + OVER_S)) is bell


def test_a_level_that_waits_too_long_rings_once_however_its_wait_grows() -> None:
    alerts = Alerts(bell=True)
    alerts.take(calm(), 0.0)
    assert rings(alerts.take(in_need(calm(), 11.0), 1.0))
    for waited_s in range(12, 200):
        assert not rings(alerts.take(in_need(calm(), waited_s), waited_s))
    assert "A request of level 0 has waited" in Alerts(bell=True).take(in_need(calm(), 12.0), 0.0)


def overloaded(per_minute: float) -> Snapshot:
    waiting = replace(calm().waiting, total=950, clear_low_s=900.0, per_minute=per_minute)
    return judged(replace(calm(), waiting=waiting))


@pytest.mark.parametrize(("per_minute", "ring"), [(15.0, True), (-15.0, False)])
def test_an_overload_rings_while_the_queue_grows_alone(per_minute: float, ring: bool) -> None:
    alerts = Alerts(bell=True)
    alerts.take(calm(), 0.0)
    assert overloaded(per_minute).verdict.level == "alert"
    assert rings(alerts.take(overloaded(per_minute), 1.0)) is ring


def test_the_guard_at_work_does_not_ring_and_a_server_that_may_hang_does() -> None:
    alerts = Alerts(bell=True)
    alerts.take(calm(), 0.0)
    recent = tuple(calm().taken_at - each for each in (20.0, 10.0, 1.0))
    guarded = judged(replace(calm(), tau=replace(calm().tau, recent=recent, firings_last_minute=3)))
    assert not rings(alerts.take(guarded, 1.0))
    silent = tuple(replace(row, state="silent") for row in calm().running)
    assert rings(alerts.take(judged(replace(calm(), running=silent)), 2.0))


@pytest.mark.parametrize("bell", [True, False])
async def test_a_command_gets_the_sentence_in_its_environment_and_no_shell_reads_it(
    bell: bool, tmp_path: Path
) -> None:
    noted = tmp_path / "noted"
    script = f"import os; open({str(noted)!r}, 'w').write(os.environ['CLAIRVOYANT_ALERT'])"
    alerts = Alerts(bell=bell)
    (server,) = calm().backends
    alerts.take(calm(), 0.0)
    alerts.take(judged(replace(calm(), backends=(replace(server, name="$(id);`id`", state="down"),))), 1.0)
    assert await run_for_alert([sys.executable, "-c", script], alerts.told) == ""
    assert noted.read_text() == "$(id);`id` is down"
    alerts.take(calm(), 2.0)
    assert not alerts.told


@pytest.mark.parametrize(
    ("command", "fault"),
    [
        (["no-such-program"], "on_alert: cannot run no-such-program: "),
        ([sys.executable, "-c", "raise SystemExit(3)"], " ended with exit code 3"),
        ([], ""),
    ],
)
async def test_a_command_that_fails_is_one_line(command: list[str], fault: str) -> None:
    said = await run_for_alert(command, "local is down")
    assert fault in said
    assert bool(said) is bool(fault)
    assert "\n" not in said


def test_what_is_wrong_from_the_start_does_not_ring_and_a_lost_daemon_does() -> None:
    alerts = Alerts(bell=True)
    assert not rings(alerts.take(down(calm()), 0.0))
    sent = alerts.take(Disconnected("no daemon answers"), 1.0)
    assert "\x1b]2;▲ no daemon answers - clairvoyant top\x07" in sent
    assert not rings(sent), "it may be replaced"
    assert rings(alerts.take(Disconnected("no daemon answers"), 1.0 + LOST_S))


def test_a_daemon_that_is_replaced_does_not_ring() -> None:
    alerts = Alerts(bell=True)
    for news, now in ((calm(), 0.0), (Disconnected("gone"), 1.0), (calm(), 2.0), (Disconnected("gone"), 9.0)):
        assert not rings(alerts.take(news, now))


def test_what_comes_within_the_rest_of_another_bell_rings_after_it_if_it_lasts() -> None:
    alerts = Alerts(bell=True)
    alerts.take(calm(), 0.0)
    assert rings(alerts.take(down(calm()), 1.0))
    assert not rings(alerts.take(in_need(calm(), 11.0), 20.0))
    assert rings(alerts.take(in_need(calm(), 60.0), 1.0 + REST_S))


def test_names_cannot_end_the_sequence_or_begin_another() -> None:
    state = calm()
    (server,) = state.backends
    evil = replace(server, name="x\x07\x1b]52;c;aGk=\x07", state="down")
    alerts = Alerts(bell=True)
    alerts.take(state, 0.0)
    sent = alerts.take(judged(replace(state, backends=(evil,))), 1.0)
    assert sent.count("\x1b") == 2
    assert sent.count("\x07") == 3


async def test_the_dashboard_sends_them_to_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[str] = []
    app = Top(Script(), alerts=Alerts(bell=True), clock=lambda: 0.0)
    async with app.run_test() as pilot:
        monkeypatch.setattr(app._driver, "write", sent.append)
        app.take(calm())
        app.take(down(calm()))
        await settled(app, pilot)
    told = "".join(sent)
    assert "waiting, 4/4 - clairvoyant top\x07" in told
    assert "\x1b]9;local is down\x07\x07" in told


def test_the_title_is_restored_whatever_happens() -> None:
    terminal = io.StringIO()
    kept = title_kept(terminal)
    kept.__enter__()
    terminal.write("drawn")
    assert not kept.__exit__(ValueError, ValueError("crash"), None)
    assert terminal.getvalue() == "\x1b[22;0tdrawn\x1b[23;0t"
