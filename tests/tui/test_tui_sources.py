"""The encoding of states, and the state printed once."""

import re
from dataclasses import replace

import pytest

from clairvoyant_cli.commands.status_tables import state
from clairvoyant_cli.errors import ClairvoyantError
from clairvoyant_cli.proxy.observing.status_sentence import verdict
from clairvoyant_cli.state.actions import Action, Verb
from clairvoyant_cli.state.encoding import decode, encode
from clairvoyant_cli.state.snapshot import SCHEMA_VERSION, Counters
from tests.tui.board import busy, stage
from tests.tui.scene import SCENARIOS
from tests.tui.test_tui_screens import in_turns


def test_an_older_daemon_is_read_and_a_newer_field_is_ignored() -> None:
    line = encode(busy())
    assert decode(line.replace(b'"stats_fcfs"', b'"something_new"')).stats_fcfs == ()
    newer = line.replace(b'"schema":%d' % SCHEMA_VERSION, b'"schema":%d' % (SCHEMA_VERSION + 1))
    with pytest.raises(ClairvoyantError, match="upgrade clairvoyant"):
        decode(newer)


# -- once -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_once_prints_what_there_is(scenario: str) -> None:
    snapshot = stage(scenario).snapshot()
    for width in (80, 160):
        lines = list(state(snapshot, width))
        assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    assert "serving" in text
    assert snapshot.verdict.text in text
    assert all(row.id in text for row in snapshot.running)
    assert all(row.id in text for row in snapshot.queue[:50])
    assert ("the first 50 of" in text) == (len(snapshot.queue) > 50)


@pytest.mark.parametrize("name", ["ollama", "llama-server-2"])
def test_once_fits_80_columns_and_cuts_no_sentence(name: str) -> None:
    snapshot = stage("overloaded").snapshot()
    server = replace(
        snapshot.backends[0], name=name, state="down", detail="connection refused", waiting=12, kept_for_s=9.0
    )
    said = verdict(replace(snapshot, backends=(server,), waiting=replace(snapshot.waiting, refused_in_s=9.0)))
    tau = replace(snapshot.tau, source="profile gemma@ollama, decoding slower since, learned since")
    hard = replace(
        snapshot, verdict=said, backends=(server,), tau=tau, listen="127.0.0.1:11435", uptime_s=1e6
    )
    lines = list(state(hard, 80))
    assert max(map(len, lines)) <= 80
    text = " ".join(line.strip() for line in lines[: lines.index("")])
    assert "…" not in text
    assert said.text in text
    assert "refused in 9 s unless it returns" in text
    assert re.search(r"less waiting today \(\d+ answers, \S+ each\)", text)
    assert "load 100% in 5 min" in text
    assert f"backend {name} http://127.0.0.1:11434 down, connection refused, 4 at work, 12 waiting" in text
    assert text.endswith(
        f"learned since), fired {snapshot.tau.firings_total} times " + text[text.index("backend ") :]
    )


def test_once_counts_the_ends_of_requests_as_the_dashboard_does() -> None:
    counters = Counters(
        completed=7, client_cancelled=2, operator_cancelled=3, upstream_error=4, timeout=1, rejected=6
    )
    snapshot = replace(busy(), counters=counters)
    assert any(
        line.endswith("7 done, 2 left, 3 cancelled, 5 failed, 6 refused") for line in state(snapshot, 80)
    )


@pytest.mark.parametrize("width", [80, 160])
def test_once_prints_the_sessions_of_agents(width: int) -> None:
    lines = list(state(in_turns(busy()), width))
    at = lines.index("sessions of agents")
    assert [line.split()[:3] for line in lines[at + 2 : at + 6]] == [
        ["s12", "opencode", "running"],
        ["s14", "claude-code", "tool"],
        ["s15", "codex", "parked"],
        ["s9", "codex", "parked"],
    ]
    assert lines[at + 5].startswith(" s9"), "a subagent"
    assert max(map(len, lines)) <= width


async def test_actions_have_the_bodies_the_daemon_expects() -> None:
    assert Action(Verb.CANCEL, "a1").body() == {"id": "a1"}
    assert Action(Verb.PRIORITY, "a1", -1).body() == {"id": "a1", "priority": -1}
    assert Action(Verb.POLICY, value="fcfs").body() == {"policy": "fcfs"}
    assert Action(Verb.TAU, value=0.0).body() == {"tau_s": 0.0}
    assert Action(Verb.PAUSE).body() == {}
    assert Action(Verb.MODEL, "llama", "load").body() == {"name": "llama", "do": "load"}
