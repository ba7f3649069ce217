"""Recordings, and the state printed once."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from clairvoyant_cli.state.recording import Recorder, RecordingError, Replay, decode, encode
from clairvoyant_cli.state.snapshot import SCHEMA_VERSION, Snapshot
from clairvoyant_cli.state.source import Action, Disconnected, Source, Verb
from tests.tui.board import Script, busy, stage
from tests.tui.scene import SCENARIOS
from tui.export import export
from tui.print_tables import first_snapshot, state


async def heard(source: Source) -> list[Snapshot | Disconnected]:
    return [news async for news in source.stream()]


async def test_what_is_recorded_is_played(tmp_path: Path) -> None:
    path = tmp_path / "session.jsonl"
    gone = Disconnected("gone")
    recorder = Recorder(Script([busy(), gone, busy()]), path)
    assert await heard(recorder) == [busy(), gone, busy()]
    first, second, end = await heard(Replay(path))
    assert isinstance(first, Snapshot)
    assert first == second
    assert first.taken_at == busy().taken_at
    assert end == Disconnected("end of the recording")


async def test_a_recording_holds_no_prompts(tmp_path: Path) -> None:
    path = tmp_path / "session.jsonl"
    await heard(Recorder(Script([busy()]), path))
    prompt = busy().queue[0].prompt
    assert prompt is not None
    assert prompt.encode() not in await asyncio.to_thread(path.read_bytes)


async def test_the_recorder_passes_actions_on(tmp_path: Path) -> None:
    script = Script()
    recorder = Recorder(script, tmp_path / "session.jsonl")
    await recorder.act(Action(Verb.PAUSE))
    await heard(recorder)
    assert script.asked == [Action(Verb.PAUSE)]


async def test_a_recording_cannot_be_changed(tmp_path: Path) -> None:
    path = tmp_path / "session.jsonl"
    path.write_bytes(encode(busy()))
    assert not (await Replay(path).act(Action(Verb.PAUSE))).done


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "holds no snapshots"),
        ("\n\n", "holds no snapshots"),
        ("{}\n", "line 1: not a snapshot"),
        ("x", "line 1"),
    ],
)
def test_a_file_that_cannot_be_played_says_why(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "session.jsonl"
    path.write_text(text)
    with pytest.raises(RecordingError, match=words):
        Replay(path)


def test_a_missing_recording_says_so(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match="cannot read"):
        Replay(tmp_path / "missing.jsonl")


def test_an_older_daemon_is_read_and_a_newer_field_is_ignored() -> None:
    line = encode(busy())
    assert decode(line.replace(b'"stats_fcfs"', b'"something_new"')).stats_fcfs == ()
    newer = line.replace(b'"schema":%d' % SCHEMA_VERSION, b'"schema":%d' % (SCHEMA_VERSION + 1))
    with pytest.raises(RecordingError, match="upgrade clairvoyant"):
        decode(newer)


# -- once -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_once_prints_what_there_is(scenario: str) -> None:
    snapshot = stage(scenario).snapshot()
    for width in (80, 160):
        lines = list(state(snapshot, width))
        assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    assert "serving" in text
    assert snapshot.verdict.text in text
    assert all(row.id in text for row in snapshot.running)
    assert all(row.id in text for row in snapshot.queue[:50])
    assert ("the first 50 of" in text) == (len(snapshot.queue) > 50)


async def test_once_takes_the_first_word() -> None:
    assert await first_snapshot(Script([busy()])) == busy()
    assert await first_snapshot(Script([Disconnected("gone")])) == Disconnected("gone")
    assert isinstance(await first_snapshot(Script()), Disconnected)


async def test_actions_have_the_bodies_the_daemon_expects() -> None:
    assert Action(Verb.CANCEL, "a1").body() == {"id": "a1"}
    assert Action(Verb.PRIORITY, "a1", -1).body() == {"id": "a1", "priority": -1}
    assert Action(Verb.POLICY, value="fcfs").body() == {"policy": "fcfs"}
    assert Action(Verb.TAU, value=0.0).body() == {"tau_s": 0.0}
    assert Action(Verb.PAUSE).body() == {}
    assert Action(Verb.DRAIN, "zed", kind="client").body() == {"kind": "client", "name": "zed"}
    assert Action(Verb.MODEL, "llama", "load").body() == {"name": "llama", "do": "load"}


def test_a_spreadsheet_reads_names_as_text(tmp_path: Path) -> None:
    rows = (replace(busy().queue[0], client="=1+1"),)
    path = export(replace(busy(), queue=rows), "queue", tmp_path)
    assert "'=1+1" in path.read_text(encoding="utf-8")
    empty = export(replace(busy(), queue=()), "queue", tmp_path)
    assert empty.read_text(encoding="utf-8") == ""
