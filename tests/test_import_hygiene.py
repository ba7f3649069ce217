"""Import cost: which modules each entry point loads, in a fresh interpreter."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
HEAVY = {
    "textual",
    "rich",
    "onnxruntime",
    "numpy",
    "httpx",
    "starlette",
    "uvicorn",
    "msgspec",
}


def loaded_by(code: str) -> set[str]:
    program = f"{code}\nimport sys\nprint(*sorted(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return set(done.stdout.splitlines()[-1].split())


def test_help_loads_only_click() -> None:
    code = """
import contextlib, io
from clairvoyant_cli.main import cli
with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
    cli(["--help"])
"""
    loaded = loaded_by(code)
    assert "click" in loaded
    assert loaded.isdisjoint(HEAVY | {"asyncio", "difflib", "socket", "subprocess", "clairvoyant_cli.config"})
    assert not any(name.startswith("clairvoyant_cli.commands.") for name in loaded)


@pytest.mark.parametrize("command", ["status", "doctor"])
def test_control_client_loads_one_http_library(command: str) -> None:
    code = f"""
import contextlib, io
from clairvoyant_cli.main import cli
from clairvoyant_cli.errors import ClairvoyantError
with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit, ClairvoyantError):
    cli(["{command}", "--url", "http://127.0.0.1:1"])
"""
    loaded = loaded_by(code)
    assert {"clairvoyant_cli.state.client", f"clairvoyant_cli.commands.{command}"} <= loaded
    assert loaded.isdisjoint({"httpx", "http.client", "textual"})
    assert command == "doctor" or loaded.isdisjoint({"rich", "numpy", "psutil", "sqlite3", "profiles"})


@pytest.mark.parametrize(
    "seam", ["predictor.record", "clairvoyant_cli.state.snapshot", "clairvoyant_cli.errors"]
)
def test_records_import_without_dependencies(seam: str) -> None:
    assert loaded_by(f"import {seam}").isdisjoint(HEAVY | {"click"})


def test_scheduler_imports_no_io() -> None:
    bare = loaded_by("import dataclasses, enum, collections.abc, heapq, itertools, typing, math")
    loaded = loaded_by("import clairvoyant_cli.scheduler.queue")
    impure = {"asyncio", "time", "random", "logging", "socket", "sqlite3", "click", "numpy"}
    assert (loaded - bare).isdisjoint(impure)


def test_daemon_imports_no_front_end_or_training_library() -> None:
    loaded = loaded_by("import clairvoyant_cli.proxy.daemon")
    assert loaded.isdisjoint({"textual", "rich", "onnxruntime", "numpy", "uvicorn", "sklearn"})


def test_library_telemetry_is_off() -> None:
    program = (
        "import os, sys, predictor; print(os.environ['ORT_DISABLE_TELEMETRY'], 'onnxruntime' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["1", "False"]


def test_learning_takes_one_thread() -> None:
    code = (
        "import os, psutil; from predictor import load; from predictor.record import PromptView; p = load(); "
        "[p.learn(p.predict(PromptView(f'Say {n}')), 30) for n in range(20)]; "
        "print(psutil.Process().num_threads(), 'OPENBLAS_NUM_THREADS' in os.environ)"
    )
    kept = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, env=kept)
    assert done.stdout.split() == ["1", "False"]
