"""The record of a takeover, by which it is undone, also after a crash.

It is written before each step. Undoing looks at what is there and does only what is missing, so it can be
repeated.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from clairvoyant_cli.addresses import local_url
from clairvoyant_cli.errors import ClairvoyantError
from clairvoyant_cli.state.client import state_dir
from clairvoyant_cli.system import create_for_owner, lock_now, remove


@dataclass(frozen=True, slots=True)
class Takeover:
    """A server that moves to another port. Its systemd unit runs it, or LM Studio, or else the proxy."""

    kind: str
    address: str  # where it listened, HOST:PORT
    port: int  # of 127.0.0.1, where it moves to
    flags: tuple[str, ...]  # of the proxy
    service: bool  # the proxy runs as the user's service
    service_before: str | None = None  # what the file of that held; None: there was none
    unit: str = ""
    command: str = ""  # starts it at its own address, if the proxy runs it
    app: tuple[str, ...] = ()  # the desktop app that started it
    step: str = ""  # what was begun last

    @property
    def url(self) -> str:
        """Where this machine reaches the server's own address."""
        host, _, port = self.address.rpartition(":")
        return local_url(host.strip("[]"), int(port))


def journal_path() -> Path:
    """Return the file of the takeover that is in place, or was begun."""
    return state_dir() / "takeover.json"


@contextmanager
def held() -> Iterator[None]:
    """Let no other takeover or undo begin until the block ends; ClairvoyantError if one is running."""
    path = state_dir() / "takeover.lock"
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with path.open("a") as file:
        if not lock_now(file.fileno()):
            raise ClairvoyantError("another takeover or undo is running; wait until it ends, then try again")
        yield


def write(record: Takeover, step: str) -> None:
    """Record that a step begins. The file is replaced at once: a crash leaves the old one or the new one."""
    path = journal_path()
    fresh = path.with_suffix(".new")
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    remove(fresh)
    with os.fdopen(create_for_owner(fresh), "wb") as file:
        file.write(msgspec.json.encode(replace(record, step=step)))
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)


def read() -> Takeover | None:
    """Return the takeover that is in place, or was begun; ClairvoyantError if its file is damaged."""
    path = journal_path()
    try:
        return msgspec.json.decode(path.read_bytes(), type=Takeover)
    except FileNotFoundError:
        return None
    except (msgspec.DecodeError, ValueError) as error:
        raise ClairvoyantError(f"cannot read {path}: {error}; remove it once the server is back") from None
