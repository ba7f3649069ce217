"""The project's own figures: `clairvoyant bench` and the proxy's cost, reports into docs/bench.

    python -m tests.perf.perf_bench [--only PART] [--virtual] [--quick] [--out DIR] [--held-out DIR]
                                    [--litellm COMMAND]

First the parts in virtual time, which a busy machine does not disturb: burst-replay, burst-held-out (needs
--held-out), poisson-replay, gain-over-load. Then those on the wall clock, which want a quiet machine:
burst-replay-real-time; burst-llamacpp and poisson-llamacpp on a real llama.cpp server with one slot, before a
model of random weights; proxy-cost (needs nginx). `--virtual` stops before them. Nothing is downloaded. It
says how long each part took.

--held-out DIR is a folder of MANIFEST.json and *.jsonl.gz with {"prompt": text, "chars": {model: length}},
whose entries say `may_train_shipped_model`: those that say false are asked, less the prompts the others have.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

from clairvoyant_lab.training.text_lines import lines_of

from predictor.record import LengthClass
from tests.fakes.llamacpp_server import LlamaServer
from tests.fakes.tiny_gguf import write_tiny_model
from tests.perf.harness import ROOT, options

PORT = 8137
HELD_OUT = "held-out.jsonl"
KNOWN = "--arm fcfs --arm sjf@classes:0 --arm bounded@classes:36 --arm bounded:36"
VIRTUAL = "--backend replay --virtual-time"
RHOS = "--rho 0.3 --rho 0.45 --rho 0.6 --rho 0.75 --rho 0.9"
LLAMACPP = f"--backend http://127.0.0.1:{PORT} --set-lengths"
PARTS = {
    "burst-replay": f"burst {VIRTUAL} --runs 3 --arm direct {KNOWN} --arm oracle",
    "burst-held-out": f"burst {VIRTUAL} --prompts {HELD_OUT} --runs 5 --arm fcfs --arm bounded@classes:36"
    " --arm bounded:36 --arm oracle",
    "poisson-replay": f"poisson {VIRTUAL} --runs 3 --arm fcfs --arm bounded@classes:36 --arm bounded:36"
    " --arm sjf@classes:10.5",
    "gain-over-load": f"poisson {VIRTUAL} --runs 5 --requests 100 --arm fcfs {RHOS} --arm bounded:36"
    " --arm sjf:10.5",
    "burst-replay-real-time": "burst --backend replay --speedup 20 --runs 2 --arm direct"
    f" {KNOWN} --arm oracle",
    "burst-llamacpp": f"burst {LLAMACPP} --runs 1 --arm direct --arm fcfs --arm bounded"
    " --arm bounded@classes --arm oracle",
    "poisson-llamacpp": f"poisson {LLAMACPP} --runs 2 --requests 50 --arm fcfs --arm bounded:4"
    " --arm bounded@classes:4",
}
MAX_OF_A_FILE = 150
"""Held-out prompts of one class taken from one file, so that none of them is the bench."""

DOCS, METHOD = ROOT / "docs/bench", ROOT / "lab/measurements"
OF_METHOD = ("burst-replay-real-time", "poisson-llamacpp", "poisson-replay")
"""Reports that compare ways to measure."""

COST = """\
# What the proxy costs

`clairvoyant serve` as shipped, prediction included, beside the direct path and plain nginx, taking turns:
compare within a run, not between runs. With `--closing` the upstream ends the connection of every answer
unannounced, as llama.cpp does."""


def bench(part: str, out: Path, *, quick: bool) -> None:
    words = ["bench", *PARTS[part].split(), "--report", f"{part}.md", *(["--quick"] if quick else [])]
    print(f"{part}: clairvoyant {' '.join(words)}", flush=True)
    command = [sys.executable, "-m", "clairvoyant_cli", *words]
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "HOME": str(out)}
    subprocess.run(command, cwd=out, env=environment, check=True)


def proxy_cost(out: Path, litellm: str | None) -> None:
    runs = ["--requests 2000 --nginx", "--requests 1000 --nginx --closing"]
    runs += ["--requests 500 --nginx --litellm litellm"] if litellm else []
    said = [COST]
    for words in runs:
        given = [str(litellm) if word == "litellm" else word for word in words.split()]
        command = [sys.executable, "-m", "tests.perf.perf_proxy", *given]
        told = subprocess.check_output(command, cwd=ROOT, text=True)
        said.append(f"```text\n$ python -m tests.perf.perf_proxy {words}\n{told}```")
    (out / "proxy-cost.md").write_text("\n\n".join(said) + "\n")


@contextmanager
def llamacpp() -> Iterator[None]:
    """A real server with one slot, always on the same port: it stands in the command."""
    with tempfile.TemporaryDirectory() as home:
        server = LlamaServer(write_tiny_model(Path(home) / "tiny.gguf"), port=PORT)
        try:
            server.start()
            yield
        finally:
            server.stop()


def write_held_out(source: Path, target: Path) -> None:
    """Write the short and the long prompts of the files that no shipped model may be trained on.

    A prompt that also stands in one of the other files is left out. An answer's length is the median over its
    models of characters / 4, as the papers count.
    """

    def read(entry: dict[str, Any]) -> Iterator[dict[str, Any]]:
        return map(json.loads, lines_of(source / Path(entry["file"]).name))

    def plain(prompt: str) -> str:
        return " ".join(prompt.casefold().split())

    entries = json.loads((source / "MANIFEST.json").read_text())
    seen = {plain(row["prompt"]) for each in entries if each["may_train_shipped_model"] for row in read(each)}
    rng = Random(0)
    with target.open("w") as out:
        for entry in (each for each in entries if not each["may_train_shipped_model"]):
            pools: dict[LengthClass, list[str]] = {LengthClass.SHORT: [], LengthClass.LONG: []}
            for row in read(entry):
                if row.get("chars") and plain(row["prompt"]) not in seen:
                    seen.add(plain(row["prompt"]))
                    tokens = int(median(row["chars"].values())) // 4
                    line = json.dumps({"prompt": row["prompt"], "output_tokens": tokens})
                    pools.get(LengthClass.of(tokens), []).append(line)
            for rows in pools.values():
                chosen = rng.sample(rows, min(len(rows), MAX_OF_A_FILE))
                out.writelines(f"{row}\n" for row in chosen)


def run(part: str, out: Path, held_out: Path | None, litellm: str | None, *, quick: bool) -> None:
    if part == "proxy-cost":
        proxy_cost(out, litellm)
    elif part.endswith("llamacpp"):
        with llamacpp():
            bench(part, out, quick=quick)
    elif part == "burst-held-out":
        if held_out is None:
            print("burst-held-out: left out, it needs --held-out DIR", flush=True)
            return
        try:
            write_held_out(held_out.resolve(), out / HELD_OUT)
            bench(part, out, quick=quick)
        finally:
            (out / HELD_OUT).unlink(missing_ok=True)
    else:
        bench(part, out, quick=quick)


def main() -> None:
    flags = {"virtual": False, "quick": False, "out": DOCS, "held_out": Path, "litellm": str}
    given = options(__doc__, only=list[str](), **flags)
    out: Path = given.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    failed = []
    for part in given.only or [*PARTS, "proxy-cost"]:
        if given.virtual and "virtual" not in PARTS.get(part, ""):
            continue
        begun_s = time.monotonic()
        folder = METHOD if part in OF_METHOD and out == DOCS else out
        try:
            run(part, folder, given.held_out, given.litellm, quick=given.quick)
        except (subprocess.CalledProcessError, RuntimeError, OSError) as error:  # the others have their turn
            failed.append(part)
            print(f"{part}: FAILED ({error}); repeat it with --only {part}", flush=True)
        else:
            print(f"{part}: took {time.monotonic() - begun_s:.0f} s", flush=True)
    sys.exit(f"failed: {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main()
