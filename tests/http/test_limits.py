"""How long clients are waited for, how many there may be, and what their bodies may take."""

import asyncio
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import MagicMock

import pytest

from clairvoyant_cli.http.fields import Header
from clairvoyant_cli.http.limits import ConnectionTable, Patience
from clairvoyant_cli.http.request import BLOCK_BYTES, SHORT_BYTES, TURN_BYTES, Piece, Request

MIB = 1024 * 1024


def seconds_held(pace_bytes_per_s: float, timeout_s: float = 30.0, what: str | None = "body") -> int:
    """Return when a client at this rate of bytes per second is given up, in seconds; 1000 if never."""
    patience, moved = Patience(), 0.0
    for second in range(1000):
        if not patience.lasts(what, int(moved), timeout_s, 1.0):
            return second
        moved += pace_bytes_per_s
    return 1000


def test_who_sends_nothing_is_given_up_after_the_timeout() -> None:
    assert seconds_held(0) == 30


def test_who_dribbles_is_given_up_hardly_later() -> None:
    assert seconds_held(0.2) <= 31
    assert seconds_held(100) < 60


def test_who_keeps_moving_is_never_given_up() -> None:
    assert seconds_held(501) == 1000
    assert seconds_held(1e6) == 1000


def test_nobody_is_given_up_who_is_not_waited_for() -> None:
    assert seconds_held(0, what=None) == 1000


def test_each_turn_begins_with_fresh_patience() -> None:
    patience = Patience()
    for _ in range(25):
        assert patience.lasts("body", 0, 30.0, 1.0)
    assert patience.lasts(None, 0, 30.0, 1.0)
    for _ in range(29):
        assert patience.lasts("reader", 0, 30.0, 1.0)


def test_a_shorter_timeout_holds_for_who_is_waited_for_already() -> None:
    patience = Patience()
    patience.lasts("reader", 0, 30.0, 1.0)
    assert not [patience.lasts("reader", 0, 5.0, 1.0) for _ in range(6)][-1]


@dataclass(eq=False)
class Client:
    """A connection as the table sees it."""

    peer: str = "127.0.0.1"
    aborted: list["Client"] = field(default_factory=list)
    idle: bool = True
    owes_request: bool = True
    silent_s: float = 0.0
    unsent: int = 0

    def tick(self, elapsed_s: float) -> None:
        """Do nothing."""

    def retire(self) -> None:
        """Do nothing."""

    def abort(self) -> None:
        self.aborted.append(self)


def client(peer: str = "127.0.0.1") -> Any:
    return Client(peer)


def test_who_never_asked_makes_room_before_who_did() -> None:
    table = ConnectionTable(most=3)
    asked, silent, newer = client(), client(), client()
    for each in (asked, silent, newer):
        assert table.admit(each)
    asked.owes_request = False
    late = [client() for _ in range(3)]
    assert all(table.admit(each) for each in late)
    assert (silent.aborted, newer.aborted, asked.aborted) == ([silent], [newer], [])
    assert table.admit(client())
    assert (late[0].aborted, asked.aborted) == ([late[0]], [])


def test_who_never_ends_a_request_makes_room_first_who_has_been_silent_longest() -> None:
    table = ConnectionTable(most=3)
    silent, slow, stranger = client(), client(), client("192.0.2.1")
    for each in (stranger, silent, slow):
        assert table.admit(each)
    stranger.silent_s, silent.silent_s, slow.silent_s = 3.0, 1.0, 2.0
    asked = client()
    assert table.admit(asked)
    asked.owes_request = asked.idle = False
    assert (slow.aborted, silent.aborted, stranger.aborted) == ([slow], [], [])
    assert table.admit(client("192.0.2.1"))
    assert (stranger.aborted, silent.aborted, asked.aborted) == ([stranger], [], [])


def test_nobody_makes_room_whose_request_is_served() -> None:
    table = ConnectionTable(most=2)
    for each in (client(), client()):
        table.admit(each)
        each.owes_request = each.idle = False
    refused = client()
    assert not table.admit(refused)
    assert refused not in table.every


async def test_a_body_is_what_was_sent_however_it_came() -> None:
    whole = bytes(range(256)) * 12_000
    for step in (1000, 65_536, 3 * BLOCK_BYTES):
        request = Request(MagicMock(), MagicMock(table=ConnectionTable()))
        for at in range(0, len(whole), step):
            request.feed(whole[at : at + step])
        assert b"".join(request.arrived) == whole
        request.sent()
        assert request.arrived == []


async def test_what_waits_of_a_body_but_for_its_beginning_counts_towards_the_budget() -> None:
    client: Any = MagicMock(table=ConnectionTable())
    request = Request(MagicMock(), client)
    for more, counted in ((SHORT_BYTES, 0), (1000, 1000), (BLOCK_BYTES, 1000 + BLOCK_BYTES)):
        request.feed(bytes(more))
        assert client.table.body_bytes == counted
    request.sent()
    assert client.table.body_bytes == 0


class Sink:
    """Takes a body, and counts the turns of the loop."""

    def __init__(self) -> None:
        self.taken: list[bytes] = []
        self.ended = asyncio.Event()

    def body(self, data: Piece) -> None:
        self.taken.append(bytes(data))

    def body_end(self, trailers: list[Header]) -> None:
        self.ended.set()


async def test_a_long_body_leaves_turns_of_the_loop_to_others() -> None:
    client: Any = MagicMock(table=ConnectionTable())
    request, sink, whole = Request(MagicMock(), client), Sink(), bytes(range(256)) * 20_000
    request.feed(whole)
    request.feed_end([])
    request.flow_to(sink)
    assert sum(map(len, sink.taken)) < len(whole) // 4
    request.pause()
    request.resume()
    await sink.ended.wait()
    assert b"".join(sink.taken) == whole
    assert max(map(len, sink.taken)) <= TURN_BYTES


def long_request(table: ConnectionTable, length: int | None) -> Request:
    connection: Any = MagicMock(table=table)
    return Request(MagicMock(length=length, expects_continue=False), connection)


async def read_by(client: str, request: Request) -> "asyncio.Task[list[Piece] | None]":
    """Begin to read a long body, of which only the beginning is here, and see how far that goes at once."""
    request.feed(bytes(SHORT_BYTES + 1))
    reading = asyncio.create_task(request.read(128 * MIB, client))
    await asyncio.sleep(0)
    return reading


@pytest.mark.parametrize(("length", "room"), [(60 * MIB, 60 * MIB), (200 * MIB, 128 * MIB), (None, 64 * MIB)])
async def test_an_upload_takes_room_for_all_of_it_until_it_ends(length: int | None, room: int) -> None:
    table = ConnectionTable()
    request = long_request(table, length)
    reading = await read_by("ann", request)
    assert table.bodies == {"ann": room - SHORT_BYTES}
    request.feed_end([])
    assert await reading == request.arrived
    assert table.bodies == {"ann": 1}


async def test_who_holds_most_waits_and_nobody_else_does() -> None:
    table = ConnectionTable()
    uploads = [await read_by("ann", long_request(table, 60 * MIB)) for _ in range(12)]
    assert (len(table.waiting["ann"]), table.is_pressed("ann")) == (10, False)
    bob = await read_by("bob", long_request(table, 100 * MIB))
    assert table.bodies["bob"] == 100 * MIB - SHORT_BYTES
    eve = await read_by("eve", long_request(table, 90 * MIB))
    assert "eve" in table.waiting
    assert (table.is_pressed("ann"), table.is_pressed("bob"), table.is_pressed("eve")) == (True, True, False)
    for leaver in (uploads[2], uploads[0]):  # the first of those that wait, and of those that hold
        leaver.cancel()
        await asyncio.wait([leaver])
    assert list(table.waiting) == ["ann"]
    for each in (bob, eve, *uploads):
        each.cancel()
    await asyncio.wait([bob, eve, *uploads])
    assert (table.body_bytes, table.bodies, table.waiting) == (4, {"ann": 2, "bob": 1, "eve": 1}, {})
