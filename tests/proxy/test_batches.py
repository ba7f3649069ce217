"""Programs that work through a batch are in the background until they behave otherwise."""

import logging
from dataclasses import replace
from pathlib import Path

import pytest

from clairvoyant_cli.protocols.request_parsing import ParsedRequest
from clairvoyant_cli.proxy.access.programs import Program
from clairvoyant_cli.proxy.requests.batches import PAUSE_S, RUN, Batches
from clairvoyant_cli.state.actions import Verb
from predictor.record import PromptView, Step, Task, Turn
from tests.fakes.serving import asked, replaying
from tests.proxy.test_clients import chat, secret
from tests.proxy.test_programs import one_by_one

SINGLE = ParsedRequest(view=PromptView("Translate into French: sea"))
STREAMED = replace(SINGLE, stream=True)
NEXT_TURN = replace(SINGLE, view=PromptView("and now?", history=(Turn("assistant", "la mer"),)))
AGENT = replace(SINGLE, view=PromptView("go on", step=Step()))
INFILL = replace(SINGLE, view=PromptView("def f(", task=Task.INFILL))
EMBEDDING = replace(SINGLE, view=PromptView("", task=Task.EMBEDDING))


class Sent:
    """Requests of one client that are served at once, `gap_s` apart."""

    def __init__(self, gap_s: float = 0.5) -> None:
        self.log: list[str] = []
        self.batches = Batches(lambda _, text: self.log.append(text))
        self.now, self.gap_s = 0.0, gap_s

    def __call__(self, *requests: ParsedRequest) -> bool:
        for each in requests:
            self.now += self.gap_s
            found = self.batches.asked("night", each, self.now)
            self.batches.admitted("night")
            self.batches.ended("night", self.now)
        return found


@pytest.mark.parametrize("kind", [SINGLE, EMBEDDING])
def test_a_run_of_unstreamed_requests_is_a_batch(kind: ParsedRequest) -> None:
    sent = Sent()
    assert not sent(*[kind] * (RUN - 1))
    assert sent(kind)
    what = f"night is in the background: {RUN} requests in a row without a pause are not streamed"
    assert sent.log == [f'{what}; to undo it: clairvoyant act interactive "night"']


def test_streams_of_one_template_are_a_batch_and_others_are_not() -> None:
    assert Sent()(STREAMED, *[STREAMED] * RUN)
    others = [replace(STREAMED, view=PromptView(f"{number} and more")) for number in range(2 * RUN)]
    assert not Sent()(*others)


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (NEXT_TURN, "continued a conversation"),
        (AGENT, "continued a conversation or offered tools"),
        (INFILL, "sent something else than chats and embeddings"),
        (replace(STREAMED, view=PromptView("Good morning!")), "streamed another prompt"),
        (ParsedRequest(), "sent something else"),
    ],
)
def test_one_request_of_another_kind_ends_it(kind: ParsedRequest, why: str) -> None:
    sent = Sent()
    sent(*[SINGLE] * RUN)
    assert not sent(kind)
    assert not sent(*[SINGLE] * (RUN - 1))
    assert why in sent.log[1]


def test_a_pause_ends_it_but_a_long_answer_is_none() -> None:
    assert not Sent(gap_s=PAUSE_S + 1)(*[SINGLE] * 2 * RUN)
    sent = Sent()
    sent(*[SINGLE] * RUN)
    sent.batches.admitted("night")  # one is being answered meanwhile
    sent.now += 10 * PAUSE_S
    assert sent(SINGLE)
    sent.batches.ended("night", sent.now)
    sent.now += 10 * PAUSE_S
    assert not sent(SINGLE)
    assert "paused for" in sent.log[-1]


def test_an_operator_and_a_rule_undo_it(tmp_path: Path) -> None:
    sent = Sent()
    sent(*[SINGLE] * RUN)
    assert sent.batches.pardon("night")
    assert not sent(*[SINGLE] * RUN)
    assert not sent.batches.pardon("day")


@pytest.mark.parametrize(
    ("rule", "keyed", "levels"),
    [
        ("", False, 10),
        ("background = 3", False, 3),
        ("background = false", False, 0),
        ("background = 0", False, 0),
    ],
)
async def test_the_next_requests_of_a_batch_wait_behind_others(
    rule: str, keyed: bool, levels: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    file = secret(tmp_path / "clients.toml", f'[clients.night]\nprogram = "nightly.py"\n{rule}\n')
    programs = one_by_one(*[Program("nightly.py", "jobs")] * (RUN + 1))
    async with replaying(slots=1, clients=file, programs=programs) as daemon:
        daemon.dispatcher.scheduler.pause()
        async with asked(daemon, *[chat()] * (RUN + 1)):
            jobs = daemon.dispatcher.scheduler.waiting()
        if levels:
            await daemon.control._actions.run(Verb.INTERACTIVE, {"name": "night"})
    assert [job.background_levels for job in jobs] == [0] * (RUN - 1) + [levels] * 2
    assert ("night is in the background" in caplog.text) == bool(levels)
