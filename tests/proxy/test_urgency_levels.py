"""Who says how urgent a request is, which word counts, and where it is told."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from clairvoyant_cli.proxy.composition import Daemon
from clairvoyant_cli.state.client import ControlClient
from predictor.record import PromptView
from tests.fakes.raw_http import chat, raw_client
from tests.fakes.replay_backend import Engine
from tests.fakes.serving import asked, occupied, replaying, secret, until

CLIENTS = """
[defaults]
predicted_urgency = [1, 4]

[clients.nurse]
key = "key-of-nurse"
urgency = [0, 4]

[clients.ambulance]
key = "key-of-ambulance"

[clients.desk]
key = "key-of-desk"

[[urgency]]
level = 0
client = "amb*"
header = "X-Department: emergency*"

[[urgency]]
level = 4
route = "/api/*"
model = "batch-*"
"""


DESK = "X-Api-Key: key-of-desk"


class ByWord:
    """Thinks that whatever shouts is urgent."""

    name = "by-word"

    def level(self, view: PromptView, opinion: object = None) -> int:
        return 0 if "URGENT" in view.prompt else 3


CASES = [
    ((), {}, None, ""),
    (("X-Clairvoyant-Urgency: 0",), {}, 2, "client"),
    (("X-Clairvoyant-Urgency: 4",), {}, 4, "client"),
    (("X-Clairvoyant-Urgency: 0", "X-Api-Key: key-of-nurse"), {}, 0, "client"),
    (("X-Clairvoyant-Urgency: soon", "X-Api-Key: key-of-nurse"), {}, None, ""),
    (
        ("X-Clairvoyant-Urgency: 4", "X-Api-Key: key-of-ambulance", "x-department: Emergency 2"),
        {},
        4,
        "client",
    ),
    (
        ("X-Clairvoyant-Urgency: 4", "X-Api-Key: key-of-ambulance", "x-department: emergency 2"),
        {},
        0,
        "rule",
    ),
    (("X-Api-Key: key-of-nurse", "X-Department: emergency"), {}, None, ""),
    (("X-Clairvoyant-Urgency: 0", "X-Api-Key: key-of-nurse"), {"model": "batch-7b"}, 4, "rule"),
]


Level = Callable[..., Awaitable[tuple[int | None, str]]]


@asynccontextmanager
async def behind_another(
    tmp_path: Path, urgency: ByWord | None = None
) -> AsyncIterator[tuple[Daemon, Level]]:
    """A daemon whose slot is taken, and what tells the level that a request gets, and who says so."""
    clients = secret(tmp_path / "clients.toml", CLIENTS)
    settings = {"clients": clients, "policy": "urgency", "urgency_predictor": urgency}
    async with occupied(DESK, **settings) as (daemon, _):

        async def level(*headers: str, content: str = "short", **more: str) -> tuple[int | None, str]:
            key = () if any("X-Api-Key" in header for header in headers) else (DESK,)
            async with raw_client(daemon.base_url) as client:
                client.send(chat(content, *headers, *key, path="/api/chat", **more))
                state = await until(daemon, lambda s: len(s.queue) == 1)
            await until(daemon, lambda s: not s.queue)
            return state.queue[0].urgency, state.queue[0].urgency_by

        yield daemon, level


async def test_rules_come_before_clients(tmp_path: Path) -> None:
    async with behind_another(tmp_path) as (daemon, level):
        for headers, more, *said in CASES:
            assert [*await level(*headers, **more)] == said, headers
        assert [each.running for each in daemon.snapshot().urgency.levels] == [0, 0, 1, 0, 0]


async def test_clients_come_before_the_predictor(tmp_path: Path) -> None:
    async with behind_another(tmp_path, ByWord()) as (daemon, level):
        assert await level() == (3, "predictor")
        assert await level(content="URGENT!!!") == (1, "predictor")  # as far as it may say of this client
        assert await level("X-Clairvoyant-Urgency: 4", content="URGENT!!!") == (4, "client")
        assert daemon.snapshot().urgency.predictor == "by-word"


async def test_one_that_is_called_level_0_again_and_again_is_late_once() -> None:
    engine = Engine()
    engine.freeze()
    async with (
        replaying(engine, policy="urgency") as daemon,
        asked(daemon, *[chat("short")] * 3),
        ControlClient(daemon.base_url) as control,
    ):
        daemon.stats.urgency_target_s = 0.2
        again, last = [each.id for each in daemon.snapshot().queue]
        for level in (0, 1) * 10:
            await control.act("urgency", {"id": again, "level": level})
        for job_id in (again, last):  # whose timer runs after those of the first
            await control.act("urgency", {"id": job_id, "level": 0})
        state = await until(daemon, lambda s: any(f"request {last} of" in line.text for line in s.log))
        assert state.urgency.late == 2
        for level in (1, 0):
            await control.act("urgency", {"id": again, "level": level})
        await control.act("cancel", {"id": again})
        state = await until(daemon, lambda s: len(s.queue) == 1)
        assert state.urgency.late == 2
        engine.thaw()
