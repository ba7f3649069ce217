"""Profiles are saved, found, selected and removed."""

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from sqlite3 import Connection

import pytest

from profiles import store
from profiles.database import ProfilesError, writing
from profiles.host import this_host
from profiles.ledger import Ledger
from profiles.records import Continuation, Sample, place_of
from profiles.writer import Bounds
from tests.fakes.remembered import HOST, PROFILE, keep

SAMPLE = Sample("load", "define:yeast", 20, 40, 1.5, 0.2, 2.5)


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[Connection]:
    with writing(tmp_path / "c.db") as connection:
        yield connection


def fitting(connection: Connection) -> list[str]:
    found = store.fitting(connection, host=HOST.key, backend="ollama", place="local")
    return [profile.name for profile in found]


def test_save_and_load(connection: Connection) -> None:
    store.save(connection, PROFILE, [SAMPLE, SAMPLE])
    assert store.named(connection, PROFILE.name) == PROFILE
    assert store.samples_of(connection, PROFILE.name) == [SAMPLE, SAMPLE]


def test_duplicate_names_get_a_number(connection: Connection) -> None:
    names = [store.save(connection, PROFILE).name for _ in range(3)]
    assert names == ["gemma@ollama", "gemma@ollama-2", "gemma@ollama-3"]


def test_fitting_prefers_the_newest(connection: Connection) -> None:
    store.save(connection, replace(PROFILE, name="old"))
    store.save(connection, replace(PROFILE, name="new", measured_at=PROFILE.measured_at + 1))
    elsewhere = replace(PROFILE, name="elsewhere", host=replace(HOST, gpus=("another GPU",)))
    store.save(connection, replace(elsewhere, measured_at=PROFILE.measured_at + 2))
    remote = replace(PROFILE.served, place="gpu.lan:11434")
    store.save(connection, replace(PROFILE, name="remote", served=remote))
    assert fitting(connection) == ["new", "old"]


@pytest.mark.parametrize("way", [Continuation("raw", 12, 13, 0.1), Continuation("raw", 12, 12, -0.1)])
def test_inconsistent_trials_are_errors(connection: Connection, way: Continuation) -> None:
    store.save(connection, replace(PROFILE, continuations=(way,)))
    with pytest.raises(ProfilesError, match="the trials of 'raw' are inconsistent"):
        store.named(connection, PROFILE.name)


def test_amend_keeps_date_and_samples(connection: Connection) -> None:
    store.save(connection, PROFILE, [SAMPLE])
    amended = replace(PROFILE, continuations=(Continuation("raw", 12, 12, 0.1),))
    store.amend(connection, amended)
    (kept,) = store.every(connection)
    assert kept == amended
    assert store.samples_of(connection, PROFILE.name) == [SAMPLE]
    with pytest.raises(ProfilesError, match="no profile 'x'"):
        store.amend(connection, replace(PROFILE, name="x"))


def test_remove_deletes_samples(connection: Connection) -> None:
    store.save(connection, PROFILE, [SAMPLE])
    store.remove(connection, PROFILE.name)
    assert connection.execute("SELECT COUNT(*) FROM samples").fetchone()[0] == 0
    with pytest.raises(ProfilesError, match="there are none"):
        store.remove(connection, PROFILE.name)


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("http://127.0.0.1:11434", "local"),
        ("http://localhost:1234/v1", "local"),
        ("http://[::1]:8080", "local"),
        ("http://gpu.lan:11434", "gpu.lan:11434"),
    ],
)
def test_place_of(url: str, place: str) -> None:
    assert place_of(url) == place


def test_ledger_finds_profiles_and_reports_stale_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("profiles.ledger.this_host", lambda: replace(HOST, gpu_driver="560.0"))
    path = keep(tmp_path / "d.db", (), PROFILE)
    ledger = Ledger(path, bounds=Bounds(rows=0))
    try:
        (found,) = ledger.profiles("ollama", "http://localhost:11434")
        assert found == PROFILE
        assert "driver 550.1 then, 560.0 now" in ledger.stale(found, "0.40.0")
        current = replace(found, host=replace(HOST, gpu_driver="560.0"))
        assert "0.40.0 then, 0.41.0 now" in ledger.stale(current, "0.41.0")
        assert "days old" in ledger.stale(current, "0.40.0")
        assert ledger.stale(replace(current, measured_at=time.time()), "0.40.0") == ""
        assert "in the future" in ledger.stale(replace(current, measured_at=time.time() + 1e8), "0.40.0")
    finally:
        ledger.close()


def test_profiles_dated_in_the_future_sort_last(tmp_path: Path) -> None:
    now_s, here = time.time(), replace(PROFILE, host=this_host())
    ahead = replace(here, name="ahead", measured_at=now_s + 1e8)
    path = keep(tmp_path / "c.db", (), ahead, replace(here, name="since", measured_at=now_s))
    ledger = Ledger(path)
    found = [profile.name for profile in ledger.profiles("ollama", "http://localhost:11434")]
    ledger.close()
    assert found == ["since", "ahead"]
