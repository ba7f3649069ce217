"""Load and newest answers of a history."""

from collections import defaultdict
from pathlib import Path

import pytest

from profiles.database import reading
from profiles.history import Span
from profiles.traffic import load, newest_answers
from tests.fakes.remembered import busy_days, keep, traffic

ROWS = [*busy_days(6000), *traffic(300, start=4_000_060_000.0)]
"""Some hours of a busy server; the latter part has requests without a whole answer among them."""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database of all rows."""
    return keep(tmp_path_factory.mktemp("traffic") / "c.db", ROWS)


@pytest.mark.parametrize("client", [None, "alice"])
def test_busiest_hour(path: Path, client: str | None) -> None:
    rows = [row for row in ROWS if client in (None, row.client)]
    work_s: dict[int, float] = defaultdict(float)
    for row in rows:
        work_s[int(row.finished_at // 3600)] += row.sojourn_s - row.waited_s
    with reading(path) as connection:
        found = load(connection, Span(client=client))
    assert found is not None
    busiest = max(work_s, key=lambda hour: max(0.0, work_s[hour]))
    assert found.busiest.hour == busiest
    assert found.busiest_utilisation(2) == pytest.approx(work_s[busiest] / 7200)
    assert found.busiest_per_s == pytest.approx(
        sum(row.finished_at // 3600 == busiest for row in rows) / 3600
    )
    hours = max(work_s) - min(work_s) + 1
    assert found.span_s == 3600 * hours
    assert found.utilisation(1) == pytest.approx(sum(max(0.0, s) for s in work_s.values()) / 3600 / hours)
    above = {hour for hour, seconds in work_s.items() if seconds >= 0.2 * 3600}
    share = sum(row.finished_at // 3600 in above for row in rows) / len(rows)
    assert 0.0 < share < 1.0
    assert found.share_above(0.2, 1) == pytest.approx(share)


def test_newest_answers_are_complete(path: Path) -> None:
    whole = sorted(
        (row for row in ROWS if row.outcome == "completed"), key=lambda row: row.finished_at, reverse=True
    )
    with reading(path) as connection:
        found = newest_answers(connection, Span(), 500)
        of_bob = newest_answers(connection, Span(client="bob"))
        assert newest_answers(connection, Span(model="another")) == []
        assert load(connection, Span(model="another")) is None
    assert [answer.finished_at for answer in found] == [row.finished_at for row in whole[:500]]
    assert [answer.service_s for answer in found] == [row.sojourn_s - row.waited_s for row in whole[:500]]
    assert len(of_bob) == sum(row.client == "bob" for row in whole)


def test_a_short_history_is_its_own_busiest_hour(tmp_path: Path) -> None:
    # It lies across a full hour: either part alone would look idle.
    rows = list(busy_days(200, start=4_000_000_000.0 - 4_000_000_000.0 % 3600 - 450.0))
    with reading(keep(tmp_path / "c.db", rows)) as connection:
        found = load(connection, Span())
    assert found is not None
    seconds = rows[-1].finished_at - min(row.finished_at - row.sojourn_s for row in rows)
    assert 600 < seconds < 1200
    assert found.span_s == found.busiest_s == pytest.approx(seconds)
    assert found.busiest.requests == 200
    worked_s = sum(row.sojourn_s - row.waited_s for row in rows)
    assert found.busiest_utilisation(1) == found.utilisation(1) == pytest.approx(worked_s / seconds)
