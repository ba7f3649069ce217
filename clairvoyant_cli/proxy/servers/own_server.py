"""Runs the LLM server as a child of the daemon (`serve --start`)."""

import asyncio
import logging
import os
import shutil
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Thread
from typing import IO

import psutil

from clairvoyant_cli.config import ServeConfig, command_of
from clairvoyant_cli.errors import ClairvoyantError, ExitCode
from clairvoyant_cli.proxy.tasks import repeat
from clairvoyant_cli.system import background, create_for_owner, group_guard, kill_group

log = logging.getLogger("clairvoyant")

# Pause before a restart, doubled each time, until the server ran for longer than the longest one.
FIRST_PAUSE_S, MAX_PAUSE_S = 1.0, 60.0
LOOK_EVERY_S = 0.1
STOP_S = 10.0  # Ollama and llama.cpp end at once; their runners may have to free GPU memory
MAX_OUTPUT_BYTES, PIECE_BYTES = 5 << 20, 64 << 10
# Its argv[0]: when Ollama's desktop app cannot listen, it stops all processes that were started as `ollama
# serve` (app/server/server.go, reapServers).
OLLAMA = "clairvoyant-ollama"


@asynccontextmanager
async def own_server(config: ServeConfig) -> AsyncIterator["OwnServer | None"]:
    """Stop the server of `config.start` when the block ends; None if there is none."""
    if config.start is None:
        yield None
        return
    program, arguments, variables = program_of(config.start)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("CLAIRVOYANT_")}
    output = None if config.log_file is None else Path(f"{config.log_file}.server")
    server = OwnServer(program, arguments, kept | variables, variables.get("PWD"), output)
    server.start()
    try:
        yield server
    finally:
        await server.stop()


def program_of(start: str) -> tuple[str, list[str], dict[str, str]]:
    """Return a command's program, arguments and variables; ClairvoyantError if there is no such program."""
    variables, (named, *arguments) = command_of(start)
    folder = variables.get("PWD", "")
    if folder and not Path(folder).is_dir():
        raise ClairvoyantError(f"cannot start {named} in {folder}: no such folder", ExitCode.USAGE)
    is_path = Path(named).name != named
    place = str(Path(folder, named).absolute()) if is_path else named
    program = shutil.which(place, path=variables.get("PATH"))
    if program is None:
        raise ClairvoyantError(f"cannot start {named}: not found; give its path", ExitCode.USAGE)
    return program, arguments, variables


@dataclass
class OwnServer:
    """A server that runs as a child. `output` is a file for what it prints, emptied at each start."""

    program: str
    arguments: list[str]
    environment: dict[str, str]
    folder: str | None
    output: Path | None
    _process: "subprocess.Popen[bytes]" = field(init=False)
    _guard: int | None = None
    _pause_s: float = field(default_factory=lambda: FIRST_PAUSE_S)  # before the next restart

    def start(self) -> None:
        """Start it; ClairvoyantError if the system refuses."""
        printed = None if self.output is None else subprocess.PIPE
        try:
            if self.output is not None:
                _begin_file(self.output).close()
            self._process = subprocess.Popen(
                [OLLAMA if Path(self.program).stem == "ollama" else self.program, *self.arguments],
                executable=self.program,
                env=self.environment,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=None if printed is None else subprocess.STDOUT,
                **background(),
            )
        except OSError as error:
            raise ClairvoyantError(f"cannot start {self.program}: {error.strerror or error}") from None
        self._guard = group_guard(self._process.pid)
        if self._process.stdout is not None and self.output is not None:
            keep = partial(keep_output, self._process.stdout, self.output)
            Thread(target=keep, name="server output", daemon=True).start()
        log.info("started %s (pid %d)", self.program, self._process.pid)

    async def run(self) -> None:
        await repeat(f"restarting {self.program}", self._restart_once_ended)

    async def _restart_once_ended(self) -> None:
        begun_s = time.monotonic()
        code = await self._ended()
        if time.monotonic() - begun_s > MAX_PAUSE_S:
            self._pause_s = FIRST_PAUSE_S
        pause_s, self._pause_s = self._pause_s, min(2 * self._pause_s, MAX_PAUSE_S)
        log.warning("%s ended with exit code %s; restarting it in %g s", self.program, code, pause_s)
        await asyncio.sleep(pause_s)
        with suppress(ClairvoyantError):  # it may be replaced by another version just now
            self.start()

    async def stop(self) -> None:
        """End it and the processes that it started."""
        family: list[psutil.Process] = []
        with suppress(psutil.Error):
            family = psutil.Process(self._process.pid).children(recursive=True)
        self._process.terminate()
        with suppress(TimeoutError):
            async with asyncio.timeout(STOP_S):
                await self._ended()
        self._process.kill()
        for each in family:
            with suppress(psutil.Error):
                each.kill()
        await self._ended()

    def _dismiss_guard(self) -> None:
        guard, self._guard = self._guard, None
        if guard is not None:
            with suppress(OSError):  # it was killed
                os.write(guard, b"\n")
            os.close(guard)

    async def _ended(self) -> int:
        while self._process.returncode is None:  # Popen has no event
            if self._process.poll() is None:
                await asyncio.sleep(LOOK_EVERY_S)
            else:
                self._dismiss_guard()
                kill_group(self._process.pid)  # the runners of a server that crashed keep the GPU's memory
        return self._process.returncode


def keep_output(printed: IO[bytes], path: Path) -> None:
    """Write what a server prints to a file, and the latest part to a new one when that is long.

    The output is read to its end in any case: a server whose pipe is full would stop.
    """
    file: IO[bytes] | None = None
    with printed:
        while piece := os.read(printed.fileno(), PIECE_BYTES):
            try:
                if file is None:
                    file = _begin_file(path)
                elif file.tell() > MAX_OUTPUT_BYTES:
                    file.close()
                    path.replace(path.with_name(f"{path.name}.1"))
                    file = _begin_file(path)
                file.write(piece)
            except (OSError, ValueError):
                file = None  # a full disk, or a file that is open elsewhere (Windows)
    if file is not None:
        file.close()


def _begin_file(path: Path) -> IO[bytes]:
    """Open an empty file that only its owner can read: it may hold prompts."""
    with suppress(FileExistsError):
        os.close(create_for_owner(path))
    return path.open("wb", buffering=0)
