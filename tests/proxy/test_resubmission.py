"""A client that gives up waiting and sends its request again keeps its place."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from clairvoyant_cli.proxy.composition import Daemon
from clairvoyant_cli.proxy.queue.ended import Outcome
from clairvoyant_cli.proxy.requests import kept_places
from clairvoyant_cli.proxy.requests.kept_places import Resubmissions
from clairvoyant_cli.scheduler.chain import Chain
from clairvoyant_cli.state.snapshot import Snapshot
from tests.fakes.ended import ended
from tests.fakes.raw_http import chat, post, raw_client
from tests.fakes.serving import asked, occupied, secret, until


@asynccontextmanager
async def sent_again(daemon: Daemon, first: bytes, again: bytes) -> AsyncIterator[Snapshot]:
    """Send a request, then another client's; leave, send again. Yield the state with both in the queue."""
    async with raw_client(daemon.base_url) as other:
        async with asked(daemon, first):
            other.send(chat("another"))
            await until(daemon, lambda s: len(s.queue) == 2)
        await until(daemon, lambda s: len(s.queue) == 1)
        async with asked(daemon, again):
            yield await until(daemon, lambda s: len(s.queue) == 2)


async def order_of(daemon: Daemon, first: bytes, again: bytes) -> list[str]:
    async with sent_again(daemon, first, again) as state:
        return [each.id.partition("-")[2] for each in state.queue]


async def test_it_stands_where_it_stood_however_it_is_written() -> None:
    messages = [{"role": "user", "content": "patience"}]
    again = {"stream": True, "client_metadata": {"b": 1}, "messages": messages, "model": "replay"}
    async with occupied(policy="fcfs") as (daemon, _):
        body = post("/v1/chat/completions", json.dumps(again).encode())
        order = await order_of(daemon, chat("patience"), body)
        assert order == ["2.2", "3"]
        assert any("2 was sent again and keeps its age" in each.text for each in daemon.snapshot().log)


async def test_it_is_new_once_the_place_is_gone_or_for_another_prompt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with occupied(policy="fcfs") as (daemon, _):
        assert await order_of(daemon, chat("patience"), chat("patience!")) == ["3", "4"]
    monkeypatch.setattr(kept_places, "KEPT_S", 0.0)
    async with occupied(policy="fcfs") as (daemon, _):
        assert await order_of(daemon, chat("patience"), chat("patience")) == ["3", "4"]


async def test_another_principal_does_not_get_it(tmp_path: Path) -> None:
    keys = secret(tmp_path / "keys", "ann:a-key-of-ann\nben:a-key-of-ben\n")
    async with occupied("X-Api-Key: a-key-of-ann", api_key_file=keys) as (daemon, _):
        async with asked(daemon, chat("patience", "X-Api-Key: a-key-of-ann")):
            await until(daemon, lambda s: len(s.queue) == 1)
        await until(daemon, lambda s: not s.queue)
        async with asked(daemon, chat("patience", "X-Api-Key: a-key-of-ben")):
            state = await until(daemon, lambda s: len(s.queue) == 1)
        assert "." not in state.queue[0].id


def left(kept: Resubmissions, client: str, prompt: int, arrival_s: float, left_s: float) -> None:
    how: dict[str, Any] = {"id": f"id-{prompt}", "principal": client, "prompt_hash": prompt, "ttft_s": None}
    kept.ended(ended(**how, outcome=Outcome.CLIENT_CANCELLED, arrival_s=arrival_s, ended_s=left_s))


def age_of(kept: Resubmissions, client: str, prompt: int, now: float, *, waiting: int) -> float | None:
    taken = kept.take(client, "", Chain((prompt,)), now, waiting=waiting)
    return None if taken is None else taken[1]


def test_time_in_which_nothing_waited_adds_no_age() -> None:
    kept = Resubmissions()
    for prompt in (1, 2, 3):
        left(kept, "ann", prompt, 10.0, 12.0)
    assert age_of(kept, "ann", 1, 15.0, waiting=1) == 5.0
    assert age_of(kept, "ann", 1, 15.0, waiting=1) is None  # it is taken once
    assert age_of(kept, "ann", 2, 20.0, waiting=0) == 2.0
    assert age_of(kept, "ann", 3, 21.0, waiting=1) == 3.0


def test_the_places_of_one_principal_do_not_drop_those_of_another() -> None:
    kept = Resubmissions()
    left(kept, "ann", 0, 0.0, 1.0)
    for prompt in range(kept_places.MAX_KEPT + 100):
        left(kept, "eve", prompt, 1.0, 1.0)
    assert age_of(kept, "ann", 0, 1.0, waiting=1) == 1.0
    assert age_of(kept, "eve", 50, 1.0, waiting=1) is None
    assert age_of(kept, "eve", kept_places.MAX_KEPT, 1.0, waiting=1) == 0.0


def test_what_is_kept_is_bounded_whatever_clients_call_themselves() -> None:
    kept = Resubmissions()
    for number in range(kept_places.MAX_KEPT + 100):
        left(kept, f"user{number}", 1, 0.0, 1.0)
    assert len(kept._left) == kept_places.MAX_KEPT
    for number in range(kept_places.MAX_KEPT + 100):
        age_of(kept, f"user{number}", 1, 1.0, waiting=1)
    assert not kept._left


async def test_the_longest_wait_counts_from_the_request_that_was_sent_again() -> None:
    async with occupied(policy="fcfs", max_wait=3600.0) as (daemon, _):
        sent_s = daemon.journal.clock()
        async with sent_again(daemon, chat("patience"), chat("patience")):
            (again,) = (each for each in daemon.dispatcher.live.values() if each.kept_age_s)
            patience_s = daemon.operation.patience_s(again)
            assert patience_s is not None
            assert patience_s >= 3600.0 - (daemon.journal.clock() - sent_s)
