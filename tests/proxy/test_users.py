"""A front end names its users: believed of its own key alone, and each is a client."""

from pathlib import Path

import pytest

from clairvoyant_cli.http.fields import Fields
from clairvoyant_cli.http.heads import RequestHead
from clairvoyant_cli.protocols.printable import NAME_CHARS
from clairvoyant_cli.proxy.access.clients import parse_clients, user_name
from tests.fakes.raw_http import chat, raw_client
from tests.fakes.serving import occupied, secret, until

FILE = """
[clients.webui]
key = "key-of-the-front-end"
users = "X-User"
max_waiting = 1
weight = 3

[clients."webui/ann@example.org"]
weight = 2

[clients.desk]
key = "key-of-the-desk"
"""


async def test_only_the_key_that_may_names_users_and_each_has_its_own_places(tmp_path: Path) -> None:
    desk, front_end = "X-Api-Key: key-of-the-desk", "X-Api-Key: key-of-the-front-end"
    async with occupied(desk, clients=secret(tmp_path / "clients.toml", FILE)) as (daemon, _):

        async def client_of(*headers: str) -> str:
            async with raw_client(daemon.base_url) as asker:
                before = {row.id for row in daemon.snapshot().queue}
                asker.send(chat("endless", *headers))
                state = await until(daemon, lambda s: len(s.queue) == len(before) + 1)
            await until(daemon, lambda s: len(s.queue) == len(before))
            return next(row.client for row in state.queue if row.id not in before)

        async with raw_client(daemon.base_url) as waits:
            assert await client_of(front_end, "X-User: ann@example.org") == "webui/ann@example.org"
            assert await client_of(front_end) == "webui"
            assert await client_of(desk, "X-User: ann@example.org") == "desk"

            waits.send(chat("endless", front_end, "X-User: ben"))
            await until(daemon, lambda s: len(s.queue) == 1)
            async with raw_client(daemon.base_url) as again:
                assert (await again.ask(chat("endless", front_end, "X-User: ben"))).status == 503
            assert await client_of(front_end, "X-User: cleo") == "webui/cleo"
            weights = {each.name: each.weight for each in daemon.snapshot().clients}
            assert weights == {"webui": 3, "webui/ann@example.org": 2, "webui/ben": 3, "desk": 1}
            limits = {each.name: each.max_waiting for each in daemon.snapshot().clients}
            assert limits["webui/ann@example.org"] == 1, "its table says only what is other"


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("6f3c9b1e-27aa-4f0e-9d70-2d1f5a9f0c11", "6f3c9b1e"),
        ("Ada%20King Lovelace", "Ada_King_Lovelace"),
        ("J%C3%B6rg", "Jörg"),
        ("a%0d%0aX-Evil: 1", "a??X-Evil:_1"),
        ("  ", ""),
    ],
)
def test_a_user_is_one_word(given: str, name: str) -> None:
    assert user_name(given) == name


def test_long_names_that_begin_alike_stay_apart() -> None:
    clients, names = parse_clients(FILE, "FILE"), set[str]()
    for user in ("a" * 80, "a" * 79 + "b"):
        fields = Fields([(b"Host", b"localhost"), (b"x-user", user.encode())])
        head = RequestHead(b"POST", b"/api/chat", fields, http10=False)
        names.add(clients.user_of("webui", head))
    assert len(names) == 2
    assert {len(name) for name in names} == {NAME_CHARS}
