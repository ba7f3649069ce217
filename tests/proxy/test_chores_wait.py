"""Work that a front end asks for on its own stands behind what people ask, as its client's rules say."""

from pathlib import Path

import pytest

from tests.fakes.raw_http import chat, raw_client
from tests.fakes.replay_backend import Engine, tabled
from tests.fakes.serving import occupied, replaying, until

TITLE = "### Task:\nGenerate a concise title summarizing the chat history.\n<chat_history>..."


@pytest.mark.parametrize(
    ("rule", "order"), [("", ["short", "title"]), ("background = 0", ["title", "short"])]
)
async def test_a_title_stands_behind_a_longer_question(tmp_path: Path, rule: str, order: list[str]) -> None:
    file = tmp_path / "clients.toml"
    file.write_text(f"[defaults]\n{rule}\n")
    async with (
        occupied(clients=str(file), policy="sjf") as (daemon, _),
        raw_client(daemon.base_url) as front_end,
        raw_client(daemon.base_url) as person,
    ):
        front_end.send(chat(f"0.1 {TITLE}", "X-Clairvoyant-Chore: title_generation"))
        await until(daemon, lambda s: len(s.queue) == 1)
        person.send(chat("0.9 short"))
        state = await until(daemon, lambda s: len(s.queue) == 2)
        names = {0.1: "title", 0.9: "short"}
        assert [names[row.predicted.p_long] for row in state.queue] == order
        background = [row for row in state.queue if "Background request" in row.why]
        assert [names[row.predicted.p_long] for row in background] == (["title"] if not rule else [])


async def test_a_background_request_is_not_in_the_statistics_of_its_class() -> None:
    engine = Engine(answer_tokens=tabled({"short": 3, "###": 3}))
    async with (
        replaying(engine, policy="sjf") as daemon,
        raw_client(daemon.base_url) as front_end,
        raw_client(daemon.base_url) as person,
    ):
        front_end.send(chat(f"0.1 {TITLE}", "X-Clairvoyant-Chore: title_generation"))
        await front_end.response()
        person.send(chat("0.9 short"))
        await person.response()
        state = await until(daemon, lambda s: s.counters.completed == 2)
        assert [(each.wait.n, each.sojourn.n) for each in state.stats] == [(1, 1), (0, 0), (0, 0)]
