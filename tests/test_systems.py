"""What Windows and macOS lack is missed by nobody."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from clairvoyant_cli.system import is_alive, run

ROOT = Path(__file__).resolve().parents[1]
TREES = ("clairvoyant_cli", "tui", "predictor", "profiles")

ASKED = re.compile(
    r"sys\.platform|os\.name\b|platform\.system\(|\bimport (fcntl|resource|termios|pwd|grp|msvcrt)\b"
)
MAY_ASK = {
    "clairvoyant_cli/system.py": "that is what it is for",
    "profiles/clocks.py": "which clock counts sleep",
    "profiles/host.py": "what the machine is called",
    "tui/hardware/collect.py": "whose GPU is read",
}

IMPORT_ALL = """
import importlib, importlib.util, pkgutil, sys
import asyncio, click, httpx, httptools, msgspec, multiprocessing, numpy, onnxruntime, platformdirs
import prometheus_client, psutil, pynvml, rich, sqlite_utils, starlette, subprocess, textual.app
import textual.widgets, uvicorn, xgboost, onnxmltools, sklearn.linear_model, scipy.stats
sys.platform = "win32"
for name in ("fcntl", "resource", "termios", "pwd", "grp", "uvloop"):
    sys.modules[name] = None
TORCH, NEED_TORCH = importlib.util.find_spec("torch"), "predictor.training.encoder"
for tree in sys.argv[1:]:
    package = importlib.import_module(tree)
    for found in pkgutil.walk_packages(package.__path__, f"{tree}."):
        if not found.name.endswith("__main__") and (TORCH or not found.name.startswith(NEED_TORCH)):
            importlib.import_module(found.name)
            print(found.name)
"""


def test_every_module_can_be_imported_without_what_windows_lacks() -> None:
    command = [sys.executable, "-c", IMPORT_ALL, *TREES]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert len(done.stdout.splitlines()) > 250


def test_one_module_asks_what_system_it_runs_on() -> None:
    asks = {
        str(path.relative_to(ROOT))
        for tree in TREES
        for path in (ROOT / tree).rglob("*.py")
        if ASKED.search(path.read_text())
    }
    assert asks == set(MAY_ASK)


def test_an_import_that_fails_in_a_command_is_said_as_it_is() -> None:
    async def main() -> None:
        raise ImportError("no such extra")

    with pytest.raises(ImportError, match="no such extra"):
        run(main())


def test_a_process_that_is_there_is_alive_and_one_that_has_ended_is_not() -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    assert is_alive(ended.pid)
    ended.wait()
    assert not is_alive(ended.pid)
