"""The programs of this machine as its clients, where there are no keys."""

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import pytest

from clairvoyant_cli.errors import ClairvoyantError
from clairvoyant_cli.http.limits import Ends
from clairvoyant_cli.protocols.printable import NAME_CHARS
from clairvoyant_cli.proxy.access.clients import parse_clients
from clairvoyant_cli.proxy.access.programs import (
    Find,
    Program,
    Programs,
    _by_psutil,
    find_programs,
    program_of,
)
from tests.fakes.raw_http import post, raw_client
from tests.fakes.serving import asked, occupied, secret, until
from tests.proxy.test_clients import HOLDS, chat

CONNECTS = "import socket, sys; s = socket.create_connection((sys.argv[1], int(sys.argv[2]))); input()"


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("/usr/bin/curl -s http://127.0.0.1", "curl"),
        ("python3.12 -W ignore -u /home/ann/jobs/nightly.py --all", "nightly.py"),
        ("/venv/bin/python /venv/bin/open-webui serve", "open-webui"),
        ("python3 -c pass", "python3"),
        ("python3", "python3"),
        ("node /usr/lib/node_modules/@anthropic-ai/claude-code/cli.js", "claude-code"),
        ("node --import tsx /site/node_modules/.bin/opencode", "opencode"),
        ("bun run src/index.ts", "index.ts"),
        ("java -Xmx1g -jar /opt/batch.jar", "batch.jar"),
        ("claude", "claude"),
        ("nginx: worker process", "nginx"),
        ("", None),
    ],
)
def test_a_program_is_named_by_its_command_line(words: str, name: str | None) -> None:
    found = program_of(words.split() if words != "nginx: worker process" else [words], "/srv/site")
    assert found == (None if name is None else Program(name, "site"))


def test_home_assistant_is_one_client_wherever_it_runs() -> None:
    for words in ("python3 -m homeassistant --config /config", "/srv/ha/bin/python /srv/ha/bin/hass"):
        assert program_of(words.split(), "/config") == Program("Home Assistant")


def test_a_program_in_a_home_or_a_root_has_no_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ann")
    monkeypatch.setenv("USERPROFILE", "/home/ann")
    assert [program_of(["curl"], place) for place in ("/home/ann", "/")] == [Program("curl")] * 2


@pytest.mark.parametrize("find", [find_programs, lambda wanted: dict(_by_psutil(wanted))])
@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "::ffff:127.0.0.1"])
def test_the_process_at_the_other_end_is_found(host: str, find: Find, tmp_path: Path) -> None:
    if host == "::ffff:127.0.0.1" and (sys.platform != "linux" or find is not find_programs):
        pytest.skip("psutil gives such an address as it is")
    script, folder = tmp_path / "asks.py", tmp_path / "jobs"
    folder.mkdir()
    script.write_text(CONNECTS)
    at = "127.0.0.1" if "." in host else host
    with socket.create_server((at, 0), family=socket.AF_INET6 if at == "::1" else socket.AF_INET) as server:
        command = [sys.executable, str(script), host, str(server.getsockname()[1])]
        with subprocess.Popen(command, stdin=subprocess.PIPE, cwd=folder) as process:
            connection, peer = server.accept()
            ends = peer[:2], connection.getsockname()[:2]
            found = find([ends, (("127.0.0.1", 1), ("127.0.0.1", 2))])
            process.communicate(b"\n")
            connection.close()
    assert found == {ends: Program("asks.py", "jobs")}


def one_by_one(*programs: Program | None) -> Programs:
    """Programs of which each new connection is the next."""
    rest = iter(programs)

    def find(wanted: Collection[Ends]) -> Mapping[Ends, Program]:
        return {ends: program for ends in wanted if (program := next(rest)) is not None}

    return Programs(find)


FLOOD, ASKS = Program("nightly.py", "jobs"), Program("opencode", "site")


async def order_of(*headers: str, **settings: Any) -> list[str]:
    """Return the clients of the waiting requests in the order of their starts; the last one comes last."""
    async with occupied(*HOLDS, **settings) as (daemon, _), asked(daemon, *map(chat, headers)):
        return [each.client for each in daemon.snapshot().queue]


async def test_one_program_waits_behind_the_flood_of_another_as_with_keys(tmp_path: Path) -> None:
    keys = "".join(f'[clients.{name}]\nkey = "key-of-{name}"\n' for name in ("holder", "flood", "asks"))
    file = secret(tmp_path / "clients.toml", keys)
    keyed = await order_of(*["X-Api-Key: key-of-flood"] * 6, "X-Api-Key: key-of-asks", clients=file)
    programs = one_by_one(Program("holder"), *[FLOOD] * 6, ASKS)
    keyless = await order_of(*["X-Nothing: 1"] * 7, programs=programs)
    assert keyed.index("asks") == keyless.index(ASKS.client) == 1  # the first of each client in turn
    assert keyless.count(FLOOD.client) == 6


async def test_a_table_makes_programs_a_client_and_its_requests_background(tmp_path: Path) -> None:
    text = '[clients.nightly]\nprogram = "night*"\nbackground = true\nmax_waiting = 1\n'
    file = secret(tmp_path / "clients.toml", text)
    night = Program("nightly.py", "jobs")
    programs = one_by_one(None, night, Program("opencode", "site"), night)
    async with (
        occupied(*HOLDS, programs=programs, clients=file) as (daemon, _),
        asked(daemon, chat(), chat("X-Clairvoyant-Client: nightly")),
        raw_client(daemon.base_url) as again,
    ):
        refused = await again.ask(chat())
        state = daemon.snapshot()
        jobs = daemon.dispatcher.scheduler.waiting()
    assert b"nightly has reached its queue limit" in refused.body
    assert [(each.client, each.background_levels, each.program) for each in jobs] == [
        ("opencode (site)", 0, "opencode"),
        ("nightly", 10, "nightly.py"),
    ]
    assert [each.client for each in state.queue] == [
        "nightly",
        "nightly",
    ]  # the header is shown, and earns nothing


@pytest.mark.parametrize(
    ("program", "rule", "more", "priority"),
    [
        (Program("Home Assistant"), "", {}, -1),
        (Program("Home Assistant"), "", {"format": {"type": "object"}}, 0),
        (Program("Home Assistant"), "", {"format": "json"}, 0),
        (Program("Home Assistant"), "priority = [0, 0]", {}, 0),
        (Program("Home Assistant"), "priority = [5, 5]", {}, 5),
        (Program("opencode", "Home Assistant"), "", {}, 0),
        (None, "", {}, 0),
    ],
)
async def test_the_voice_assistant_goes_first_unless_it_runs_a_task(
    program: Program | None, rule: str, more: dict[str, object], priority: int, tmp_path: Path
) -> None:
    file = secret(tmp_path / "clients.toml", f'[clients.voice]\nprogram = "Home Assistant"\n{rule}\n')
    tools = [{"type": "function", "function": {"name": "HassTurnOn", "parameters": {}}}]
    body = {
        "model": "replay",
        "messages": [{"role": "user", "content": "Lights on"}],
        "tools": tools,
        "keep_alive": -1,
    }
    request = post(
        "/api/chat", json.dumps(body | more).encode(), "User-Agent: HomeAssistant/2026.11", "X-Nothing: 1"
    )
    programs = one_by_one(None, program)
    async with occupied(*HOLDS, programs=programs, clients=file) as (daemon, _), asked(daemon, request):
        [job] = daemon.dispatcher.scheduler.waiting()
    assert job.priority == priority


async def test_a_search_that_fails_or_takes_long_leaves_the_address() -> None:
    searches, stuck = iter((True, False)), threading.Event()

    def find(wanted: Collection[Ends]) -> Mapping[Ends, Program]:
        if next(searches, True):
            stuck.wait()
        raise OSError

    programs = Programs(find)
    async with (
        occupied(*HOLDS, programs=programs) as (daemon, _),
        asked(daemon, chat()),
    ):  # both wait for the first search
        clients = [each.client for each in daemon.dispatcher.scheduler.waiting()]
        stuck.set()
    assert clients == ["127.0.0.1"]


async def test_a_request_becomes_its_programs_when_that_is_known(tmp_path: Path) -> None:
    stuck, table = threading.Event(), 'program = "night*"\nbackground = true\npriority = [5, 5]'
    file = secret(tmp_path / "clients.toml", f"[clients.nightly]\n{table}\n")

    def find(wanted: Collection[Ends]) -> Mapping[Ends, Program]:
        stuck.wait()
        return dict.fromkeys(wanted, Program("nightly.py"))

    async with (
        occupied(*HOLDS, programs=Programs(find), clients=file) as (daemon, engine),
        asked(daemon, chat()),
    ):
        scheduler = daemon.dispatcher.scheduler
        assert scheduler.clients.counts == {"127.0.0.1": (1, 1)}
        stuck.set()
        state = await until(daemon, lambda state: scheduler.clients.counts == {"nightly": (1, 1)})
        [job] = scheduler.waiting()
        assert (job.rank, job.background_levels, job.program) == (15.0, 10, "nightly.py")
        assert [each.client for each in state.queue] == ["nightly"]
        engine.thaw()
        await until(daemon, lambda state: state.counters.completed >= 1)
        assert daemon.stats.tokens.keys() == {"nightly"}


def test_long_and_odd_names_stay_apart() -> None:
    names = ["a" * 40 + end for end in ("x", "y", "\n", "\t")]
    found = {program_of([name], f"/{name}") for name in names}
    assert len({each.client for each in found if each}) == 4
    assert all(len(each.client) <= NAME_CHARS and each.client.isprintable() for each in found if each)


def test_no_program_has_the_name_of_a_table_or_an_address_by_itself() -> None:
    text = (
        '[clients.ann]\nweight = 9\n[clients.bo]\nprogram = "bo.py"\n[[urgency]]\nlevel = 0\nclient = "eve"\n'
    )
    clients = parse_clients(text, "clients")
    names = [clients.client_of(Program(name)) for name in ("ann", "bo", "bo.py", "eve", "127.0.0.1", "cy")]
    assert names == ["program ann", "program bo", "bo", "program eve", "program 127.0.0.1", "cy"]


async def test_a_connection_is_looked_up_once_and_its_name_is_used_from_then_on() -> None:
    async with (
        occupied(*HOLDS, programs=one_by_one(None, Program("opencode"))) as (daemon, engine),
        raw_client(daemon.base_url) as client,
    ):
        engine.thaw()
        for _ in range(3):
            assert (await client.ask(chat())).status == 200
        tokens = daemon.stats.tokens["opencode"]
    assert tokens == 9


def test_a_table_for_all_names_no_program() -> None:
    with pytest.raises(ClairvoyantError, match=r"clients: \[defaults\] has a program; give it a table"):
        parse_clients('[defaults]\nprogram = "curl"\n', "clients")
