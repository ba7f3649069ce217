"""`clairvoyant demo` from end to end: two backends, two daemons, the shipped predictor."""

import json

import pytest
from click.testing import CliRunner

from clairvoyant_cli.commands import demo
from clairvoyant_cli.demo.questions import Call, Question
from clairvoyant_cli.demo.race import Lane
from clairvoyant_cli.errors import ClairvoyantError

QUICK = ["--speed", "20000", "--requests", "6"]


def test_the_result_is_json_on_stdout_and_nothing_else() -> None:
    result = CliRunner().invoke(demo.command, [*QUICK, "--seed", "1", "--json"], catch_exceptions=False)
    assert result.exit_code == 0
    told = json.loads(result.stdout)
    assert told["settings"] == {"tokens_per_s": 20000.0, "requests": 6, "seed": 1}
    fcfs, sjf = (told["lanes"][policy]["requests"] for policy in ("fcfs", "sjf"))
    assert [r["title"] for r in fcfs] == [r["title"] for r in sjf]
    assert [r["tokens"] for r in fcfs] == [r["tokens"] for r in sjf]
    assert all(r["error"] is None and r["sojourn_s"] > 0 for r in fcfs + sjf)
    assert set(told["change_of_mean"]) == {"short", "long", "all"}


def test_without_a_terminal_it_prints_lines_and_the_table() -> None:
    result = CliRunner().invoke(demo.command, QUICK, catch_exceptions=False)
    assert result.exit_code == 0
    assert "6 questions to a simulated backend" in result.stdout
    assert "short answers, P95" in result.stdout
    assert "\x1b" not in result.output
    told = [line.split()[2] for line in result.stderr.splitlines()[1:]]
    assert sorted(told) == ["fcfs"] * 6 + ["sjf"] * 6


def test_a_failed_request_is_a_failed_demo() -> None:
    calls = [Call(Question(name, 1), sent_s=0.0, ended_s=1.0) for name in ("q", "r")]
    lane = Lane("fcfs", "", None, calls)  # type: ignore[arg-type]
    demo._refuse_failures([lane])
    calls[1].error = "HTTP 503"
    with pytest.raises(ClairvoyantError, match="1 of 2 requests failed, the first with: HTTP 503"):
        demo._refuse_failures([lane])


@pytest.mark.parametrize("arguments", [["--requests", "1"], ["--speed", "0"], ["--requests", "1000"]])
def test_invalid_demo_options_are_refused(arguments: list[str]) -> None:
    assert CliRunner().invoke(demo.command, arguments).exit_code == 2
