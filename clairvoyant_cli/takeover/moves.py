"""The commands that move a server and bring it back, and those that end and start one without a manager."""

import os
import shutil
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from clairvoyant_cli.errors import ClairvoyantError
from clairvoyant_cli.service.units import Action
from clairvoyant_cli.state.client import state_dir
from clairvoyant_cli.system import account, background, create_for_owner
from clairvoyant_cli.takeover.journal import Takeover

SYSTEM_UNITS = Path("/etc/systemd/system")
DROP_IN = "zz-clairvoyant.conf"
"""Drop-ins are read in the order of their names and the last value counts (systemd.unit(5)): after the
override.conf of `systemctl edit`."""

END_S = 30.0
LOOK_EVERY_S = 0.02


def preparing(record: Takeover) -> list[Action]:
    """Return the commands that give the server its other port, for its next start."""
    if not record.unit:
        return []
    folder = SYSTEM_UNITS / f"{record.unit}.d"
    text = f"[Service]\nEnvironment=OLLAMA_HOST=127.0.0.1:{record.port}\n"
    script = f"mkdir -p {folder} && printf %s '{text}' > {folder / DROP_IN}"
    return [_as_root("sh", "-c", script), _as_root("systemctl", "daemon-reload")]


def moving(record: Takeover) -> list[Action]:
    """Return the commands that move the server."""
    if record.unit:
        return [_as_root("systemctl", "restart", record.unit)]
    return _lms(record.port) if record.kind == "lmstudio" else []


def restoring(record: Takeover) -> list[Action]:
    """Return the commands that restore the server's settings; none if they are as they were."""
    file = SYSTEM_UNITS / f"{record.unit}.d" / DROP_IN
    if not record.unit or not file.exists():
        return []
    return [_as_root("rm", "-f", str(file)), _as_root("systemctl", "daemon-reload")]


def returning(record: Takeover) -> list[Action]:
    """Return the commands that start the server at its own address."""
    if record.unit:
        return moving(record)
    return _lms(int(record.address.rpartition(":")[2])) if record.kind == "lmstudio" else []


def end(processes: Sequence[psutil.Process]) -> None:
    """End the processes of a server; kill those that run on."""
    for each in processes:
        with suppress(psutil.Error):
            each.terminate()
    ends_s = time.monotonic() + END_S
    while time.monotonic() < ends_s and not all(map(_has_ended, processes)):
        time.sleep(LOOK_EVERY_S)
    for each in processes:
        with suppress(psutil.Error):
            each.kill()


def _has_ended(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return bool(process.status() == psutil.STATUS_ZOMBIE)  # its parent has yet to see its end
    return True


def start_apart(words: Sequence[str], variables: dict[str, str]) -> None:
    """Start a program that outlives this command, in the folder PWD; what it prints goes to a log."""
    log = state_dir() / "Logs" / "takeover.out"
    environment = {name: value for name, value in os.environ.items() if name != "OLLAMA_HOST"}  # our shell's
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            os.close(create_for_owner(log))  # what a server prints may hold prompts
        with log.open("ab") as output:
            subprocess.Popen(
                words,
                env=environment | variables,
                cwd=variables.get("PWD"),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                **background(),
            )
    except OSError as error:
        raise ClairvoyantError(f"cannot start {words[0]}: {error.strerror or error}") from None


def _lms(port: int) -> list[Action]:
    program = shutil.which("lms") or str(Path.home() / ".lmstudio" / "bin" / "lms")
    start = Action((program, "server", "start", "--port", str(port)))
    return [Action((program, "server", "stop"), may_fail=True), start]


def _as_root(*words: str) -> Action:
    return Action(words if account() == "0" else ("sudo", *words))
