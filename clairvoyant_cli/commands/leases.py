"""Which commands of `clairvoyant run` need the daemon that one of them has started.

A lease is a file that names the processes of one `run`: itself and, once it has started, its command. It is
in force as long as one of them lives, so a command keeps its daemon if `run` is killed or suspended.

A `run` writes its lease before it asks for a daemon, and a daemon looks at all leases in the step in which it
begins to drain, so one of them sees the other.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from clairvoyant_cli.state.client import state_dir
from clairvoyant_cli.system import process_start, remove

Processes = list[tuple[int, float]]
"""Number and `process_start` of each."""


def _folder() -> Path:
    return state_dir() / "run"


@contextmanager
def leased() -> Iterator[Callable[[int], None]]:
    """Hold a lease until the block ends; the function that it yields adds a process."""
    held: Processes = []
    path = _folder() / str(os.getpid())
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)

    def add(pid: int) -> None:
        held.append((pid, process_start(pid)))
        fresh = path.with_suffix(".new")
        fresh.write_bytes(msgspec.json.encode(held))
        fresh.replace(path)

    add(os.getpid())
    try:
        yield add
    finally:
        remove(path)


def in_force() -> bool:
    """Whether any lease is in force; the others are removed."""
    found = False
    with suppress(OSError):
        for path in _folder().iterdir():
            if path.suffix:
                continue  # a lease that is being written, beside the one that it replaces
            if any(started and process_start(pid) == started for pid, started in _read(path)):
                found = True
            else:
                remove(path)
    return found


def _read(path: Path) -> Processes:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Processes)
    except (OSError, msgspec.DecodeError):
        return []
