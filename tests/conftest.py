"""What tests of more than one tree share."""

import gc
import logging
import os
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

# The tests run side by side, and threads of a small matrix product cost more than they save: learning from
# an answer took four times the processor time. Read when numpy is first imported; child processes inherit it.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import httpx._transports.default
import psutil
import pytest
from hypothesis import settings

import clairvoyant_cli.backends.process_inspection
import tests.fakes.replay_dialects  # noqa: F401 - adds routes to the replay backend
from tests.fakes.llamacpp_server import LlamaServer, llama_server
from tests.fakes.tiny_gguf import write_tiny_model

# Each client would read all certificates of the system again, which takes longer than most tests.
transports: Any = httpx._transports.default
transports.create_ssl_context = cache(transports.create_ssl_context)

# On a busy machine an example may take any time; no test asserts how long something takes.
settings.register_profile("patient", deadline=None, max_examples=40)
settings.load_profile("patient")


NO_PROCESSES = SimpleNamespace(**vars(psutil) | {"process_iter": lambda *_: iter(())})


def pytest_configure() -> None:
    """Keep bytecode, which containers often forbid: each process would compile the program again."""
    if os.environ.pop("PYTHONDONTWRITEBYTECODE", None):
        sys.dont_write_bytecode = False


def pytest_collection_finish() -> None:
    """Leave out of each garbage collection what stays until the end: the modules and the tests."""
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip on Windows what needs POSIX, or llama.cpp's own server."""
    if sys.platform == "win32":
        for item in items:
            if item.get_closest_marker("posix") or "llama" in getattr(item, "fixturenames", ()):
                item.add_marker(pytest.mark.skip("needs POSIX"))


@pytest.fixture(autouse=True)
def log_level() -> Iterator[None]:
    """Restore the level of the log, which commands set for the process that they run in."""
    level = logging.getLogger("clairvoyant").level
    yield
    logging.getLogger("clairvoyant").setLevel(level)


@pytest.fixture(autouse=True)
def _no_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide this machine's processes from a daemon that looks for the one of its server: for each server it
    reads all connections of the machine, once for each Python that runs.
    """
    monkeypatch.setattr(clairvoyant_cli.backends.process_inspection, "psutil", NO_PROCESSES)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny.gguf")


@pytest.fixture(scope="session")
def llama(tiny_model: Path) -> Iterator[LlamaServer]:
    """A real llama.cpp server with one slot, shared by the tests that leave it idle and alive."""
    with llama_server(tiny_model) as server:
        yield server


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep what daemons and commands write out of the user's home."""
    for name in ("HOME", "XDG_STATE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
