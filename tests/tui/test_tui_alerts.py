"""The terminal's title, and the bell."""

import io
from dataclasses import replace

import pytest

from clairvoyant_cli.state.snapshot import LevelState, Snapshot, UrgencyState
from clairvoyant_cli.state.source import Disconnected
from tests.tui.board import Script, busy, settled
from tests.tui.scene import judged
from tui.alerts import OVER_S, REST_S, Alerts, title_kept
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


def test_tau_rings_when_it_fires_in_a_row() -> None:
    alerts = Alerts(bell=True)
    for firings, ring in ((0, False), (2, False), (3, True), (4, False)):
        state = replace(calm(), tau=replace(calm().tau, firings_last_minute=firings))
        assert rings(alerts.take(state, float(firings))) is ring


def test_what_is_wrong_from_the_start_does_not_ring_and_a_lost_daemon_does() -> None:
    alerts = Alerts(bell=True)
    assert not rings(alerts.take(down(calm()), 0.0))
    sent = alerts.take(Disconnected("no daemon answers"), 1.0)
    assert "\x1b]2;▲ no daemon answers - clairvoyant top\x07" in sent
    assert rings(sent)


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
