"""Clocks are set, machines sleep and restart: what was recorded keeps its age, and stays or goes by it."""

import random
import sqlite3
import time
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from clairvoyant_cli.main import cli
from profiles.clock_repair import JUMP_S, is_settled, settle
from profiles.database import open_database, reading, writing
from profiles.history import ALWAYS, FOREVER, Erased, Span, forget, totals
from profiles.records import Finished
from profiles.traffic import LONGEST_PAUSE_H, load
from profiles.writer import PRUNE_EVERY_ROWS, Bounds, Writer
from tests.fakes.remembered import FINISHED, shape_before
from tests.fakes.scripted_clocks import DAY, HOUR, NOON, YEAR, ScriptedClocks

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the database is to be."""
    return tmp_path / "c.db"


@pytest.fixture
def machine() -> ScriptedClocks:
    """A machine at noon, whose clock is right."""
    return ScriptedClocks()


def put(writer: Writer, machine: ScriptedClocks, name: str, client: str = "alice") -> None:
    """Hand over a request that ends now."""
    writer.put(replace(FINISHED, request=name, client=client, finished_at=machine.wall_s))


def record(path: Path, machine: ScriptedClocks, *names: str, client: str = "alice") -> None:
    """Have a daemon start, record requests that end now, and stop."""
    writer = Writer(path, clocks=machine.clocks)
    for name in names:
        put(writer, machine, name, client)
    writer.close()


def insert(connection: sqlite3.Connection, row: Finished) -> None:
    """Write a row as the writer does."""
    there = {name for (name,) in connection.execute("SELECT name FROM pragma_table_info('history')")}
    names = [name for name in row.__slots__ if name in there]  # an older file has fewer
    sql = f"INSERT INTO history ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})"  # noqa: S608
    connection.execute(sql, [getattr(row, name) for name in names])


def dated(path: Path) -> dict[str, float]:
    """Return when each request ended, in the order of recording; the tally must say the same."""
    with reading(path) as connection:
        connection.execute("BEGIN")
        assert tally(connection) == recounted(connection)
        return dict(connection.execute("SELECT request, finished_at FROM history ORDER BY id"))


def tally(connection: sqlite3.Connection) -> list[tuple[object, ...]]:
    """Return the counts of each hour."""
    return connection.execute("SELECT hour, requests, tokens, waited_s FROM tally ORDER BY hour").fetchall()


def recounted(connection: sqlite3.Connection) -> list[tuple[object, ...]]:
    """Return what the tally should be; all requests are alike but for their times."""
    return connection.execute(
        "SELECT CAST(finished_at / 3600 AS INTEGER), COUNT(*), SUM(tokens), SUM(waited_s) "
        "FROM history GROUP BY 1 ORDER BY 1"
    ).fetchall()


def ages(path: Path, machine: ScriptedClocks) -> dict[str, float]:
    """Return how long ago each request ended, by the clock of now."""
    return {name: machine.wall_s - at for name, at in dated(path).items()}


def until(holds: Callable[[], bool]) -> None:
    """Return once something holds that the writer's thread does; TimeoutError if it never does."""
    deadline = time.monotonic() + 20
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError


def erase(
    path: Path, machine: ScriptedClocks, since: float = ALWAYS, before: float = FOREVER, **narrowed: str
) -> Erased:
    """Forget a span; both ends are given in seconds from now."""
    span = Span(machine.wall_s + since, machine.wall_s + before, **narrowed)
    return forget(path, span, states=True, clocks=machine.clocks)


# -- times follow the clock -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "by_s", [8 * HOUR, -10 * DAY, 10 * YEAR, -47 * YEAR, 2.0, -2.0, -NOON], ids=lambda by_s: f"{by_s:+.0f} s"
)
def test_a_request_keeps_its_age_when_the_clock_is_set(
    path: Path, machine: ScriptedClocks, by_s: float
) -> None:
    record(path, machine, "a")
    machine.wait(60.0)
    record(path, machine, "b")
    machine.set_by(by_s)
    machine.wait(30.0)
    record(path, machine, "c")
    assert ages(path, machine) == pytest.approx({"a": 90.0, "b": 30.0, "c": 0.0})
    machine.set_by(-by_s)
    record(path, machine, "d")
    assert ages(path, machine) == pytest.approx({"a": 90.0, "b": 30.0, "c": 0.0, "d": 0.0})


def test_sleep_is_no_jump(path: Path, machine: ScriptedClocks) -> None:
    record(path, machine, "a")
    before = dated(path)
    machine.sleep(8 * HOUR)
    record(path, machine, "b")
    assert dated(path) == before | {"b": machine.wall_s}
    assert ages(path, machine)["a"] == 8 * HOUR


def test_midnight_passes(path: Path, machine: ScriptedClocks) -> None:
    machine.wait(12 * HOUR - 30.0)
    record(path, machine, "before")
    machine.wait(60.0)
    record(path, machine, "after")
    # From either side of midnight into the hour before it, by a few minutes.
    machine.set_by(-300.0)
    record(path, machine, "again")
    assert ages(path, machine) == pytest.approx({"before": 60.0, "after": 0.0, "again": 0.0})


def test_a_clock_that_creeps_is_let_be_until_it_adds_up(path: Path, machine: ScriptedClocks) -> None:
    record(path, machine, "a")
    for _ in range(4):
        machine.set_by(0.4 * JUMP_S)
        record(path, machine, "b")
        (age,) = {age for name, age in ages(path, machine).items() if name == "a"}
        assert abs(age) <= JUMP_S


def test_what_was_recorded_before_the_machine_started_is_left_alone(
    path: Path, machine: ScriptedClocks
) -> None:
    record(path, machine, "a")
    before = dated(path)
    machine.reboot()
    record(path, machine, "b")
    machine.set_by(8 * HOUR)
    record(path, machine, "c")
    assert dated(path) == before | {"b": machine.wall_s, "c": machine.wall_s}


def test_many_rows_follow_some_at_a_time_and_through_another_jump(
    path: Path, machine: ScriptedClocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("profiles.clock_repair.MOVED_ROWS", 10)
    writer = Writer(path, clocks=machine.clocks)
    for number in range(35):
        put(writer, machine, str(number))
        machine.wait(1.0)
    writer.close()
    true = ages(path, machine)
    moved = []
    for by_s in (HOUR, HOUR, -5 * HOUR, 0.0, 0.0, 0.0):
        machine.set_by(by_s)
        with writing(path) as connection:
            settle(connection, machine.clocks.now())
        # Each time as by another process, and the tally is right at every step.
        moved.append(sum(abs(age - true[name]) < 1e-3 for name, age in ages(path, machine).items()))
    assert moved == [10, 10, 10, 20, 30, 35]
    with reading(path) as connection:
        assert is_settled(connection, machine.clocks.now())


def test_the_next_start_finishes_what_the_last_one_left(
    path: Path, machine: ScriptedClocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("profiles.clock_repair.MOVED_ROWS", 10)
    record(path, machine, *map(str, range(25)))
    at_s = machine.wall_s
    machine.set_by(YEAR)
    with writing(path) as connection:
        assert not settle(connection, machine.clocks.now())
    machine.reboot()
    for settled in (False, True):
        with writing(path) as connection:
            assert settle(connection, machine.clocks.now()) is settled
    assert set(dated(path).values()) == {at_s + YEAR}


@pytest.mark.parametrize("seed", range(12))
def test_whatever_happens_ages_stay_true(path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("profiles.clock_repair.MOVED_ROWS", 7)
    rng, machine = random.Random(seed), ScriptedClocks()
    ended: dict[str, float] = {}
    with closing(open_database(path)) as connection:
        for step in range(150):
            machine.wait(rng.uniform(1.0, 100.0))
            deed = rng.choice(("record", "record", "sleep", "set", "set back", "erase", "reboot", "nothing"))
            if deed == "sleep":
                machine.sleep(rng.uniform(0, DAY))
            elif deed == "set":
                machine.set_by(rng.choice((2.0, HOUR, YEAR)))
            elif deed == "set back":
                machine.set_by(-rng.choice((2.0, HOUR, YEAR)))
            elif deed == "reboot" and rng.random() < 0.3:
                machine.reboot()
                ended.clear()
            elif deed == "erase":
                connection.execute("DELETE FROM history WHERE id > ?", (rng.randrange(1, 300),))
                connection.commit()
            elif deed == "record":
                connection.execute("BEGIN IMMEDIATE")
                settle(connection, machine.clocks.now())
                for number in range(rng.randrange(1, 20)):
                    name = f"{step}-{number}"
                    ended[name] = machine.steady_s
                    insert(connection, replace(FINISHED, request=name, finished_at=machine.wall_s))
                connection.commit()
        while not settle(connection, machine.clocks.now()):
            pass
        connection.commit()
        assert tally(connection) == recounted(connection)
        rows = dict(connection.execute("SELECT request, finished_at FROM history"))
        assert connection.execute("SELECT COUNT(*) FROM clocks").fetchone() == (1,)
    for name in rows.keys() & ended.keys():
        assert machine.wall_s - rows[name] == pytest.approx(machine.steady_s - ended[name], abs=1e-3)


def test_an_idle_daemon_notices(path: Path, machine: ScriptedClocks) -> None:
    writer = Writer(path, clocks=machine.clocks)
    try:
        put(writer, machine, "a")
        until(lambda: "a" in dated(path))
        machine.set_by(8 * HOUR)
        writer.look()
        until(lambda: ages(path, machine) == {"a": 0.0})
    finally:
        writer.close()


def test_it_goes_on_by_itself_until_all_have_followed(
    path: Path, machine: ScriptedClocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("profiles.clock_repair.MOVED_ROWS", 10)
    monkeypatch.setattr("profiles.writer.BATCH_S", 0.0)
    record(path, machine, *map(str, range(45)))
    machine.set_by(8 * HOUR)
    writer = Writer(path, clocks=machine.clocks)
    try:
        writer.look()
        until(lambda: set(ages(path, machine).values()) == {0.0})
    finally:
        writer.close()


def test_what_waits_in_memory_follows_too(path: Path, machine: ScriptedClocks) -> None:
    writer = Writer(path, clocks=machine.clocks)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        put(writer, machine, "a")
        machine.wait(10.0)
        machine.set_by(8 * HOUR)
        other.execute("ROLLBACK")
    writer.close()
    assert ages(path, machine) == {"a": 10.0}


def test_a_history_from_before_there_were_steady_clocks_is_left_alone(
    path: Path, machine: ScriptedClocks
) -> None:

    with shape_before(path, "clocks_and_times_that_move") as old:
        insert(old, replace(FINISHED, request="old", finished_at=machine.wall_s - HOUR))
        old.execute("INSERT INTO states VALUES ('forgetting', 0, ?)", (f"2 {machine.wall_s!r}".encode(),))
    before = machine.wall_s - HOUR
    record(path, machine, "new")
    machine.set_by(8 * HOUR)
    record(path, machine, "newer")
    assert dated(path) == {"old": before, "new": machine.wall_s, "newer": machine.wall_s}


# -- what is too old --------------------------------------------------------------------------------------


def fill(path: Path, machine: ScriptedClocks, *, days: float, bounds: Bounds | None = None) -> None:
    """Have a daemon record enough to look for what is too old, twice."""
    writer = Writer(path, bounds or Bounds(days=days), machine.clocks)
    for number in range(2 * PRUNE_EVERY_ROWS):
        put(writer, machine, f"{machine.boot} {machine.wall_s} {number}")
    writer.close()


def test_what_is_too_old_goes(path: Path, machine: ScriptedClocks) -> None:
    record(path, machine, "a")
    machine.wait(60 * DAY)
    record(path, machine, "b")
    machine.wait(31 * DAY)
    fill(path, machine, days=90)
    assert "a" not in dated(path)
    assert "b" in dated(path)


def test_what_is_too_old_goes_though_the_machine_is_off_at_night(path: Path, machine: ScriptedClocks) -> None:
    for day in range(30):
        record(path, machine, f"day {day}")
        machine.wait(8 * HOUR)
        record(path, machine, f"evening {day}")
        machine.reboot(16 * HOUR)
    fill(path, machine, days=20)
    assert next(name for name in dated(path) if name.startswith("day ")) in ("day 9", "day 10")


@pytest.mark.parametrize("starts", [1, 2], ids=["one start", "two starts"])
@pytest.mark.parametrize("by_s", [10 * YEAR, -50 * YEAR], ids=["ahead", "behind"])
def test_a_daemon_that_starts_by_a_wrong_clock_erases_nothing(
    path: Path, machine: ScriptedClocks, by_s: float, starts: int
) -> None:
    record(path, machine, "a")
    machine.reboot()
    machine.set_by(by_s)
    for _ in range(starts):
        fill(path, machine, days=90)
    machine.set_by(-by_s)
    fill(path, machine, days=90)
    assert "a" in dated(path)


def test_a_clock_that_jumps_erases_nothing_by_age_and_what_is_too_much_goes_on_going(
    path: Path, machine: ScriptedClocks
) -> None:
    bounds = Bounds(days=90, rows=3 * PRUNE_EVERY_ROWS)
    record(path, machine, "before the start")
    machine.reboot()
    record(path, machine, "a")
    writer = Writer(path, bounds, machine.clocks)
    for by_s in (10 * YEAR, -10 * YEAR, 91 * DAY):
        machine.set_by(by_s)
        for number in range(PRUNE_EVERY_ROWS - 1):
            put(writer, machine, f"{by_s} {number}")
    writer.close()
    assert {"before the start", "a"} < dated(path).keys()
    fill(path, machine, days=90, bounds=bounds)
    assert not {"before the start", "a"} & dated(path).keys()


def test_a_long_absence_is_believed_at_the_second_start(path: Path, machine: ScriptedClocks) -> None:
    record(path, machine, "a")
    machine.reboot(100 * DAY)
    fill(path, machine, days=90)
    assert "a" in dated(path)
    machine.reboot()
    fill(path, machine, days=90)
    assert "a" not in dated(path)


def test_nothing_goes_by_age_while_times_are_still_on_their_way(
    path: Path, machine: ScriptedClocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(path, machine, days=90)
    monkeypatch.setattr("profiles.clock_repair.MOVED_ROWS", 10)
    machine.set_by(YEAR)
    fill(path, machine, days=90)
    assert len(dated(path)) == 4 * PRUNE_EVERY_ROWS


# -- what is forgotten ------------------------------------------------------------------------------------


@pytest.mark.parametrize("by_s", [8 * HOUR, -8 * HOUR, 2 * YEAR])
@pytest.mark.parametrize("noticed", [True, False])
def test_what_was_asked_a_minute_ago_is_forgotten_and_what_was_yesterday_is_not(
    path: Path, machine: ScriptedClocks, by_s: float, noticed: bool
) -> None:
    record(path, machine, "yesterday")
    machine.wait(DAY)
    record(path, machine, "a minute ago")
    machine.set_by(by_s)
    machine.wait(60.0)
    if noticed:
        record(path, machine, "now")
    assert erase(path, machine, since=-HOUR).requests == 1 + noticed
    assert list(dated(path)) == ["yesterday"]


def test_what_was_asked_before_and_after_sleep_is_told_apart(path: Path, machine: ScriptedClocks) -> None:
    record(path, machine, "evening")
    machine.sleep(8 * HOUR)
    record(path, machine, "morning")
    assert erase(path, machine, since=-HOUR) == Erased(1, 0, machine.wall_s, machine.wall_s)
    assert list(dated(path)) == ["evening"]


def test_forgetting_waits_until_all_times_have_followed(
    path: Path, machine: ScriptedClocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("profiles.clock_repair.MOVED_ROWS", 10)
    record(path, machine, "old")
    machine.wait(2 * HOUR)
    record(path, machine, *map(str, range(35)))
    machine.set_by(YEAR)
    assert erase(path, machine, since=-HOUR).requests == 35
    assert list(dated(path)) == ["old"]


def test_a_time_that_is_off_by_less_than_a_jump_is_forgotten_too(path: Path, machine: ScriptedClocks) -> None:
    record(path, machine, "a")
    machine.wait(60.0)
    machine.set_by(0.9 * JUMP_S)
    assert erase(path, machine, since=-60.5) == Erased(1, 0, NOON, NOON)


def uncorrected(path: Path, machine: ScriptedClocks, by_s: float) -> None:
    """Record through three starts of the machine, by a wrong clock in the second of them; each an hour."""
    for name, wrong_s in (("before", 0.0), ("wrong", by_s), ("after", 0.0)):
        machine.set_by(wrong_s)
        record(path, machine, f"{name} 1")
        machine.wait(HOUR)
        record(path, machine, f"{name} 2")
        machine.set_by(-wrong_s)
        machine.reboot()


BEFORE, WRONG, AFTER = (frozenset({f"{name} 1", f"{name} 2"}) for name in ("before", "wrong", "after"))
# What was recorded three, two, two, one, one and no hours ago.


@pytest.mark.parametrize("by_s", [-50 * YEAR, 10 * YEAR], ids=["behind", "ahead"])
@pytest.mark.parametrize(
    ("since", "before", "kept"),
    [
        (-0.5 * HOUR, FOREVER, {"ahead": BEFORE | {"after 1"}, "behind": BEFORE | WRONG | {"after 1"}}),
        (-1.5 * HOUR, FOREVER, BEFORE),
        (-2.5 * HOUR, FOREVER, {"before 1"}),
        (ALWAYS, -2.5 * HOUR, {"ahead": {"before 2"} | WRONG | AFTER, "behind": {"before 2"} | AFTER}),
        (ALWAYS, -0.5 * HOUR, {"after 2"}),
        (-2.5 * HOUR, -0.5 * HOUR, {"before 1", "after 2"}),
        (-2.5 * HOUR, -1.8 * HOUR, {"before 1"} | AFTER),
        (-1.8 * HOUR, -1.5 * HOUR, BEFORE | AFTER),
        (-0.9 * HOUR, -0.5 * HOUR, BEFORE | WRONG | AFTER),
    ],
)
def test_a_wrong_clock_never_saves_what_is_to_be_forgotten(
    path: Path,
    machine: ScriptedClocks,
    by_s: float,
    since: float,
    before: float,
    kept: Iterable[str] | dict[str, Iterable[str]],
) -> None:
    uncorrected(path, machine, by_s)
    everything = dated(path)
    erased = erase(path, machine, since, before)
    if isinstance(kept, dict):
        kept = kept["behind" if by_s < 0 else "ahead"]
    gone = everything.keys() - set(kept)
    assert dated(path).keys() == set(kept)
    assert erased.requests == len(gone)
    in_span = [name for name in gone if since <= everything[name] - machine.wall_s < min(before, 0.0)]
    assert erased.misdated == len(gone) - len(in_span)


def test_a_clock_that_is_behind_now_does_not_cost_the_history(path: Path, machine: ScriptedClocks) -> None:
    record(path, machine, "a")
    machine.reboot()
    machine.set_by(-50 * YEAR)
    record(path, machine, "b")
    machine.wait(2 * HOUR)
    record(path, machine, "c")
    assert erase(path, machine, since=-HOUR).requests == 1
    assert list(dated(path)) == ["a", "b"]
    # What was before the machine started may have been within these.
    assert erase(path, machine, since=-3 * HOUR).requests == 2


def test_another_clients_requests_say_when_this_ones_were(path: Path, machine: ScriptedClocks) -> None:
    record(path, machine, "old", client="bob")
    machine.wait(2 * HOUR)
    record(path, machine, "alice's")
    machine.reboot()
    machine.set_by(-50 * YEAR)
    record(path, machine, "new", client="bob")
    machine.set_by(50 * YEAR)
    machine.reboot()
    assert erase(path, machine, since=-HOUR, client="bob") == Erased(
        1, 1, NOON + 7260 - 50 * YEAR, NOON + 7260 - 50 * YEAR
    )
    assert list(dated(path)) == ["old", "alice's"]


def test_all_is_all_even_from_before_1970(path: Path, machine: ScriptedClocks) -> None:
    record(path, machine, "a")
    machine.wait(HOUR)
    machine.set_by(60.0 - machine.wall_s)
    record(path, machine, "b")
    assert min(dated(path).values()) < 0
    with reading(path) as connection:
        assert sum(total.requests for total in totals(connection, Span())) == 2
    assert forget(path, Span(), states=True, clocks=machine.clocks).requests == 2
    assert dated(path) == {}


def test_what_a_daemon_still_holds_is_told_apart_by_the_steady_clock(
    path: Path, machine: ScriptedClocks
) -> None:
    writer = Writer(path, clocks=machine.clocks)
    put(writer, machine, "before")
    machine.wait(1.0)
    erase(path, machine)
    machine.wait(1.0)
    machine.set_by(-8 * HOUR)
    put(writer, machine, "after")
    writer.close()
    assert list(dated(path)) == ["after"]


def test_what_nothing_tells_apart_is_forgotten(path: Path, machine: ScriptedClocks) -> None:
    writer = Writer(path, clocks=machine.clocks)
    put(writer, machine, "before")
    elsewhere = ScriptedClocks(steady_s=0.0, boot="boot-9")
    forget(path, Span(), states=False, clocks=elsewhere.clocks)
    writer.close()
    assert dated(path) == {}


def test_the_command_says_what_it_erased(path: Path) -> None:
    machine = ScriptedClocks(wall_s=time.time())
    record(path, machine, "a")
    machine.reboot()
    machine.set_by(-10 * YEAR)
    record(path, machine, "b", "c")
    done = CliRunner().invoke(cli, ["forget", "--since", "1h", "--yes", "--db", str(path)])
    then, now = (time.strftime("%Y-%m-%d", time.localtime(at)) for at in (machine.wall_s, time.time()))
    first, second = done.stderr.splitlines()
    assert first.startswith(f"3 requests erased, finished {then} ")
    assert f" to {now} " in first
    assert second.startswith("2 of them bore other times")


# -- what is asked of a history ---------------------------------------------------------------------------


def test_years_of_a_wrong_clock_are_no_idle_time(path: Path, machine: ScriptedClocks) -> None:
    for by_s in (0.0, -30 * YEAR, 30 * YEAR):
        machine.set_by(by_s)
        record(path, machine, *(f"{by_s} {number}" for number in range(10)))
        machine.wait(3 * HOUR)
        machine.reboot()
    with reading(path) as connection:
        found = load(connection, Span())
    assert found is not None
    assert found.requests == 30
    assert found.span_s < (2 * LONGEST_PAUSE_H + 24) * HOUR
