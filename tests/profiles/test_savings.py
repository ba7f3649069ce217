"""Comparison with arrival order, on queues computed by hand."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from clairvoyant_cli.main import cli
from profiles.records import Finished
from profiles.savings import compare, group, slots_used
from tests.fakes.remembered import FINISHED, START, keep


def ran(arrived: float, begun: float, ended: float, kind: str = "short", **more: object) -> Finished:
    """Return a request by its times in seconds after the start."""
    times = {"finished_at": START + ended, "sojourn_s": ended - arrived, "waited_s": begun - arrived}
    return replace(FINISHED, **times, length_class=kind, **more)  # type: ignore[arg-type]


ONE_SLOT = [
    ran(0, 0, 10, "long", client="ann"),
    ran(1, 20, 120, "long", client="ann"),  # waited for the short ones that came after it
    ran(2, 10, 15, client="ben"),
    ran(3, 15, 20, client="cleo"),
]


def test_compare_with_arrival_order() -> None:
    found = {each.finished.client: each for each in compare(ONE_SLOT)}
    assert (found["ben"].sojourn_s, found["ben"].in_order_s) == (13, 113)
    assert (found["cleo"].sojourn_s, found["cleo"].in_order_s) == (17, 117)
    of_class = {each.name: each for each in group(compare(ONE_SLOT), lambda row: row.length_class)}
    assert of_class["short"].saved_s == 200
    assert of_class["long"].saved_s == -10
    assert [each.name for each in group(compare(ONE_SLOT), lambda row: row.client)] == ["ben", "cleo", "ann"]


def test_cancelled_requests_occupy_slots() -> None:
    given_up = ran(0, 0, 50, "", outcome="client_cancelled")
    never = ran(0, 90, 90, "", outcome="client_cancelled", dispatched_by="")
    [only] = compare([given_up, never, ran(1, 50, 60)])
    assert only.in_order_s == 59


@pytest.mark.parametrize(
    ("rows", "slots"),
    [
        (ONE_SLOT, 1),
        ([ran(0, 0, 10), ran(0, 0, 10), ran(5, 10, 20)], 2),
        ([ran(0, 0, 10), ran(0, 9.99, 20)], 1),  # the clocks' own unrest
        ([ran(0, 0, 100, "long", cuts=1), ran(1, 1, 2)], 1),  # cut for the short one
        ([], 1),
    ],
)
def test_slots_used(rows: list[Finished], slots: int) -> None:
    assert slots_used(rows) == slots


def said(path: Path, *words: str) -> str:
    done = CliRunner().invoke(cli, ["report", "--db", str(path), "--since", "2096-10-01", *words])
    assert done.exit_code == 0, done.output
    return done.output


def test_report_begins_with_the_verdict(tmp_path: Path) -> None:
    path = keep(tmp_path / "c.db", ONE_SLOT)
    text = " ".join(said(path).split())
    assert text.startswith("Mean sojourn time against arrival order: short answers 87% lower")
    assert "long answers 8% higher" in text
    assert "In total it saved 3 min 10 s of waiting." in text
    only = json.loads(said(path, "--client", "ann", "--json"))
    assert only["verdict"].endswith("In total it cost 10 s more waiting than it saved.")
    assert [each["requests"] for each in only["by"]["client"]] == [2]
    page = tmp_path / "mine.html"
    said(path, "--html", str(page))
    assert "short answers 87% lower" in page.read_text()
    assert "\n\n4 answers, 2096-" in said(path)
    nothing = CliRunner().invoke(cli, ["report", "--db", str(path), "--model", "another"])
    assert "No answers in that time" in nothing.output


def test_report_rounds_tiny_savings_to_zero(tmp_path: Path) -> None:
    path = keep(tmp_path / "c.db", [ran(0, 0.01, 10)])
    text = " ".join(said(path).split())
    assert "In total it neither saved nor cost any waiting." in text
    assert "-0.0" not in text


@pytest.mark.parametrize(
    "words",
    [
        ["report", "--html", "/nonexist/x.html"],
        ["report", "--html", "x.pdf"],
        ["bench", "burst", "--report", "/nonexist/x.md"],
        ["bench", "burst", "--report", "x.pdf"],
        ["bench", "burst", "--plot", "x.png"],
        ["bench", "burst", "--resume", "/nonexist/x.part"],
        ["simulate", "--plot", "x.gif"],
        ["train", "x.jsonl", "--out", f"{__file__}/model"],
    ],
)
def test_invalid_outputs_are_usage_errors(words: list[str]) -> None:
    done = CliRunner().invoke(cli, words)
    assert done.exit_code == 2, done.output


def test_mistyped_commands_get_a_suggestion() -> None:
    done = CliRunner().invoke(cli, ["satus"])
    assert "did you mean status?" in done.output
    assert CliRunner().invoke(cli, ["-V"]).output.startswith("clairvoyant, version")
