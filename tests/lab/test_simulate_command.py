"""`clairvoyant simulate` as a user meets it."""

import json
from pathlib import Path

import click
import pytest
from clairvoyant_lab.commands.simulate import command
from click.testing import CliRunner, Result

from clairvoyant_cli.errors import ClairvoyantError

SMALL = ["--seeds", "2", "--requests", "60"]


def simulate(*arguments: str) -> Result:
    """Run the command; an exception it does not expect is the test's."""
    return CliRunner().invoke(command, list(arguments), catch_exceptions=False)


def test_json_is_data_and_nothing_else() -> None:
    result = simulate("--scenario", "clairvoyant-table8", *SMALL, "--json")
    found = json.loads(result.stdout)
    assert found["name"] == "clairvoyant-table8"
    [cell] = [
        cell
        for table in found["tables"]
        for cell in table["cells"]
        if (table["title"], cell["row"], cell["column"]) == ("Change against fcfs", "sjf no tau", "short P50")
    ]
    assert cell["paper"] == -70.0
    assert -100.0 < cell["ours"] < -30.0


def test_a_scenario_takes_no_options_of_a_workload() -> None:
    for words in (("--preempt", "0.1"), ("--policy", "srpt"), ("--short", "3.5,0.8")):
        with pytest.raises(click.UsageError, match=f"{words[0]} does not go with --scenario"):
            command.main(["--scenario", "clairvoyant-table8", *words], standalone_mode=False)


def test_a_generated_workload_with_several_backends_and_preemption() -> None:
    result = simulate(
        *SMALL, "--policy", "srpt", "--workers", "2", "--slots", "2", "--preempt", "0.1", "--tau", "0"
    )
    assert result.exit_code == 0
    assert "4 slots, offered load 0.74 per slot" in result.stdout


def test_log_normal_answers_pay_less_at_the_end_under_the_default_policy() -> None:
    result = simulate(
        *("--workload", "lognormal", "--predictor", "error:0.9", "--preempt", "0.05", "--tau", "120"),
        *("--seeds", "2", "--requests", "400", "--policy", "boost", "--policy", "srpt", "--json"),
    )
    change = {(c["row"], c["column"]): c["ours"] for c in json.loads(result.stdout)["tables"][1]["cells"]}
    assert change["boost", "short P50"] < -60.0
    assert change["boost", "all P99"] < change["srpt", "all P99"]
    assert change["boost", "long P50"] < change["srpt", "long P50"]
    assert change["boost", "mean"] < -20.0


def test_a_burst() -> None:
    result = simulate(
        *SMALL, "--workload", "burst", "--long-share", "0.25", "--predictor", "oracle", "--json"
    )
    figures = json.loads(result.stdout)["tables"][1]["cells"]
    assert any(f["row"] == "boost" and f["column"] == "short P50" and f["ours"] < -40.0 for f in figures)


def test_a_file_of_recorded_requests(tmp_path: Path) -> None:
    path = tmp_path / "history.csv"
    lines = [f"{n * 0.5},{20 if n % 2 else 900},{30 if n % 2 else 700}" for n in range(40)]
    path.write_text("\n".join(["arrival_s,tokens,predicted_tokens", *lines]))
    found = json.loads(simulate("--workload", str(path), "--predictor", "recorded", "--json").stdout)
    change = {(c["row"], c["column"]): c["ours"] for c in found["tables"][1]["cells"]}
    assert change["boost", "short P50"] < -50.0


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--policy", "nosuch"], "is none of boost, sjf"),
        (["--predictor", "tarot"], "is neither oracle"),
        (["--predictor", "class:2"], "accuracy from 0.5 to 1"),
        (["--predictor", "recorded"], "recorded a --workload FILE"),
        (["--predictor", "error:0.9"], "needs --workload lognormal"),
        (["--workload", "lognormal", "--predictor", "error:x"], "give an error above 0"),
        (["--workload", "nowhere.csv"], "cannot read the requests nowhere.csv"),
    ],
)
def test_simulate_errors_are_one_line(arguments: list[str], complaint: str) -> None:
    with pytest.raises(ClairvoyantError, match=complaint) as caught:
        simulate(*SMALL, *arguments)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["x", "1", "1,2,3", "-1,2", "3,-1"])
def test_mean_and_spread_must_be_two_valid_numbers(text: str) -> None:
    result = simulate("--short", text)
    assert result.exit_code == 2
    assert "--short" in result.stderr
