"""What breaks the prefix of a session, from bodies as agents send them, and what is never reported."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from msgspec import Raw

from clairvoyant_cli.protocols.conversation import ConversationReader, hashed
from clairvoyant_cli.protocols.lenient_json import object_in
from clairvoyant_cli.protocols.media import Payloads
from clairvoyant_cli.scheduler import sessions as sessions_module
from clairvoyant_cli.scheduler.chain import NO_CHAIN, Chain
from clairvoyant_cli.scheduler.job import Job
from clairvoyant_cli.scheduler.policy import POLICIES
from clairvoyant_cli.scheduler.queue import Scheduler
from clairvoyant_cli.scheduler.sessions import Session

Body = dict[str, Any]
Messages = list[Body]
TOOLS = [{"type": "function", "function": {"name": f"tool{n}", "description": "x" * 300}} for n in range(10)]


def chain_of(body: Body) -> Chain:
    raw = json.dumps(body).encode()
    reader = ConversationReader(object_in(Raw(raw)), body.get("model", "m"), Payloads())
    while reader.read_slice():
        pass
    return reader.conversation(raw).chain


def turns(number: int, name: str = "a", size: int = 600) -> Messages:
    """Return the messages of a turn of an agent: a question, then a call and its result for each turn."""
    messages: Messages = [{"role": "user", "content": f"{name}: mend the {size * 'bug '}"}]
    for n in range(number):
        messages.append({"role": "assistant", "content": f"{name}: I look at file {n}"})
        messages.append({"role": "tool", "tool_call_id": f"{name}{n}", "content": f"{n} {'line ' * size}"})
    return messages


@dataclass
class Desk:
    """A scheduler, and a server with one slot that reads four characters a token and holds one prompt."""

    scheduler: Scheduler = field(default_factory=lambda: Scheduler(POLICIES["boost"], servers={"gpu": 1}))
    now: float = 0.0
    held: Chain = NO_CHAIN
    news: list[str] = field(default_factory=list)
    _number: int = 0

    def ask(
        self,
        body: Body,
        client: str = "ann",
        claimed: str = "",
        cached: Callable[[float], float | None] = float,
    ) -> Session:
        """Serve a request, of which the server reports `cached(tokens)`. Return its session."""
        return self.serve(chain_of(body), client, claimed, cached)

    def serve(
        self, chain: Chain, client: str = "ann", claimed: str = "", cached: Callable[[float], Any] = float
    ) -> Session:
        self._number += 1
        self.now += 30.0
        tokens = chain.length / 4.0
        job = Job(f"j{self._number}", self.now, 0.5, 1.0, 50.0, tokens, client, prefix=chain, claimed=claimed)
        self.scheduler.submit(replace(job, agentic=True), self.now)
        assert self.scheduler.next(self.now) is not None
        same = [n for n, (a, b) in enumerate(zip(self.held.hashes, chain.hashes, strict=False)) if a == b]
        shared = chain.characters[same[-1]] / 4.0 if same else 0.0
        told = self.scheduler.answered(
            job.id, tokens, 50.0, cached(shared), calls_tool=True, now=self.now + 1.0
        )
        self.news += [told] if told else []
        session = self.scheduler.sessions.known.get(self.scheduler.running[job.id].job.session)
        assert session is not None
        self.scheduler.finish(job.id, self.now + 1.0)
        self.held = chain
        return session

    @property
    def sessions(self) -> list[Session]:
        return list(self.scheduler.sessions.known.values())

    def reports_nothing(self) -> bool:
        return not self.news and not any(each.broken or each.reread_tokens for each in self.sessions)


def claude(number: int, cch: str) -> Body:
    """Return a turn of Claude Code, whose first line of the system text changes."""
    header = f"x-anthropic-billing-header: cc_version=2.1.1; cc_entrypoint=cli; cch={cch};"
    system: Messages = [
        {"type": "text", "text": text} for text in (header, "You are Claude Code.", "rule " * 1500)
    ]
    system[-1]["cache_control"] = {"type": "ephemeral"}
    return {"model": "m", "system": system, "tools": TOOLS, "messages": turns(number)}


def stamped(number: int, time: str, name: str = "a", **more: Any) -> Body:
    """Return a turn of an agent whose system text has the time in it."""
    system = {"role": "system", "content": f"{'rule ' * 500} It is {time}. {'rule ' * 500}"}
    return {"model": "m", "messages": [system, *turns(number, name)], **more}


def plain(number: int, name: str = "a", system: str = "You help. " * 300) -> Body:
    return {"tools": TOOLS, "messages": [{"role": "system", "content": system}, *turns(number, name)]}


def test_claude_codes_first_line() -> None:
    desk = Desk()
    for number in range(6):
        session = desk.ask(claude(number, f"{number:05x}"), client="laptop")
    assert session.id == "s2", "the first turn is too short to be known again"
    assert (session.turns, len(desk.sessions)) == (5, 2)
    (line,) = desk.news
    chains = [chain_of(claude(number, f"{number:05x}")) for number in range(6)]
    kept = sum(len(json.dumps(tool)) for tool in TOOLS)
    again = [(chain.length - kept) / 4.0 for chain in chains[1:4]]
    assert line == (
        f"session s2 (laptop): turn 2 read {again[0]:,.0f} tokens again: "
        f"its system text changed between characters 1 and 103"
    )
    assert session.reread_tokens == pytest.approx(sum(again))


def test_a_system_text_with_the_time_in_it() -> None:
    desk = Desk()
    for number in range(5):
        session = desk.ask(stamped(number, f"12:0{number}"))
    assert session.broken == "its system text changed between characters 2,305 and 2,560"
    assert session.turns == 4
    assert len(desk.news) == 1


def test_tools_in_another_order() -> None:
    desk = Desk()
    for number in range(5):
        session = desk.ask({**plain(number), "tools": TOOLS[number:] + TOOLS[:number]})
    assert session.broken == "its tools changed"


def test_a_message_that_moves_is_reported_once_much_comes_after_it() -> None:
    """As goose does: it puts a text before the last call."""
    desk = Desk()
    moved = {"role": "user", "content": "It is noon. The folder is /src. Nothing else has changed."}
    for number in range(2, 6):
        messages = turns(number, size=100)
        session = desk.ask({"tools": TOOLS, "messages": [*messages[:-2], moved, *messages[-2:]]})
    assert desk.reports_nothing()
    assert session.turns == 4
    for number in range(6, 10):
        messages = turns(number, size=100)
        session = desk.ask({"tools": TOOLS, "messages": [*messages[:5], moved, *messages[5 + number :]]})
    assert "its messages changed at message" not in session.broken, "most of its messages are gone"
    for number in range(10, 13):
        messages = turns(number, size=100)
        session = desk.ask({"tools": TOOLS, "messages": [*messages[:number], moved, *messages[number:]]})
    assert session.broken.startswith("its messages changed at message 1")


def test_a_prefix_that_holds_is_not_reported() -> None:
    desk = Desk()
    for number in range(6):
        assert desk.ask(plain(number)).turns == number + 1
    assert desk.reports_nothing()


def test_a_change_counts_once_the_session_goes_on_with_it() -> None:
    desk = Desk()
    for number, system in enumerate(["one", "one", "one", "two"]):
        session = desk.ask(plain(number, system=system))
    assert desk.reports_nothing()
    assert desk.ask(plain(4, system="two")) is session
    assert session.broken
    before = session.reread_tokens
    desk.ask(plain(5, system="two"))
    assert session.reread_tokens == before > 0


@pytest.mark.parametrize("claimed", ["", "id"])
def test_a_title_is_not_reported(claimed: str) -> None:
    title, system = ({"role": "system", "content": text} for text in ("You write titles.", "You help."))
    asked, folder = ({"role": "user", "content": text} for text in ("Title:", "The folder is /src."))
    question, *rest = turns(4)
    for messages in ([title, question], [title, asked, question]):
        desk = Desk()
        desk.ask({"messages": messages}, claimed=claimed)
        for upto in range(0, len(rest), 2):
            desk.ask({"messages": [system, question, folder, *rest[:upto]]}, claimed=claimed)
        desk.ask({"messages": messages}, claimed=claimed)
        desk.ask({"messages": [system, question, folder, *rest]}, claimed=claimed)
        assert desk.reports_nothing()


SUMMARISE = [
    {"role": "system", "content": "You write summaries."},
    *turns(4),
    {"role": "user", "content": "Summarise this conversation."},
]


def test_a_summary_is_not_reported() -> None:
    desk = Desk()
    for number in range(5):
        desk.ask(plain(number))
    assert desk.ask({"tools": TOOLS, "messages": SUMMARISE}).broke
    assert desk.ask(plain(5)).turns == 7
    desk.ask(plain(6))
    assert desk.reports_nothing()


def test_a_compaction_is_not_reported() -> None:
    desk = Desk()
    for number in range(5):
        desk.ask(plain(number))
    system = plain(0)["messages"][0]
    summary = {"role": "user", "content": "So far: " + "the file was found. " * 50}
    for messages in (SUMMARISE, [system, summary, *turns(4)[-2:]], [system, summary, *turns(5)[-4:]]):
        desk.ask({"tools": TOOLS, "messages": messages})
    assert desk.reports_nothing()


def test_results_that_are_cleared_are_not_reported() -> None:
    desk = Desk()
    for number in range(6):
        desk.ask({"messages": turns(number)})
    for number in range(6, 9):
        cleared = [each | {"content": "(cleared)"} for each in turns(number)[2:8:2]]
        messages = turns(number)
        messages[2:8:2] = cleared
        desk.ask({"messages": messages})
    assert desk.reports_nothing()


def test_a_window_of_messages_is_not_reported() -> None:
    desk = Desk()
    for number in range(6, 12):
        desk.ask({**plain(0), "messages": [plain(0)["messages"][0], *turns(number)[-8:]]})
    assert desk.reports_nothing()


def test_an_edited_message_is_not_reported() -> None:
    desk = Desk()
    for number in range(5):
        desk.ask(plain(number))
    edited = [*turns(2)[:-1], {"role": "user", "content": "No: look at the tests."}, *turns(4, "b")[1:]]
    for upto in range(5, len(edited) + 1):
        desk.ask({**plain(0), "messages": [plain(0)["messages"][0], *edited[:upto]]})
    assert desk.reports_nothing()


def test_a_new_conversation_with_the_same_system_text_is_not_reported() -> None:
    desk = Desk()
    for name in "abc":
        for number in range(4):
            assert desk.ask(plain(number, name)).turns == number + 1
    assert len(desk.sessions) == 3
    assert desk.reports_nothing()


def test_another_model_is_not_reported() -> None:
    desk = Desk()
    for number in range(6):
        desk.ask({**plain(number), "model": "big" if number % 2 else "small"})
    assert desk.reports_nothing()


def test_two_clients_with_the_same_content_have_their_own_sessions() -> None:
    desk = Desk()
    for number in range(5):
        for client in ("ann", "bob"):
            desk.ask(stamped(number, f"12:0{number}"), client)
    assert [(each.client, each.turns) for each in desk.sessions] == [
        ("ann", 1),
        ("bob", 1),
        ("ann", 4),
        ("bob", 4),
    ]


def test_a_forged_session_id_finds_nothing() -> None:
    desk, claimed = Desk(), hashed(b"session of ann")
    for number in range(4):
        of_ann = desk.ask(stamped(number, f"12:0{number}"), "ann", claimed)
    reread, known = of_ann.reread_tokens, of_ann.turns
    forged = desk.ask(stamped(4, "12:04"), "mallory", claimed)
    assert forged is not of_ann
    assert (forged.turns, forged.broken) == (1, "")
    assert (of_ann.reread_tokens, of_ann.turns) == (reread, known)
    assert desk.ask(stamped(4, "12:04"), "ann", hashed(b"another")) is not of_ann


@pytest.mark.parametrize("cached", [lambda _: None, lambda _: 1e9], ids=["not reported", "cached anyway"])
def test_only_what_the_server_read_again_is_reported(cached: Callable[[float], float | None]) -> None:
    desk = Desk()
    for number in range(5):
        session = desk.ask(stamped(number, f"12:0{number}"), cached=cached)
    assert session.turns == 4, "it is recognised all the same"
    assert desk.reports_nothing()


def test_few_lines_are_logged() -> None:
    desk = Desk()
    for number in range(5):
        for name in "abcdef":
            desk.ask(stamped(number, f"12:0{number}", name))
            desk.now -= 29.0  # a request a second
    assert 1 <= len(desk.news) <= 2
    assert len([each for each in desk.sessions if each.broken]) == 6
    for number in range(5, 8):
        for name in "abcdef":
            desk.ask(stamped(number, f"12:0{number}", name))
    assert len(desk.news) == 6 == len({line.partition(" (")[0] for line in desk.news})


def test_what_is_remembered_of_prompts_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, most in (("MAX_SESSIONS", 200), ("MAX_ENDS", 2000), ("MAX_PIECES", 20_000)):
        monkeypatch.setattr(sessions_module, name, most)
    desk = Desk()
    chains = [chain_of(stamped(number, f"12:0{number}")) for number in (2, 3)]
    for number in range(220):
        for chain in chains:
            own = tuple(each ^ number << 64 for each in chain.hashes)
            parts = replace(chain.parts, hashes=tuple(each ^ number << 64 for each in chain.parts.hashes))
            session = desk.serve(replace(chain, hashes=own, parts=parts))
            assert session.id == f"s{number + 1}"
    sessions = desk.scheduler.sessions
    assert len(sessions.known) == 200
    assert sessions._prompts.keys() <= sessions.known.keys()
    assert len(sessions._by_end) <= 2000
    assert sessions._pieces == sum(len(each.hashes) for each in sessions._prompts.values()) <= 20_000
    long = chain_of({"messages": turns(2000, size=0)})
    for number in range(60):
        desk.serve(replace(long, hashes=tuple(each ^ number << 70 for each in long.hashes)))
    assert sessions._pieces == sum(len(each.hashes) for each in sessions._prompts.values()) <= 20_000
    assert len(sessions._prompts) < 60
