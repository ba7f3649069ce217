"""How things are, in a sentence: of several things at once, the one to know first."""

from dataclasses import replace

import pytest

from clairvoyant_cli.proxy.observing.status_sentence import verdict
from clairvoyant_cli.state.snapshot import (
    LevelState,
    Percentiles,
    ServiceLevelState,
    ShouterState,
    Snapshot,
    UrgencyState,
    WaitingState,
)
from tests.tui.board import busy


def _in_need(state: Snapshot, waits_s: float, *, heeded: bool) -> Snapshot:
    levels = (LevelState(0, 1, 0, waits_s, Percentiles()), LevelState(2, 9, 0, 500.0, Percentiles()))
    return replace(state, urgency=UrgencyState(levels, target_s=10.0, heeded=heeded))


def _crowded(state: Snapshot) -> Snapshot:
    return replace(state, waiting=WaitingState(4_600, clear_s=10_800.0))


def _late(state: Snapshot) -> Snapshot:
    return replace(state, service_level=ServiceLevelState("ttft-p95=2s", alert=True, recent_missed=0.12))


def _shouted(state: Snapshot) -> Snapshot:
    return replace(state, urgency=UrgencyState(shouter=ShouterState("bob", 40, 0.25), heeded=True))


@pytest.mark.parametrize(
    ("state", "level", "words"),
    [
        (_in_need(_crowded(busy()), 14.0, heeded=True), "alert", "of level 0 has waited 14 s (target 10 s)"),
        (_in_need(_crowded(busy()), 14.0, heeded=False), "alert", "Overloaded: 4,600 waiting, 3 h to clear"),
        (_in_need(busy(), 9.0, heeded=True), "good", "All well"),
        (_late(busy()), "alert", "ttft-p95=2s missed: 12% of recent requests were late"),
        (_late(_crowded(busy())), "alert", "Overloaded"),
        (
            _shouted(busy()),
            "warn",
            "than its share (25%): 40 claims rejected",
        ),
        (replace(_in_need(busy(), 14.0, heeded=True), mode="paused"), "note", "Paused by an operator"),
    ],
)
def test_the_first_thing_to_know_is_said(state: Snapshot, level: str, words: str) -> None:
    said = verdict(state)
    assert said.level == level
    assert words in said.text
