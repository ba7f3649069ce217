"""`profiles` and `history`: output and errors."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from clairvoyant_cli.main import cli
from profiles.records import Continuation
from profiles.writer import Writer
from tests.fakes.commands import refused, run
from tests.fakes.remembered import FINISHED, PROFILE, START, keep, record, recorded, traffic


@pytest.fixture
def db(tmp_path: Path) -> Path:
    return keep(tmp_path / "c.db", traffic(300), PROFILE)


def test_a_profile_is_listed_and_shown(db: Path) -> None:
    listed = run("profiles", "list", "--db", db).stdout
    assert "120 s" in listed
    shown = run("profiles", "show", PROFILE.name, "--db", db).stdout
    assert "mu_short  40 s (35 s to 45 s, n=100), measured" in shown
    assert json.loads(run("profiles", "show", PROFILE.name, "--json", "--db", db).stdout)["tau_s"] == 120.0
    assert json.loads(run("profiles", "list", "--json", "--db", db).stdout)[0]["tau_s"] == 120.0


@pytest.mark.parametrize(
    ("ways", "said"),
    [
        ((), "serve does not preempt yet: too few trials"),
        ((Continuation("raw", 8, 8, 0.012),), "serve does not preempt yet: too few trials"),
        (
            (Continuation("raw", 24, 20, 0.012, rounded=4, tie_nats=0.25),),
            "20 of 24 texts identical, 4 differ by rounding",
        ),
        ((Continuation("raw", 24, 20, 0.012),), "serve does not preempt: continued answers"),
        (
            (Continuation("raw", 24, 24, 0.012), Continuation("prefill", 4, 0, 0.0)),
            "serve preempts answers",
        ),
    ],
)
def test_show_reports_whether_serve_preempts(
    ways: tuple[Continuation, ...], said: str, tmp_path: Path
) -> None:
    profile = replace(PROFILE, continuations=ways)
    shown = run("profiles", "show", PROFILE.name, "--db", keep(tmp_path / "c.db", (), profile)).stdout
    assert said in shown
    lines = [line for line in shown.splitlines() if "texts identical" in line]
    assert len(lines) == len(ways)
    if len(ways) == 2:
        assert lines == [
            "continue by raw: 24 of 24 texts identical, 12 ms to resume",
            "continue by prefill: 0 of 4 texts identical",
        ]


def test_commands_use_the_configured_database(db: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLAIRVOYANT_SERVE_DB", str(db))
    assert "120 s" in run("profiles", "list").stdout
    assert len(run("history", "--json").stdout.splitlines()) > 10


def test_removing_several_is_all_or_nothing(db: Path) -> None:
    assert "no profile 'x'" in refused("profiles", "rm", PROFILE.name, "x", "--db", db)
    run("profiles", "show", PROFILE.name, "--db", db)


def test_history_prints_requests(db: Path) -> None:
    printed = run("history", "--db", db).stdout
    assert run("history", "--db", db, "--client", "nobody").stdout == "no such requests\n"
    assert "gemma3" in printed
    assert "alice" not in printed


def test_history_as_json(db: Path) -> None:
    lines = [json.loads(line) for line in run("history", "--json", "--db", db).stdout.splitlines()]
    assert [line["finished_at"] for line in lines] == sorted(line["finished_at"] for line in lines)
    assert len(lines) == 300
    last = run("history", "--json", "-n", "2", "--db", db).stdout.splitlines()
    assert [json.loads(line) for line in last] == lines[-2:]


def test_history_prints_what_was_read_and_remarks(db: Path) -> None:
    rows = [
        replace(
            FINISHED,
            finished_at=START + 9e3 + n,
            session="abc-s7",
            read_tokens=100,
            cached_tokens=300 * n,
            program="opencode",
        )
        for n in range(3)
    ]
    record(Writer(db), rows)
    latest = run("history", "-n", "1", "--db", db).stdout
    assert "completed 100 50 60" in " ".join(latest.split())
    record(Writer(db), [replace(FINISHED, finished_at=START + 9.9e3, remark="prompt cut")])
    assert run("history", "-n", "1", "--db", db).stdout.endswith("prompt cut\n")


def test_history_trace_is_a_simulator_workload(db: Path, tmp_path: Path) -> None:
    from clairvoyant_lab.simulator.traces import read_history

    file = tmp_path / "trace.jsonl"
    file.write_text(run("history", "--trace", "--db", db).stdout)
    found = read_history(file)
    answered = [row for row in traffic(300) if row.outcome == "completed"]
    assert len(found.workload.tokens) == len(answered)
    assert sorted(found.workload.tokens) == sorted(row.tokens or 0 for row in answered)
    assert found.predictions is not None


def test_history_by_client_and_time(db: Path) -> None:
    every_line = run("history", "--json", "--db", db).stdout.splitlines()
    alices = run("history", "--json", "--client", "alice", "--db", db).stdout.splitlines()
    bobs = run("history", "--json", "--client", "bob", "--db", db).stdout.splitlines()
    assert 0 < len(alices) < len(every_line)
    assert not set(alices) & set(bobs)
    assert run("history", "--json", "--until", "2026-01-01", "--db", db).stdout == ""
    assert run("history", "--json", "--client", "mallory", "--db", db).stdout == ""


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--forget", "--all", "-n", "5"), "--limit does not go with --forget"),
        (("--report", "--trace"), "--trace does not go with --report"),
        (("--json", "--trace"), "--json does not go with --trace"),
        (("--forget", "--report"), "--report does not go with --forget"),
        (("--all",), "--all goes with --forget"),
    ],
)
def test_history_refuses_options_of_another_view(db: Path, arguments: tuple[str, ...], said: str) -> None:
    result = CliRunner().invoke(cli, ["history", *arguments, "--db", str(db)], input="y\n")
    assert result.exit_code == 2
    assert said in result.output
    assert len(recorded(db)) == 300


def test_forget_needs_a_selection(db: Path) -> None:
    assert "--all" in refused("history", "--forget", "--db", db)
    assert "--all" in refused("history", "--forget", "--all", "--client", "bob", "--db", db)
    result = CliRunner().invoke(cli, ["history", "--forget", "--all", "--db", str(db)], input="n\n")
    assert result.exit_code == 1
    assert len(recorded(db)) == 300


def test_forget_confirms_with_absolute_times(db: Path) -> None:
    for arguments, said in (
        (["--all"], "Permanently erase all requests?"),
        (["--client", "bob", "--since", "2026-05-01T14:30"], "requests of bob since 2026-05-01 14:30:00?"),
        (["--until", "2026-05-01"], "Permanently erase all requests until 2026-05-01 00:00:00?"),
        (["--model", "gemma"], "Permanently erase all requests to gemma?"),
    ):
        asked = CliRunner().invoke(cli, ["history", "--forget", *arguments, "--db", str(db)], input="n\n")
        assert said in asked.stderr


def test_time_arguments(db: Path) -> None:
    run("history", "--since", "7d", "--db", db)
    run("history", "--since", "2026-05-01T14:30", "--db", db)
    bad = CliRunner().invoke(cli, ["history", "--since", "yesterday", "--db", str(db)])
    assert bad.exit_code == 2
    assert "90m, 12h, 7d" in bad.output


@pytest.mark.parametrize(
    "command",
    [
        ("profiles", "list"),
        ("profiles", "show", "x"),
        ("history",),
        ("history", "--forget", "--all", "--yes"),
    ],
)
def test_commands_report_a_damaged_file_in_one_line(tmp_path: Path, command: tuple[str, ...]) -> None:
    path = tmp_path / "c.db"
    path.write_bytes(b"not a database at all" * 200)
    assert "damaged" in refused(*command, "--db", path)


@pytest.mark.parametrize("command", [("profiles", "list"), ("profiles", "show", "x"), ("history",)])
def test_a_database_that_does_not_exist_is_an_error(tmp_path: Path, command: tuple[str, ...]) -> None:
    missing = tmp_path / "c.db"
    assert f"nothing is recorded yet in {missing}" in refused(*command, "--db", missing)
    assert not missing.exists()
    assert START > 0
