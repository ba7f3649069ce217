"""Names that anybody chooses, of models, clients and profiles, are shown as they are and never obeyed."""

import io
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest
from clairvoyant_lab.report import Report, print_report
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

import clairvoyant_cli.main
from clairvoyant_cli.commands import calibrate, plain_output, status
from clairvoyant_cli.commands.console import PlainConsole
from clairvoyant_cli.commands.doctor import _print as print_findings
from clairvoyant_cli.doctor.finding import broken
from clairvoyant_cli.errors import ClairvoyantError
from clairvoyant_cli.main import main
from tests.fakes.commands import run
from tests.fakes.remembered import PROFILE, keep, traffic
from tests.tui.board import busy

NAMES = ("[/]", "[bold", "[red]x[/]", "[link=http://x]a", "[@click=app.bell]x", ":smile:", "\\[", "a\\")
UNPRINTABLE = "a\x1b]0;owned\x07\nb\u202e"


def printed(*what: RenderableType) -> str:
    console = PlainConsole(file=io.StringIO(), width=160, force_terminal=True)
    for each in what:
        console.print(each)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("name", NAMES)
def test_markup_is_shown_as_it_is_everywhere_in_a_print(name: str) -> None:
    table = Table("", title=name)
    table.add_row(name)
    shown = printed(name, table, Text(name))
    # The highlighter may colour parts of a string, so look at a row of a table and at a text alone.
    assert shown.count(name) >= 2
    assert "\x1b]8" not in shown  # no link


def test_what_cannot_be_printed_stays_out_of_a_terminal() -> None:
    table = Table("", box=None)
    table.add_row(UNPRINTABLE)
    for shown in (printed(table), printed(Text(UNPRINTABLE)), printed(UNPRINTABLE)):
        assert "\x1b]" not in shown
        assert "\x07" not in shown
        assert "\u202e" not in shown


@pytest.fixture
def db(tmp_path: Path) -> Path:
    """A database in which every name is somebody else's choice."""
    requests = [
        replace(each, model=NAMES[n % len(NAMES)], outcome="[/x]", length_class="short")
        for n, each in enumerate(traffic(40))
    ]
    served = replace(PROFILE.served, model="[/m]", backend="[/b]", version="[/v]", quantisation="[/q]")
    profile = replace(
        PROFILE,
        name="[/p]",
        served=served,
        host=replace(PROFILE.host, cpu="[/cpu]", gpus=("[/gpu]",)),
        method="[/method]",
        advice=("[/advice]",),
    )
    return keep(tmp_path / "c.db", requests, profile)


def test_history_shows_names_as_they_are(db: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    shown = run("history", "-n", "40", "--db", db).stdout
    for name in (*NAMES, "[/x]"):
        assert name in shown


def test_profiles_show_names_as_they_are(db: Path) -> None:
    listed = run("profiles", "list", "--db", db).stdout
    assert all(name in listed for name in ("[/p]", "[/m]", "[/b]"))
    shown = run("profiles", "show", "[/p]", "--db", db).stdout
    parts = "p m b v q cpu gpu method advice".split()
    assert [part for part in parts if f"[/{part}]" not in shown] == []


def test_status_doctor_reports_and_calibrate_show_names_as_they_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    snapshot = busy()
    backend = replace(snapshot.backends[0], detail="[/detail]")
    queue = tuple(replace(each, client="[/m]") for each in snapshot.queue)
    status._print(replace(snapshot, listen="[/l]", backends=(backend,), queue=queue))
    print_findings([broken("[/t]", "[/f]", "[/mend]")])
    print_report(Report("[/r]", "[/s]", notes=("[/note]",)), PlainConsole())
    calibrate._print(replace(PROFILE, name="[/p]"), as_json=False)
    shown = capsys.readouterr().out
    names = ("detail", "m", "l", "t", "f", "mend", "r", "s", "note", "p")
    assert [name for name in names if f"[/{name}]" not in shown] == []


def test_lines_and_json_hold_nothing_that_a_terminal_obeys(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    snapshot, name = busy(), f"{UNPRINTABLE}\x9b31m\x7f"
    queue = tuple(replace(each, model=name, client=name) for each in snapshot.queue)
    tau = replace(snapshot.tau, source=name)
    hostile = replace(snapshot, listen=name, queue=queue, tau=tau)
    status._print(hostile)
    plain_output.say_json(hostile)
    kept = keep(tmp_path / "c.db", [replace(each, model=name) for each in traffic(2)], PROFILE)
    shown = capsys.readouterr().out
    for flags in (["--json"], []):
        shown += run("history", *flags, "--db", kept).stdout
    assert "owned" in shown
    assert all(line.isprintable() for line in shown.splitlines())


def test_json_reads_as_what_it_was(capsys: pytest.CaptureFixture[str]) -> None:
    held = {"name": f'{UNPRINTABLE}\x9b\x7f\u200d\U000e0001 ä 😀 \\ "'}
    for indent in (0, 2):
        plain_output.say_json(held, indent=indent)
        assert json.loads(capsys.readouterr().out) == held


def test_an_error_is_one_line_whatever_a_name_holds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(**_: object) -> NoReturn:
        raise ClairvoyantError(f"no model {UNPRINTABLE}")

    monkeypatch.setattr(clairvoyant_cli.main, "cli", fail)
    with pytest.raises(SystemExit):
        main()
    said = capsys.readouterr().err
    assert said == "clairvoyant: no model a·]0;owned··b·\n"


def sources() -> Iterator[Path]:
    return (Path(clairvoyant_cli.main.__file__).parent / "commands").glob("*.py")


def test_no_command_prints_through_another_console() -> None:
    guilty = [path.name for path in sources() if "import Console" in path.read_text()]
    assert guilty in ([], ["console.py"])
