"""A conversation's turns are known again, and its next one goes where the last one was served."""

import pytest

from clairvoyant_cli.protocols.request_parsing import ParsedRequest
from clairvoyant_cli.proxy.queue.exchange import Exchange, Outcome
from clairvoyant_cli.proxy.requests.admission_rules import ReadBody
from clairvoyant_cli.proxy.requests.conversation_keys import Conversations
from clairvoyant_cli.scheduler.kv_cache import Chain
from predictor.record import PromptView, Turn
from tests.fakes.daemon_parts import DaemonParts, asking, daemon_parts

LONG = "word " * 1000


def chain(conversations: Conversations, *said: str, system: str = "", model: str = "m") -> Chain:
    turns = tuple(Turn(("user", "assistant")[n % 2], text) for n, text in enumerate(said[:-1]))
    return conversations.chain_of(PromptView(said[-1], system, turns, model=model))


def test_a_turn_begins_like_the_one_before_it_and_counts_its_answer() -> None:
    known = Conversations()
    first = chain(known, "hello", system="Be brief.")
    second = chain(known, "hello", "x" * 400, "and then?", system="Be brief.")
    assert [link.hash for link in second[:2]] == [link.hash for link in first]
    assert second[1].tokens - first[1].tokens == 100.0
    assert chain(known, "bye", system="Be brief.")[0] == first[0]
    for other in (
        chain(known, "hallo", system="Be brief."),
        chain(known, "hello", system="Be brief.", model="n"),
    ):
        assert other[-1].hash != first[-1].hash


def test_the_hashes_of_one_run_say_nothing_in_another() -> None:
    assert chain(Conversations(), "hello")[0].hash != chain(Conversations(), "hello")[0].hash


def say(parts: DaemonParts, *said: str) -> Exchange:
    door = parts.admission.rules.judge_head(asking())
    assert isinstance(door, ReadBody)
    turns = tuple(Turn(("user", "assistant")[n % 2], text) for n, text in enumerate(said[:-1]))
    tokens = sum(len(text) for text in said) / 4
    parsed = ParsedRequest(
        model="m", view=PromptView(said[-1], history=turns, model="m"), prompt_tokens=tokens
    )
    exchange = parts.admission.enqueue(asking(), ReadBody(door.route, "ann"), parsed)
    assert isinstance(exchange, Exchange)
    return exchange


@pytest.mark.parametrize("restarted", [False, True])
async def test_a_conversation_goes_on_where_it_was_served(restarted: bool) -> None:
    parts = daemon_parts("mac", "rtx")
    openings = [say(parts, f"0.1 {name} {LONG}") for name in ("ann", "bob")]
    assert [parts.on(each) for each in openings] == ["mac", "rtx"]
    for exchange in openings:
        parts.dispatcher.end(exchange, Outcome.COMPLETED, 200)
    if restarted:
        parts.becomes("rtx", "down")
        parts.becomes("rtx", "up")
    again = say(parts, f"0.1 bob {LONG}", "0.1", "0.1 go on")
    assert parts.on(again) == ("mac" if restarted else "rtx")
