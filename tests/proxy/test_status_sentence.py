"""How things are, in a sentence: of several things at once, the one to know first."""

from dataclasses import replace
from time import localtime, strftime

import pytest

from clairvoyant_cli.proxy.observing.status_sentence import verdict
from clairvoyant_cli.state.snapshot import (
    BackendState,
    LevelState,
    Percentiles,
    ServiceLevelState,
    Snapshot,
    TauState,
    UrgencyState,
    WaitingState,
)
from tests.tui.board import busy


def _in_need(state: Snapshot, waits_s: float, *, heeded: bool) -> Snapshot:
    levels = (LevelState(0, 1, 0, waits_s, Percentiles()), LevelState(2, 9, 0, 500.0, Percentiles()))
    return replace(state, urgency=UrgencyState(levels, target_s=10.0, heeded=heeded))


def _crowded(state: Snapshot) -> Snapshot:
    return replace(state, waiting=WaitingState(4_600, clear_s=10_800.0))


def _hung(state: Snapshot) -> Snapshot:
    return replace(state, backends=(replace(state.backends[0], standing="silent"),))


def _late(state: Snapshot) -> Snapshot:
    return replace(state, service_level=ServiceLevelState("ttft-p95=2s", alert=True, recent_missed=0.12))


@pytest.mark.parametrize(
    ("state", "level", "words"),
    [
        (_in_need(_crowded(busy()), 14.0, heeded=True), "alert", "of level 0 has waited 14 s (target 10 s)"),
        (_in_need(_crowded(busy()), 14.0, heeded=False), "alert", "Overloaded: 4,600 waiting, 3 h to clear"),
        (_in_need(busy(), 9.0, heeded=True), "good", "Busy"),
        (_late(busy()), "alert", "ttft-p95=2s missed: 12% of recent requests were late"),
        (_late(_crowded(busy())), "alert", "Overloaded"),
        (_hung(_crowded(busy())), "warn", "may hang: its last request got no answer"),
        (replace(_in_need(busy(), 14.0, heeded=True), mode="paused"), "note", "Paused by an operator"),
    ],
)
def test_the_first_thing_to_know_is_said(state: Snapshot, level: str, words: str) -> None:
    said = verdict(state)
    assert said.level == level
    assert words in said.text


def _servers(state: Snapshot, waiting: WaitingState, *servers: tuple[str, str, float | None]) -> Snapshot:
    backends = tuple(
        BackendState(name, "ollama", "http://x", how, 1, 0, kept_for_s=kept_for_s)
        for name, how, kept_for_s in servers
    )
    return replace(state, backends=backends, waiting=waiting, queue=())


IN_TEN_MINUTES = strftime("%H:%M", localtime(busy().taken_at + 600.0))
GONE = ("ollama", "down", 48.0)
UP = ("mac", "up", None)


@pytest.mark.parametrize(
    ("waiting", "servers", "level", "text"),
    [
        (
            WaitingState(4, clear_s=99.0, stranded=4, refused_in_s=48.2),
            (GONE,),
            "alert",
            "ollama does not answer, 4 waiting; refused in 48 s unless it returns",
        ),
        (WaitingState(), (GONE,), "alert", "ollama does not answer: new requests wait up to 48 s"),
        (
            WaitingState(4, stranded=4, refused_in_s=9.0),
            (GONE, ("mac", "down", 9.0)),
            "alert",
            "No server answers, 4 waiting; refused in 9 s unless one returns",
        ),
        (
            WaitingState(2, stranded=2, refused_in_s=30.0),
            (("ollama", "loading", 30.0),),
            "warn",
            "ollama is loading its model, 2 waiting; refused in 30 s unless it is ready",
        ),
        (
            WaitingState(3, clear_s=9.0, stranded=2, refused_in_s=40.0),
            (GONE, UP),
            "warn",
            "ollama is down: 2 requests need it and fail in 40 s",
        ),
        (
            WaitingState(130, clear_s=9000.0, stranded=1, refused_in_s=40.0),
            (GONE, UP),
            "alert",
            "Overloaded: 130 waiting",
        ),
    ],
)
def test_an_outage_says_what_will_happen_and_when(
    waiting: WaitingState, servers: tuple[tuple[str, str, float | None], ...], level: str, text: str
) -> None:
    said = verdict(_servers(busy(), waiting, *servers))
    assert (said.level, said.text) == (level, text)
    assert len(said.text) <= 80


@pytest.mark.parametrize(
    ("ago_s", "text"),
    [
        ((50.0, 30.0, 1.0), "Starvation guard active: it promoted 3 requests in the last minute"),
        ((110.0, 80.0, 55.0), "Starvation guard active: it promoted 1 request in the last minute"),
        ((150.0, 140.0, 65.0), "Busy: 16 waiting, 70 s to clear"),
        ((70.0, 30.0, 1.0), "Busy: 16 waiting, 70 s to clear"),
    ],
)
def test_all_is_not_well_for_a_minute_after_three_promotions_within_one(
    ago_s: tuple[float, ...], text: str
) -> None:
    state = busy()
    recent = tuple(state.taken_at - each for each in ago_s)
    tau = TauState(120.0, firings_last_minute=sum(each <= 60.0 for each in ago_s), recent=recent)
    assert verdict(replace(state, tau=tau)).text == text


@pytest.mark.parametrize(
    ("waiting", "level", "text"),
    [
        (WaitingState(12, clear_s=40.0, backlog_s=840.0), "good", "All well: 12 waiting, 40 s to clear"),
        (WaitingState(12, clear_s=40.0, late=1), "warn", "Late: 1 of 12 waiting is past tau, 40 s to clear"),
        (
            WaitingState(12, clear_s=70.0, backlog_s=840.0, late=6),
            "warn",
            "Backlog for 14 min: 12 waiting and not getting fewer, 70 s to clear",
        ),
        (
            WaitingState(12, clear_s=70.0, clear_low_s=40.0, clear_high_s=130.0),
            "good",
            "Busy: 12 waiting, 40 s–2 min to clear",
        ),
        (
            WaitingState(12, clear_s=700.0, clear_low_s=400.0, clear_high_s=1000.0),
            "good",
            "Busy: 12 waiting, 7–17 min to clear",
        ),
        (
            WaitingState(130, clear_s=300.0, backlog_s=840.0, per_minute=-13.0),
            "good",
            f"Backlog for 14 min: 130 waiting, fewer by 13 a minute, none about {IN_TEN_MINUTES}",
        ),
    ],
)
def test_a_queue_is_judged_by_arrivals_against_service_and_by_who_is_late(
    waiting: WaitingState, level: str, text: str
) -> None:
    said = verdict(replace(busy(), waiting=waiting, queue=()))
    assert (said.level, said.text) == (level, text)


def test_a_pause_does_not_hide_that_no_server_is_there() -> None:
    state = replace(_servers(busy(), WaitingState(2, stranded=2, refused_in_s=9.0), GONE), mode="paused")
    assert verdict(state).text == "ollama does not answer, 2 waiting; refused in 9 s unless it returns"
    assert verdict(state, stopping=True).text == "Stopping: new requests are rejected, 2 waiting"


def test_all_is_not_well_while_each_request_fails() -> None:
    state = busy()
    failed = [replace(each, outcome="upstream_error", backend="ollama") for each in state.recent[-5:]]
    text = "The last 5 requests failed on ollama: see recent and log"
    assert verdict(replace(state, recent=tuple(failed))).text == text
    assert verdict(replace(state, recent=(*failed[1:], state.recent[-1]))).text.startswith("Busy")
    assert verdict(replace(state, recent=tuple(failed), taken_at=state.taken_at + 70.0)).text.startswith(
        "Busy"
    )
