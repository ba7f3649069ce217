"""Times as they are given and shown, also those that no calendar has."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest
from click.testing import CliRunner

from clairvoyant_cli.commands.number_format import seconds
from clairvoyant_cli.commands.time_spans import FARTHEST_S, date, when
from clairvoyant_cli.errors import ClairvoyantError
from clairvoyant_cli.main import cli
from profiles.database import writing
from profiles.history import ALWAYS, FOREVER
from profiles.store import LATEST
from tests.fakes.remembered import PROFILE, keep, traffic

NO_TIMES = ("", "-1d", "1e3d", "now", "nan", "inf", "2026-13-01", "0001-01-01", "٣d", "9" * 5000 + "-01-01")
TOO_LONG_AGO = ("9999999999999999999999d", f"1{'0' * 400}d", f"{'9' * 5000}w", "99999999w")


@pytest.mark.parametrize("text", [*NO_TIMES, *TOO_LONG_AGO])
@pytest.mark.parametrize("option", ["--since", "--until"])
def test_what_is_no_time_is_refused_in_one_line(text: str, option: str, tmp_path: Path) -> None:
    db = keep(tmp_path / "c.db", traffic(3))
    for command in (["history"], ["history", "--forget", "--yes"]):
        result = CliRunner().invoke(cli, [*command, option, text, "--db", str(db)])
        assert result.exit_code == 2, result.output
        assert isinstance(result.exception, SystemExit)
        complaint = result.stderr.splitlines()[-1]
        assert "is not a time" in complaint or "too long ago" in complaint
        assert len(complaint) < 200


def test_the_bounds_of_time_are_the_same_everywhere() -> None:
    assert FARTHEST_S == LATEST == FOREVER == -ALWAYS


@pytest.mark.parametrize("text", ["9999-12-31T23:59:59-23:59", "0001-01-01T00:00:00+23:59", "52000w"])
def test_far_times_are_times(text: str) -> None:
    try:
        at = when(text)
    except click.BadParameter:  # a platform's calendar may end before
        return
    assert abs(at) <= FARTHEST_S
    assert date(at)


@pytest.mark.parametrize("at", [1e300, -1e18, 1e18, float("inf"), float("-inf"), float("nan")])
def test_a_time_without_a_date_is_shown_in_words(at: float) -> None:
    assert date(at) == "an invalid date"


@pytest.mark.parametrize("at", [1e12, -1e12, 4e11])
def test_profiles_of_wrong_clocks_are_listed(at: float, tmp_path: Path) -> None:
    db = keep(tmp_path / "c.db", (), replace(PROFILE, measured_at=at))
    result = CliRunner().invoke(cli, ["profiles", "list", "--db", str(db)])
    assert result.exception is None
    assert re.search(r"\d\d:\d\d|without", result.stdout)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"measured_at": 1e300}, "date"),
        ({"measured_at": -1e18}, "date"),
        ({"slots": 10**9}, "slots are not 1 to 1024"),
        ({"slots": 0}, "slots"),
        ({"name": ""}, "name"),
        ({"name": "a\nb"}, "name"),
        ({"tau_s": -1.0}, "negative"),
        ({"decode_tokens_per_s": -1e308}, "negative"),
    ],
)
def test_an_impossible_profile_is_not_used(change: dict[str, Any], why: str, tmp_path: Path) -> None:
    db = keep(tmp_path / "c.db", (), PROFILE)
    with writing(db) as connection:
        record = msgspec.json.encode(replace(PROFILE, **change)).decode()
        connection.execute("UPDATE profiles SET record = ?", (record,))
    result = CliRunner().invoke(cli, ["profiles", "show", PROFILE.name, "--db", str(db)])
    assert isinstance(result.exception, ClairvoyantError), result.exception
    assert why in str(result.exception)


@pytest.mark.parametrize(("value", "text"), [(None, "-"), (0.000812, "0.001 s"), (1234.5, "1234 s")])
def test_seconds_are_shown_to_be_compared(value: float | None, text: str) -> None:
    assert seconds(value) == text
