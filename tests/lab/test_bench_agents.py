"""`clairvoyant bench agents`: the plan of its sessions, its figures, and runs in virtual time."""

import json
from copy import deepcopy
from typing import Any

import pytest
from clairvoyant_lab.bench.agents import TASK, AgentLoad, Conversation, Run
from clairvoyant_lab.bench.asker import Asker, Call
from clairvoyant_lab.bench.prompts import Question
from clairvoyant_lab.commands.bench import command
from click.testing import CliRunner

from clairvoyant_cli.errors import ClairvoyantError
from tests.fakes.daemon_process import child

VIRTUAL = ("agents", "--virtual-time", "--json")


def findings(*words: str) -> dict[str, dict[str, dict[str, float]]]:
    done = CliRunner().invoke(command, (*VIRTUAL, *words))
    assert done.exit_code == 0, f"{done.output}{done.exception!r}"
    said: dict[str, Any] = json.loads(done.stdout)
    return {
        each["arm"]: {
            group: {name: figure["mean"] for name, figure in figures.items()}
            for group, figures in each["figures"].items()
        }
        for each in said["arms"]
    }


def first_chars(said: Conversation) -> int:
    return len(said.system) + len(TASK) + len(json.dumps(said.tools, separators=(",", ":")))


def test_sessions_are_as_long_as_they_should_be() -> None:
    for said in AgentLoad(sessions=4, turns=6, context=500).conversations(0, "12345678"):
        assert first_chars(said) == 2000
        assert all(240 <= len(result) <= 600 for result in said.results)
        assert all(0.25 <= gap_s <= 0.75 for gap_s in said.gaps_s[1:])
        assert (len(said.results), len(said.gaps_s), said.gaps_s[0]) == (5, 6, 0)


def test_texts_depend_on_seed_and_run_and_differ_between_arms_only_in_their_nonce() -> None:
    load = AgentLoad()
    assert load.conversations(0, "12345678") == load.conversations(0, "12345678")
    assert load.conversations(0, "1")[0].results != load.conversations(1, "1")[0].results
    assert load.conversations(0, "1")[0].results != AgentLoad(seed=1).conversations(0, "1")[0].results
    for one, other in zip(load.conversations(0, "12345678"), load.conversations(0, "87654321"), strict=True):
        assert one.system.replace("12345678", "87654321", 1) == other.system
        assert (one.results, one.gaps_s) == (other.results, other.gaps_s)


@pytest.mark.parametrize("common", [0.0, 0.25, 1.0])
def test_sessions_share_that_part_of_their_system_text(common: float) -> None:
    one, other = (each.system for each in AgentLoad(sessions=2, common=common).conversations(0, "12345678"))
    shared = next((i for i, (a, b) in enumerate(zip(one, other, strict=True)) if a != b), len(one))
    assert shared / len(one) == pytest.approx(common, abs=0.01)


def test_a_server_with_room_for_all_reads_nothing_again() -> None:
    figures = findings("--arm", "direct", "--cache", "100000", "--chat-every", "0")["direct"]
    assert figures["prompt tokens"]["read again"] == 0
    assert figures["requests"] == {"answered": 15, "failed": 0}


def test_every_arm_gives_its_exact_tokens_in_virtual_time() -> None:
    arms = ("--arm", "direct", "--arm", "clairvoyant", "--arm", "serial")
    found = findings(*arms, "--slots", "1", "--cache", "1700", "--turns", "3")
    assert {arm: figures["requests"]["failed"] for arm, figures in found.items()} == dict.fromkeys(found, 0)
    tokens = {arm: figures["prompt tokens"] for arm, figures in found.items()}
    assert tokens["direct"] == {"sent": 6175, "read": 3605, "read again": 1200}
    assert tokens["serial"] == {"sent": 6136, "read": 2314, "read again": 0}
    assert tokens["clairvoyant"]["read"] <= tokens["direct"]["read"]
    assert found["serial"]["time"]["all done"] < found["direct"]["time"]["all done"]


@pytest.mark.parametrize(("option", "sessions"), [("--headers", 3), ("--no-headers", 0)])
def test_turns_carry_the_id_of_their_session(
    option: str, sessions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = []
    ask = Asker.ask

    async def spy(self: Asker, *arguments: Any) -> None:
        sent.append(deepcopy((arguments[2:3], arguments[3:])))
        await ask(self, *arguments)

    monkeypatch.setattr(Asker, "ask", spy)
    findings("--arm", "direct", "--turns", "2", "--chat-every", "0", option)
    turns = [(more, headers) for more, headers in sent if more]
    ids = [headers["X-Session-Id"] for _, (headers,) in turns if headers]
    assert (len(turns), len(set(ids)), len(ids)) == (6, sessions, 2 * sessions)
    later = [more["messages"] for (more,), _ in turns if len(more["messages"]) > 2]
    assert [[message["role"] for message in each[2:]] for each in later] == [["assistant", "tool"]] * 3
    assert all(len(each[2]["content"].split()) == 32 for each in later)  # what the server really answered


def test_a_session_ends_with_its_first_failure_and_a_silent_server_has_fewer_figures() -> None:
    question = Question("", 9, "turn")
    answered = Call(question, sent_s=2.0, first_token_s=4.0, ended_s=5.0, tokens=9, prompt_tokens=100)
    failed = Call(question, sent_s=5.5, ended_s=6.0, error="HTTP 500")
    figures = Run(begun_s=1.0, sessions=[[answered, failed], [answered]]).figures()
    assert {name: value for (group, name), value in figures.items() if group != "first token"} == {
        "all done": 5.0,
        "session mean": 3.5,
        "session worst": 4.0,
        "sent": 200,
        "answered": 2,
        "failed": 1,
    }
    with pytest.raises(ClairvoyantError, match="no session gets an answer: HTTP 500"):
        Run(begun_s=1.0, sessions=[[failed], [failed]]).figures()


def test_another_proxy_can_be_an_arm() -> None:
    with child("-m", "tests.fakes.replay_process", "--decode", 5000, "--prefill", 50000) as url:
        arms = ("--arm", "direct", "--arm", f"other={url}", "--url", url)
        done = CliRunner().invoke(command, ("agents", "--json", *arms, "--turns", "1", "--chat-every", "0"))
    assert done.exit_code == 0, done.output
    assert {each["arm"] for each in json.loads(done.stdout)["arms"]} == {"direct", "other"}
    assert CliRunner().invoke(command, (*VIRTUAL, "--arm", "nothing")).exit_code != 0
