"""Comparison with arrival order, on queues computed by hand."""

import json
from dataclasses import replace
from pathlib import Path

from click.testing import CliRunner

from clairvoyant_cli import __version__
from clairvoyant_cli.main import cli
from profiles.records import Finished
from profiles.savings import compared, group
from tests.fakes.remembered import FINISHED, START, keep


def ran(arrived: float, begun: float, ended: float, saved_s: float | None, **more: object) -> Finished:
    """Return a request by its times in seconds after the start, and what it waited less than in order."""
    times = {"finished_at": START + ended, "sojourn_s": ended - arrived, "waited_s": begun - arrived}
    return replace(FINISHED, **times, saved_s=saved_s, **more)  # type: ignore[arg-type]


ONE_SLOT = [
    ran(0, 0, 10, 0.0, client="ann", length_class="long"),
    ran(1, 20, 120, -10.0, client="ann", length_class="long"),  # waited for the short ones that came after it
    ran(2, 10, 15, 100.0, client="ben", spared_tokens=500.0),
    ran(3, 15, 20, 100.0, client="cleo"),
    ran(4, 20, 25, None, client="dora"),
]


def test_savings_are_those_that_the_daemon_recorded() -> None:
    rows = compared(ONE_SLOT)
    assert [each.client for each in rows] == ["ann", "ann", "ben", "cleo"]
    of_class = {each.name: each for each in group(rows, lambda row: row.length_class)}
    assert (of_class["short"].saved_s, of_class["short"].spared_tokens) == (200, 500)
    assert of_class["short"].in_order_mean_s == 115
    assert of_class["long"].saved_s == -10
    assert [each.name for each in group(rows, lambda row: row.client)] == ["ben", "cleo", "ann"]


def said(path: Path, *words: str) -> str:
    done = CliRunner().invoke(cli, ["history", "--report", "--db", str(path), *words])
    assert done.exit_code == 0, done.output
    return done.output


def test_report_begins_with_the_verdict(tmp_path: Path) -> None:
    path = keep(tmp_path / "c.db", ONE_SLOT)
    text = " ".join(said(path).split())
    assert text.startswith("Mean sojourn time against order of arrival: short answers 87% lower")
    assert "long answers 8% higher" in text
    assert "In total 3 min 10 s less waiting (4 answers, 48 s each)" in text
    assert "by estimate 500 prompt tokens fewer were read." in text
    assert "1 other answer was not compared." in text
    only = json.loads(said(path, "--client", "ann", "--json"))
    assert only["verdict"].endswith("In total 10 s more waiting (2 answers, 5.0 s each).")
    assert [each["requests"] for each in only["by"]["client"]] == [2]
    assert "\n\n4 answers, 2096-" in said(path)
    nothing = CliRunner().invoke(cli, ["history", "--report", "--db", str(path), "--model", "another"])
    assert "No answers to compare in that time" in nothing.output


def test_report_tells_what_each_program_used(tmp_path: Path) -> None:
    asked = {"program": "nightly.py", "prompt_tokens": 1000, "tokens": 20}
    rows = [
        ran(0, 10, 80, 0.0, **asked),
        ran(1, 80, 100, 5.0, **asked),
        ran(2, 100, 130, None, program="opencode"),
    ]
    path = keep(tmp_path / "c.db", rows)
    first, second = json.loads(said(path, "--json"))["programs"]
    assert first == {
        "program": "nightly.py",
        "requests": 2,
        "slot_s": 90.0,
        "prompt_tokens": 2000,
        "tokens": 40,
        "waited_s": 89.0,
    }
    assert (second["program"], second["slot_s"]) == ("opencode", 30.0)
    assert "nightly.py 2 1 min 30 s 2,000 40 1 min 29 s" in " ".join(said(path).split())


def test_report_rounds_tiny_savings_to_zero(tmp_path: Path) -> None:
    path = keep(tmp_path / "c.db", [ran(0, 0.01, 10, -0.01)])
    text = " ".join(said(path).split())
    assert "In total no change in waiting time." in text
    assert "-0.0" not in text


def test_mistyped_commands_get_a_suggestion() -> None:
    done = CliRunner().invoke(cli, ["satus"])
    assert "did you mean status?" in done.output
    assert CliRunner().invoke(cli, ["-V"]).output.startswith(f"clairvoyant {__version__}")
