"""Platform differences: imports, access lists, processes, fixes of the doctor."""

import os
import re
import subprocess
import sys
from pathlib import Path
from shutil import which

import pytest

from clairvoyant_cli.config import ServeConfig
from clairvoyant_cli.doctor import installation
from clairvoyant_cli.state.actions import Verb, arguments_of, printed
from clairvoyant_cli.system import command_line, process_start, run, split_command
from clairvoyant_cli.windows import strangers

ROOT = Path(__file__).resolve().parents[1]
TREES = ("clairvoyant_cli", "tui", "predictor", "profiles")

ASKED = re.compile(
    r"sys\.platform|os\.name\b|platform\.system\(|\bimport (fcntl|resource|termios|pwd|grp|msvcrt)\b"
)
MAY_ASK = {
    "clairvoyant_cli/system.py": "that is what it is for",
    "clairvoyant_cli/proxy/access/programs.py": "which process has a socket",
    "profiles/host.py": "what the machine is called",
    "tui/hardware/collect.py": "whose GPU is read",
    "tui/slow_terminal.py": "how output is dropped that the system has not passed on",
}

IMPORT_ALL = """
import importlib, importlib.util, pkgutil, sys
import asyncio, click, httpx, httptools, msgspec, multiprocessing, numpy, onnxruntime
import platformdirs, prometheus_client, psutil, pynvml, rich, starlette, subprocess, textual.app
import textual.widgets, uvicorn, xgboost, onnxmltools, sklearn.linear_model, scipy.stats
sys.platform = "win32"
for name in ("fcntl", "resource", "termios", "pwd", "grp", "uvloop"):
    sys.modules[name] = None
TORCH, NEED_TORCH = importlib.util.find_spec("torch"), "clairvoyant_lab.training.encoder"
for tree in sys.argv[1:]:
    package = importlib.import_module(tree)
    for found in pkgutil.walk_packages(package.__path__, f"{tree}."):
        if not found.name.endswith("__main__") and (TORCH or not found.name.startswith(NEED_TORCH)):
            importlib.import_module(found.name)
            print(found.name)
"""


def test_every_module_imports_on_windows() -> None:
    command = [sys.executable, "-c", IMPORT_ALL, *TREES]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert len(done.stdout.splitlines()) > 250


def test_only_system_module_checks_the_platform() -> None:
    asks = {
        str(path.relative_to(ROOT))
        for tree in TREES
        for path in (ROOT / tree).rglob("*.py")
        if ASKED.search(path.read_text())
    }
    assert asks == set(MAY_ASK)


def test_a_failing_import_keeps_its_error() -> None:
    async def main() -> None:
        raise ImportError("no such extra")

    with pytest.raises(ImportError, match="no such extra"):
        run(main())


def test_a_process_is_known_by_its_start() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        assert 0.0 < process_start(os.getpid()) < process_start(other.pid)
    assert process_start(other.pid) == 0.0


ANN = "S-1-5-21-1-2-3-1001"


@pytest.mark.parametrize(
    ("sddl", "others"),
    [
        # What a file in a profile folder inherits.
        (f"O:{ANN}D:AI(A;ID;FA;;;SY)(A;ID;FA;;;BA)(A;ID;FA;;;{ANN})", False),
        # A program run by an administrator leaves its files to all of them.
        (f"O:BAD:P(A;;FA;;;SY)(A;;FA;;;{ANN})", False),
        ("O:S-1-5-21-1-2-3-1002D:(A;;FA;;;S-1-5-21-1-2-3-1002)", False),
        (f"O:{ANN}D:PAI(A;;FA;;;OW)", False),
        (f"O:{ANN}D:", False),
        (f"O:{ANN}D:(A;OICIIO;GA;;;WD)(D;;FA;;;WD)(A;;FA;;;{ANN})", False),
        # Another disk, where Windows lets everybody who can log on write.
        (f"O:{ANN}D:AI(A;ID;FA;;;BA)(A;ID;0x1301bf;;;AU)(A;ID;0x1200a9;;;BU)", True),
        (f"O:{ANN}D:(A;;FA;;;{ANN})(A;;0x1200a9;;;WD)", True),
        (f"O:{ANN}D:(A;;FA;;;{ANN})(A;;FR;;;S-1-5-21-1-2-3-1002)", True),
        (f"O:{ANN}D:(XA;;FR;;;{ANN};(@User.Project Any_of 1))", True),
        (f"O:{ANN}D:NO_ACCESS_CONTROL", True),
        (f"O:{ANN}", True),
        ("", True),
    ],
)
def test_windows_access_lists_are_parsed(sddl: str, others: bool) -> None:
    assert bool(strangers(sddl, ANN)) is others


def test_inherited_access_entries_are_skipped() -> None:
    sddl = f"O:{ANN}D:AI(A;;FR;;;BU)(A;;FR;;;S-1-5-21-9-9-9-1002)(A;ID;FR;;;AU)(A;ID;FA;;;{ANN})"
    assert strangers(sddl, ANN) == {"S-1-5-11", "S-1-5-32-545", "S-1-5-21-9-9-9-1002"}
    assert strangers(sddl, ANN, inherited=False) == {"S-1-5-32-545", "S-1-5-21-9-9-9-1002"}


def test_only_system_module_imports_windows() -> None:
    imported = re.compile(r"from clairvoyant_cli import .*\bwindows\b|clairvoyant_cli\.windows")
    trees = [path for tree in TREES for path in (ROOT / tree).rglob("*.py")]
    assert [path.name for path in trees if imported.search(path.read_text())] == ["system.py"]


@pytest.mark.parametrize("platform", ["linux", "win32"])
def test_doctor_fixes_fit_the_platform(
    platform: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "R & D.toml"
    broken.write_text("[clients.me]\nwieght = 2")
    config = ServeConfig(api_key_file=str(tmp_path / "my keys"))
    monkeypatch.setattr(sys, "platform", platform)
    fixes = [each.fix for each in installation.check_files(config) if each.fix]
    config = ServeConfig(clients=str(broken))
    fixes += [each.fix for each in installation.check_files(config) if each.fix]
    words = {
        "linux": f"install -m 600 /dev/null '{tmp_path}/my keys'",
        "win32": f'New-Item "{tmp_path}/my keys"',
    }
    assert fixes == [words[platform], f"correct {broken}"]


NAMES = [
    "nightly.py (jobs)",
    "a$(touch P0)",
    "`touch P0`",
    "it's \"; touch P0 #",
    "-x",
    "a=b",
    "$HOME %PATH% & !x",
]


@pytest.mark.skipif(which("bash") is None, reason="there is no bash")
@pytest.mark.parametrize("name", NAMES)
def test_a_printed_command_can_be_pasted_into_bash(name: str, tmp_path: Path) -> None:
    command = printed(Verb.BACKGROUND, name).replace("clairvoyant", "printf '%s\\n'", 1)
    done = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=True)
    act, verb, *words = done.stdout.splitlines()
    for given in (words, [name]):  # as printed, and as a person writes it in quotes
        assert (act, verb, arguments_of(Verb(verb), given)) == ("act", "background", {"name": name})
    assert not list(tmp_path.iterdir())


def in_powershell(text: str) -> list[str]:
    """Split a command by PowerShell's rules (about_Quoting_Rules); an error if part of it would run."""
    words = re.findall(r'(?:"(?:[^"`$\u201c-\u201e]|`.|"")*"|[\w./:\\+=-]+)', text)
    assert " ".join(words) == text
    return [
        re.sub(r"`(.)", r"\1", word[1:-1].replace('""', '"')) if word[0] == '"' else word for word in words
    ]


@pytest.mark.parametrize("name", [*NAMES, "\u201d; calc \u201c", "a`", "x;calc|calc&calc>p", "50%"])
def test_a_printed_command_can_be_pasted_into_powershell_and_cmd(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    command = printed(Verb.BACKGROUND, name)
    assert in_powershell(command)[-1].removeprefix("name=") == name
    # In cmd each quote begins or ends a string, in which only %NAME% is replaced.
    assert not re.search(r"[&|<>^()]", "".join(command.split('"')[::2]))
    assert not re.search(r"%[^`%]+%", command)


@pytest.mark.parametrize("platform", ["linux", "win32"])
def test_a_command_line_is_split_into_the_words_it_was_joined_from(
    platform: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    words = ["OLLAMA_MODELS=/a b", r"PWD=C:\Users\Ada B", r"C:\Ollama\ollama.exe", "serve", "--x=#1"]
    assert split_command(command_line(words)) == words
