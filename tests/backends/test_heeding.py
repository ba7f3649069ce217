"""Whether an engine orders its own queue by priority, as far as that shows."""

import asyncio
import json
import sys
from typing import Any

import psutil
import pytest

from clairvoyant_cli.backends import process_inspection
from clairvoyant_cli.backends.kinds import vllm
from clairvoyant_cli.backends.kinds.sglang import SgLang
from clairvoyant_cli.backends.priority import Heeding
from clairvoyant_cli.backends.prober import Prober
from clairvoyant_cli.backends.process_inspection import words_of
from clairvoyant_cli.http.upstream import Upstream
from clairvoyant_cli.protocols.probes import EngineLoad, ProbeAnswer
from clairvoyant_cli.proxy.servers.server import Server


async def never(*_: object, **__: object) -> ProbeAnswer:
    raise AssertionError("nothing is to be asked")


@pytest.mark.parametrize(
    ("words", "known", "heeds"),
    [
        ("vllm serve m --scheduling-policy priority", True, True),
        ("vllm serve m --scheduling_policy=priority --port 1", True, True),
        ("vllm serve m --scheduling-policy priority --scheduling-policy fcfs", True, False),
        ("vllm serve m --max-num-seqs 4", True, False),
        ("vllm serve m --config engine.yaml", False, False),
        ("", False, False),
    ],
)
async def test_vllm_shows_it_in_its_command_line(
    words: str, known: bool, heeds: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clairvoyant_cli.backends.adapter.words_of", lambda names, port: words.split())
    seen = await vllm.Vllm().heeding(never, 8000)
    assert (seen.known, seen.priority is not None) == (known, heeds)
    assert await vllm.Vllm().heeding(never, None) == Heeding(known=False)


@pytest.mark.parametrize(
    ("words", "slots"),
    [("vllm serve m --max-num-seqs 8", 8), ("vllm serve m --max-num-seqs=0", None), ("vllm serve m", None)],
)
def test_and_how_many_it_answers_at_once(
    words: str, slots: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clairvoyant_cli.backends.adapter.words_of", lambda names, port: words.split())
    assert vllm.Vllm().local_slots(8000) == slots


async def test_the_command_line_is_that_of_who_listens_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_inspection, "psutil", psutil)  # the machine's own processes
    listens = (
        "import socket, sys; s = socket.create_server(('127.0.0.1', 0)); "
        "print(s.getsockname()[1], flush=True); sys.stdin.read()"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        listens,
        "--scheduling-policy",
        "priority",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    port = int(await process.stdout.readline())
    assert words_of(("python",), port)[-2:] == ["--scheduling-policy", "priority"]
    assert words_of(("python",), 1) == []
    await process.communicate(b"")


@pytest.mark.parametrize(
    ("told", "known", "lower_first"),
    [
        ({"enable_priority_scheduling": True}, True, False),
        ({"enable_priority_scheduling": True, "schedule_low_priority_values_first": True}, True, True),
        ({"enable_priority_scheduling": True, "enable_metrics": True}, True, None),
        ({"enable_priority_scheduling": False}, True, None),
    ],
)
async def test_sglang_tells_it_and_which_way_it_counts(
    told: dict[str, Any], known: bool, lower_first: bool | None
) -> None:
    async def ask(path: str, *_: object, **__: object) -> ProbeAnswer:
        body = json.dumps({"model_path": "m", "version": "0.5", **told}).encode()
        return ProbeAnswer(200, body) if path == "/get_server_info" else ProbeAnswer(404)

    seen = await SgLang().heeding(ask, None)
    assert seen.known is known
    assert (None if seen.priority is None else seen.priority.lower_first) is lower_first


def test_how_many_it_answers_at_once_is_learnt_from_what_it_runs() -> None:
    upstream = Upstream("http://127.0.0.1:1")
    server = Server("engine", vllm.Vllm(), upstream, Prober(), annotate="on")
    seen = []
    for running, waiting in ((0, 0), (3, 0), (2, 0), (5, 7), (2, 0), (8, 0)):
        server.status.learn_load(EngineLoad(running=running, waiting=waiting))
        seen.append(server.at_once)
    assert seen == [1, 4, 4, 5, 5, 9]
    server.annotate = "off"
    assert server.at_once == 1
