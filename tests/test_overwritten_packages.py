"""Packages named tui, predictor or profiles of other distributions are reported in one line."""

import os
import subprocess
import sys
from base64 import urlsafe_b64encode
from hashlib import sha256
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("clairvoyant_cli", "tui", "predictor", "profiles")
PYTHON_2 = '"""A textual user interface."""\nprint "no Python 3"\n'
"""As tui 1.1.1 of 2011, which pip lays over our package of that name."""


def run(*words: str, where: Path) -> "subprocess.CompletedProcess[str]":
    environment = os.environ | {"PYTHONPATH": f"{where}{os.pathsep}{ROOT}", "HOME": str(where)}
    command = [sys.executable, "-m", "clairvoyant_cli", *words]
    return subprocess.run(command, cwd=where, env=environment, capture_output=True, text=True, check=False)


def installed(site: Path, overwritten: str, text: str) -> None:
    """Put our packages there as a wheel does, and another distribution's first module over one of them."""
    record = []
    for package in PACKAGES:
        (site / package).mkdir()
        for each in (ROOT / package).iterdir():
            (site / package / each.name).symlink_to(each)
        first = site / package / "__init__.py"
        digest = urlsafe_b64encode(sha256(first.read_bytes()).digest()).decode().rstrip("=")
        record.append(f"{package}/__init__.py,sha256={digest},1")
    for name, lines in (("clairvoyant_cli", record), (overwritten, [f"{overwritten}/__init__.py,,"])):
        info = site / f"{name}-0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: 0\n")
        (info / "RECORD").write_text("\n".join(lines))
    (site / overwritten / "__init__.py").unlink()
    (site / overwritten / "__init__.py").write_text(text)


@pytest.mark.parametrize(
    ("name", "text", "command"),
    [
        ("tui", PYTHON_2, "top --once"),
        ("predictor", "", "predict hello"),
        ("profiles", "raise AttributeError", "history"),
    ],
)
def test_every_command_names_an_overwriting_package(
    tmp_path: Path, name: str, text: str, command: str
) -> None:
    installed(tmp_path, name, text)
    done = run(*command.split(), where=tmp_path)
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert line.startswith(f"clairvoyant: {name} in {tmp_path} was overwritten by {name}; run: uv tool")
    assert run("--version", where=tmp_path).returncode == 0


def test_a_shadowing_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "profiles").mkdir()
    (tmp_path / "profiles" / "__init__.py").touch()
    done = run("history", where=tmp_path)
    assert done.stderr.startswith(f"clairvoyant: profiles comes from {tmp_path}, not from {ROOT}; run: uv ")


def test_internal_errors_keep_their_traceback(tmp_path: Path) -> None:
    code = (
        "from clairvoyant_cli import main as m\n"
        "def broken(**_): raise AttributeError('ours')\n"
        "m.cli = broken\nm.main()"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert "Traceback" in done.stderr
    assert done.stderr.endswith("AttributeError: ours\n")
