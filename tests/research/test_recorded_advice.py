"""`simulate --advise` on what this machine has recorded."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from clairvoyant_cli.commands.simulate import command
from clairvoyant_cli.errors import ClairvoyantError, ExitCode
from clairvoyant_cli.proxy.learning.tau_learning import Learned, LearnedModel, state_name
from profiles.database import writing
from profiles.host import this_host
from profiles.records import Mix
from profiles.states import save_state
from profiles.store import choose
from tests.fakes.remembered import PROFILE, busy_days, keep

HERE = replace(PROFILE, name="here", host=this_host(), mixes=(Mix("mixed", 25, 2.6, 1.5),))
ROWS = list(busy_days(3000))


@pytest.fixture(autouse=True)
def no_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep whatever `serve` is configured to on this machine out of the tests."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database of this machine."""
    return keep(tmp_path_factory.mktemp("advice") / "c.db", ROWS, HERE)


def advised(db: Path, *arguments: str) -> dict[str, Any]:
    """Ask for advice as JSON."""
    given = ["--advise", "--json", "--db", str(db), "--seeds", "3", *arguments]
    result = CliRunner().invoke(command, given, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def refused(db: Path, *arguments: str) -> str:
    """Ask for advice that cannot be given; return the one line that says why."""
    with pytest.raises(ClairvoyantError) as caught:
        CliRunner().invoke(command, ["--advise", "--db", str(db), *arguments], catch_exceptions=False)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_it_needs_nothing_but_the_database(db: Path) -> None:
    result = CliRunner().invoke(command, ["--advise", "--db", str(db)], catch_exceptions=False)
    printed = " ".join(result.stdout.split())
    assert "profile here" in printed
    for words in ("Short requests: P50 -", "Long requests: P95", "Your busiest hour:", "utilisation of"):
        assert words in printed


def test_what_it_rests_on_is_what_was_recorded(db: Path) -> None:
    facts = advised(db)["facts"]
    short = [row.sojourn_s - row.waited_s for row in ROWS if row.length_class == "short"]
    assert facts["requests"] == 3000
    assert facts["short_share"] == pytest.approx(len(short) / 3000)
    assert facts["short_service_s"] == pytest.approx(sum(short) / len(short))
    assert (facts["profile"], facts["slots"], facts["mu_short_s"], facts["cs2"]) == ("here", 1, 40.0, 1.5)
    assert (facts["policy_now"], facts["tau_now_s"]) == ("sjf", 120.0)
    assert 0.9 < facts["ranking_accuracy"] < 1.0
    assert facts["mean_utilisation"] < facts["busiest_hour_utilisation"] < 0.95
    assert facts["use_policy"] in ("sjf", "bounded")


def test_a_predictor_that_was_no_good_buys_nothing(db: Path, tmp_path: Path) -> None:
    p_longs = [row.p_long for row in ROWS]
    shuffled = [
        replace(row, p_long=p_longs[-number], expected_tokens=50.0, policy="fcfs")
        for number, row in enumerate(ROWS)
    ]
    useless = advised(keep(tmp_path / "c.db", shuffled, HERE), "--load", "0.8")
    assert useless["facts"]["ranking_accuracy"] == pytest.approx(0.5, abs=0.03)
    change = {(c["row"], c["column"]): c["ours"] for c in useless["tables"][1]["cells"]}
    good = {(c["row"], c["column"]): c["ours"] for c in advised(db, "--load", "0.8")["tables"][1]["cells"]}
    bounded = [key for key in change if key[0].startswith("bounded") and key[1] == "short P95"]
    assert len(bounded) == 3
    assert all(change[key] > good[key] + 10.0 for key in bounded)


def test_an_idle_machine_is_told_to_leave_it_and_from_when_on_not_to(db: Path) -> None:
    notes = advised(db, "--load", "0.05")["notes"]
    assert notes[0].startswith("Leave it at fcfs")
    assert "From a utilisation of about 0." in notes[1]


def test_options_overrule_what_was_recorded(db: Path) -> None:
    assert advised(db, "--load", "0.5")["setting"].count("utilisation 0.5,") == 1
    two = advised(db, "--slots", "2")["facts"]
    one = advised(db)["facts"]
    assert two["slots"] == 2
    assert two["busiest_hour_utilisation"] == pytest.approx(one["busiest_hour_utilisation"] / 2)
    alice = advised(db, "--client", "alice")["facts"]
    assert alice["requests"] == sum(row.client == "alice" for row in ROWS)
    late = advised(db, "--since", "2096-10-02T08:00:00+00:00")["facts"]
    assert 0 < late["requests"] < 3000


def test_a_saturated_hour_is_said_to_be_one(tmp_path: Path) -> None:
    found = advised(keep(tmp_path / "c.db", busy_days(1000, every_s=2.0), HERE))
    assert found["facts"]["busiest_hour_utilisation"] > 0.95
    assert "utilisation 0.95," in found["setting"]
    assert any("adds no capacity" in note for note in found["notes"])


def test_the_profile_is_the_one_serve_would_take(tmp_path: Path) -> None:
    served = replace(HERE.served, model="another")
    elsewhere = replace(HERE, name="elsewhere", host=PROFILE.host, measured_at=HERE.measured_at + 9)
    db = keep(
        tmp_path / "c.db",
        ROWS[:300],
        HERE,
        replace(HERE, name="newer", slots=2, measured_at=HERE.measured_at + 1),
        replace(HERE, name="another", served=served, measured_at=HERE.measured_at + 5),
        elsewhere,
    )
    assert advised(db)["facts"]["profile"] == "newer"
    assert advised(db, "--profile", "elsewhere")["facts"]["profile"] == "elsewhere"
    with writing(db) as connection:
        choose(connection, "here")
    assert advised(db)["facts"]["profile"] == "here"


def test_the_tau_in_force_is_the_one_learned_since(db: Path, tmp_path: Path) -> None:
    path = keep(tmp_path / "c.db", ROWS[:300], HERE)
    learned = Learned({HERE.served.model: LearnedModel(60.0, 100, since=HERE.measured_at)})
    with writing(path) as connection:
        name = state_name(HERE.served.backend, HERE.served.url)
        save_state(connection, name, msgspec.json.encode(learned))
    assert advised(path)["facts"]["tau_now_s"] == pytest.approx(180.0)


def test_what_serve_is_configured_to_is_in_force(db: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLAIRVOYANT_SERVE_POLICY", "bounded")
    monkeypatch.setenv("CLAIRVOYANT_SERVE_TAU", "33")
    monkeypatch.setenv("CLAIRVOYANT_SERVE_SLOTS", "3")
    facts = advised(db)["facts"]
    assert (facts["policy_now"], facts["tau_now_s"], facts["slots"]) == ("bounded", 33.0, 3)


def test_what_is_missing_is_one_line(db: Path, tmp_path: Path) -> None:
    assert "nothing is recorded yet" in refused(tmp_path / "no.db")
    assert "no answered requests are recorded" in refused(keep(tmp_path / "empty.db", [], HERE))
    assert "50 answers are too few" in refused(keep(tmp_path / "few.db", ROWS[:50], HERE))
    assert "clairvoyant calibrate" in refused(keep(tmp_path / "none.db", ROWS[:300], PROFILE))
    assert "no profile 'x'" in refused(db, "--profile", "x")
    short = [replace(row, length_class="short", tokens=10) for row in ROWS[:300]]
    assert "300 of 300 answers were short" in refused(keep(tmp_path / "short.db", short, HERE))


def test_a_mix_by_hand_and_the_database_exclude_each_other(db: Path) -> None:
    with pytest.raises(ClairvoyantError, match="go with --advise") as caught:
        CliRunner().invoke(
            command, ["--advise", "--workload", "poisson", "--db", str(db)], catch_exceptions=False
        )
    assert caught.value.exit_code == ExitCode.USAGE
