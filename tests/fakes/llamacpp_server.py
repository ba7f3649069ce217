"""A real llama.cpp server in a process of its own, which tests can kill and start again on its port.

The process ends when its standard input does, so a test run that is interrupted, or killed, leaves none
behind. It computes on one thread: two would spin against each other on a busy machine.
"""

import argparse
import itertools
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

READY = "listening on "


@dataclass(eq=False)
class LlamaServer:
    """A llama.cpp server: `start`, `kill` (the power cut), `restart` on the same port, `stop`.

    `batch` is the number of prompt tokens computed at once; a client that leaves in the prompt phase is
    noticed between two batches.
    """

    model: Path
    slots: int = 1
    context: int = 8192
    batch: int = 256
    port: int = 0
    process: "subprocess.Popen[str] | None" = None

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> Path:
        return self.model.with_name(f"llama-{self.port}.log")

    def start(self) -> None:
        """Start the process and return when it serves; RuntimeError with its log if it does not."""
        if not self.port:
            self.port = free_port()
        numbers = (self.slots, self.context, self.batch, self.port)
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                [sys.executable, __file__, str(self.model), *map(str, numbers)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,  # Ctrl-C is for the test run; this process follows its standard input
            )
        assert self.process.stdout is not None
        if not self.process.stdout.readline().startswith(READY):
            self.kill()
            raise RuntimeError(f"the llama.cpp server did not start:\n{self.log.read_text()[-2000:]}")

    def kill(self) -> None:
        """End the process at once; connections break where they are."""
        if self.process is not None:
            self.process.kill()
            self._reap()

    def stop(self) -> None:
        """End the process in good order, or at once if it does not follow."""
        if self.process is None:
            return
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self.process.kill()
        self._reap()

    def restart(self) -> None:
        self.kill()
        self.start()

    def _reap(self) -> None:
        assert self.process is not None
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
        self.process = None


@contextmanager
def llama_server(model: Path, *, slots: int = 1, batch: int = 256) -> Iterator[LlamaServer]:
    """Run a llama.cpp server on a free port until the block ends. Each slot has a context of 8192."""
    server = LlamaServer(model, slots=slots, context=8192 * slots, batch=batch)
    try:
        server.start()
        yield server
    finally:
        server.stop()


# Below the ports of outgoing connections (from 32768 on Linux, 49152 elsewhere), so that no other test takes
# the port before its server listens. Each process starts in a block of its own: two workers do not meet.
_PORTS = itertools.count(20_000 + os.getpid() % 120 * 100)


def free_port() -> int:
    """Return a port of 127.0.0.1 on which nothing listens, another one each time."""
    for port in _PORTS:
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise AssertionError


def main() -> None:
    """Serve until standard input ends (the child's side)."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    for name in ("slots", "context", "batch", "port"):
        parser.add_argument(name, type=int)
    args = parser.parse_args()
    # llama.cpp logs where it likes: keep standard output for the one line the parent waits for.
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = args.model
    params.model_alias = ["tiny"]
    params.n_parallel = args.slots
    params.n_ctx = args.context
    params.n_batch = params.n_ubatch = args.batch
    params.port = args.port
    params.hostnames = ["127.0.0.1"]
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.ui = False
    params.offline = True
    params.fit_params = False
    params.endpoint_metrics = params.endpoint_slots = params.endpoint_props = True
    server = xllamacpp.Server(params)
    print(READY + server.listening_address, file=answer, flush=True)
    sys.stdin.buffer.read()
    os._exit(0)  # its threads may be in the middle of an answer that nobody waits for


if __name__ == "__main__":
    main()
