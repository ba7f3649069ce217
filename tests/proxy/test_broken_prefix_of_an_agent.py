"""An agent whose system text changes, through the whole proxy: the log, `status` and `doctor`."""

import asyncio
import json
import re
from typing import Any

from clairvoyant_lab.asgi_server import serve_app
from clairvoyant_lab.replay.kv_cache import KvCache
from clairvoyant_lab.virtual_time import run_virtually

from clairvoyant_cli.commands.status_tables import state
from clairvoyant_cli.config import PrefixRules
from clairvoyant_cli.doctor.finding import Level
from clairvoyant_cli.doctor.proxy import check_daemon
from clairvoyant_cli.state.encoding import decode, encode
from clairvoyant_cli.state.snapshot import Snapshot
from tests.fakes.raw_http import post, raw_client
from tests.fakes.replay_backend import DEFAULT_MODEL, Engine, Replay, Speed
from tests.fakes.serving import serving

PRIVATE = "swordfish"
CHANGED = "its system text changed between characters 1 and 256"


def body(number: int) -> bytes:
    system = {"role": "system", "content": f"It is 12:{number:02}.\n{'Obey the rules. ' * 100}"}
    messages = [system, {"role": "user", "content": f"{PRIVATE} " * 100}]
    for n in range(number):
        messages.append({"role": "assistant", "content": f"I read file {n}."})
        messages.append({"role": "user", "content": f"{n}: {PRIVATE * 100}"})
    tools = [{"type": "function", "function": {"name": "read"}}]
    asked = {"model": DEFAULT_MODEL, "messages": messages, "tools": tools, "max_tokens": 5}
    return post("/v1/chat/completions", json.dumps(asked).encode())


async def served(turns: int, **settings: Any) -> tuple[Snapshot, list[int], list[bytes | None]]:
    """Serve an agent; return the state then, the tokens read of each prompt, and what was done to it."""
    engine = Engine(speed=Speed(2000.0, 100.0), seed=1, cache=KvCache())
    read, done = [], []
    async with serve_app(Replay(engine, (DEFAULT_MODEL,)).app) as url:
        clock = asyncio.get_running_loop().time
        async with serving(url, clock=clock, **settings) as daemon, raw_client(daemon.base_url) as client:
            for number in range(turns):
                answer = await client.ask(body(number))
                read.append(json.loads(answer.body)["timings"]["prompt_n"])
                done.append(answer.value("x-clairvoyant-stable-prefix"))
            return daemon.snapshot(), read, done


def test_a_system_text_that_changes_is_logged_published_and_advised() -> None:
    snapshot, read, done = run_virtually(served(6))
    assert not any(done)
    snapshot = decode(encode(snapshot))
    (line,) = [each.text for each in snapshot.log if "again" in each.text]
    assert line.startswith("session s2 (")
    advice = r"; a rule for `serve --stable-prefix` would save 0\.5 s a turn"
    assert re.search(f"tokens again: {CHANGED}{advice}$", line)
    (session,) = [each for each in snapshot.sessions.listed if each.broken]
    assert (session.turns, session.broken) == (5, CHANGED)
    assert 0.8 * sum(read[2:5]) < session.reread_tokens < sum(read[2:5])
    assert any(f" read again: {CHANGED}" in row for row in state(snapshot, 80))
    (found,) = [each for each in check_daemon(snapshot) if each.topic == "prefix"]
    assert found.level is Level.WARNING
    assert found.text.endswith(CHANGED)
    assert "CLAUDE_CODE_ATTRIBUTION_HEADER=0" in found.fix
    assert PRIVATE.encode() not in encode(snapshot)


def test_with_the_option_on_only_what_is_new_is_read() -> None:
    rules = PrefixRules(move=r"^It is \d\d:\d\d\.$")
    snapshot, read, done = run_virtually(served(6, stable_prefix="known", prefix_rules=rules))
    _, direct, _ = run_virtually(served(6))
    assert done == [b"1 line moved"] * 6
    assert sum(read[1:]) < 0.4 * sum(direct[1:])
    assert not any(each.broken for each in snapshot.sessions.listed)
    assert not any("again" in each.text for each in snapshot.log)
    remarks = [each.remark for each in snapshot.recent]
    assert sum(re.fullmatch(r"1 line moved: [\d,]+ tokens kept", each) is not None for each in remarks) == 5
    assert PRIVATE.encode() not in encode(snapshot)
