"""The project's own figures: `clairvoyant bench` and the proxy's cost, reports into docs/bench.

    python tests/perf/perf_bench.py [--only PART] [--virtual] [--quick] [--out DIR] [--held-out DIR]
                                    [--litellm COMMAND]

First the parts in virtual time, which a busy machine does not disturb: burst-replay, burst-held-out (needs
--held-out), poisson-replay, gain-over-load. Then those on the wall clock, which want a quiet machine:
burst-replay-real-time; burst-llamacpp and poisson-llamacpp on a real llama.cpp server with one slot, before a
model of random weights; proxy-cost (needs nginx). `--virtual` stops before them. Nothing is downloaded. It
says how long each part took.

--held-out DIR is a folder of MANIFEST.json and *.jsonl.gz with {"prompt": text, "chars": {model: length}},
whose entries say `may_train_shipped_model`: those that say false are asked, less the prompts the others have.
"""

import argparse
import gzip
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

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from predictor.record import LengthClass  # noqa: E402
from tests.fakes.llamacpp_server import LlamaServer  # noqa: E402
from tests.fakes.tiny_gguf import write_tiny_model  # noqa: E402

KNOWN = ("--arm", "fcfs", "--arm", "sjf@classes:0", "--arm", "bounded@classes:36", "--arm", "bounded:36")
VIRTUAL = ("--backend", "replay", "--virtual-time")
HELD_OUT = "held-out.jsonl"

PARTS: dict[str, tuple[str, ...]] = {
    "burst-replay": ("burst", *VIRTUAL, "--runs", "3", "--arm", "direct", *KNOWN, "--arm", "oracle"),
    "burst-held-out": (
        *("burst", *VIRTUAL, "--prompts", HELD_OUT, "--runs", "5", "--arm", "fcfs"),
        *("--arm", "bounded@classes:36", "--arm", "bounded:36", "--arm", "oracle"),
    ),
    "poisson-replay": (
        *("poisson", *VIRTUAL, "--runs", "3", "--arm", "fcfs", "--arm", "bounded@classes:36"),
        *("--arm", "bounded:36", "--arm", "sjf@classes:10.5"),
    ),
    "gain-over-load": (
        *("poisson", *VIRTUAL, "--runs", "5", "--requests", "100", "--arm", "fcfs"),
        *(word for rho in ("0.3", "0.45", "0.6", "0.75", "0.9") for word in ("--rho", rho)),
        *("--arm", "bounded:36", "--arm", "sjf:10.5"),
    ),
    "burst-replay-real-time": (
        *("burst", "--backend", "replay", "--speedup", "20", "--runs", "2"),
        *("--arm", "direct", *KNOWN, "--arm", "oracle"),
    ),
    "burst-llamacpp": (
        *("burst", "--set-lengths", "--runs", "1", "--arm", "direct", "--arm", "fcfs", "--arm", "bounded"),
        *("--arm", "bounded@classes", "--arm", "oracle"),
    ),
    "poisson-llamacpp": (
        *("poisson", "--set-lengths", "--runs", "2", "--requests", "50", "--arm", "fcfs"),
        *("--arm", "bounded:4", "--arm", "bounded@classes:4"),
    ),
}
PORT = 8137
ON_LLAMACPP = {"burst-llamacpp", "poisson-llamacpp"}
ON_THE_WALL_CLOCK = {"burst-replay-real-time", "burst-llamacpp", "poisson-llamacpp", "proxy-cost"}

MAX_OF_A_FILE = 150
"""Held-out prompts of one class taken from one file, so that none of them is the bench."""


def bench(part: str, words: tuple[str, ...], out: Path, *, quick: bool) -> None:
    command = ["bench", *words, "--report", f"{part}.md"]
    if quick:
        command.append("--quick")
    print(f"{part}: clairvoyant {' '.join(command)}", flush=True)
    subprocess.run(
        [sys.executable, "-c", "from clairvoyant_cli.main import main; main()", *command],
        cwd=out,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "HOME": str(out)},
        check=True,
    )


def proxy_cost(out: Path, litellm: str | None) -> None:
    script = ROOT / "tests/perf/perf_proxy.py"
    runs = [("--requests", "2000", "--nginx"), ("--requests", "1000", "--nginx", "--closing")]
    if litellm is not None:
        runs.append(("--requests", "500", "--nginx", "--litellm", litellm))
    said = [f"# What the proxy costs\n\n{WHERE}"]
    for words in runs:
        done = subprocess.run(
            [sys.executable, str(script), *words], capture_output=True, text=True, check=True
        )
        shown = " ".join("litellm" if word == litellm else word for word in words)
        said.append(f"```text\n$ python tests/perf/perf_proxy.py {shown}\n{done.stdout}```")
    (out / "proxy-cost.md").write_text("\n\n".join(said) + "\n")


WHERE = """\
`clairvoyant serve` as shipped, prediction included, beside the direct path and plain nginx, taking turns:
compare within a run, not between runs. With `--closing` the upstream ends the connection of every answer
unannounced, as llama.cpp does."""


@contextmanager
def llamacpp(home: Path) -> Iterator[str]:
    """A real server with one slot, always on the same port: it stands in the command."""
    server = LlamaServer(write_tiny_model(home / "tiny.gguf"), port=PORT)
    try:
        server.start()
        yield server.base_url
    finally:
        server.stop()


def write_held_out(source: Path, target: Path) -> None:
    """Write the short and the long prompts of the files that no shipped model may be trained on.

    A prompt that also stands in one of the other files is left out. An answer's length is the median over its
    models of characters / 4, as the papers count.
    """
    entries = json.loads((source / "MANIFEST.json").read_text())
    trained = [source / Path(entry["file"]).name for entry in entries if entry["may_train_shipped_model"]]
    seen = {plain(read["prompt"]) for file in trained for read in lines_of(file)}
    rng = Random(0)
    with target.open("w") as out:
        for entry in entries:
            if entry["may_train_shipped_model"]:
                continue
            pools: dict[LengthClass, list[str]] = {LengthClass.SHORT: [], LengthClass.LONG: []}
            for read in lines_of(source / Path(entry["file"]).name):
                if read.get("chars") and plain(read["prompt"]) not in seen:
                    seen.add(plain(read["prompt"]))
                    tokens = int(median(read["chars"].values())) // 4
                    row = json.dumps({"prompt": read["prompt"], "output_tokens": tokens})
                    pools.get(LengthClass.of(tokens), []).append(row)
            for rows in pools.values():
                chosen = rng.sample(rows, min(len(rows), MAX_OF_A_FILE))
                out.writelines(f"{row}\n" for row in chosen)


def plain(prompt: str) -> str:
    return " ".join(prompt.casefold().split())


def lines_of(file: Path) -> Iterator[dict[str, Any]]:
    with gzip.open(file, "rt") as lines:
        yield from map(json.loads, lines)


@contextmanager
def told(part: str) -> Iterator[None]:
    """Say how long a part took; a part that fails leaves the others their turn."""
    begun_s = time.monotonic()
    try:
        yield
    except (subprocess.CalledProcessError, RuntimeError, OSError) as error:
        FAILED.append(part)
        print(f"{part}: FAILED ({error}); repeat it with --only {part}", flush=True)
    else:
        print(f"{part}: took {time.monotonic() - begun_s:.0f} s", flush=True)


FAILED: list[str] = []


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", action="append", choices=[*PARTS, "proxy-cost"])
    parser.add_argument("--virtual", action="store_true", help="only what a busy machine cannot disturb")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", type=Path, default=ROOT / "docs/bench")
    parser.add_argument("--held-out", type=Path, metavar="DIR", help="folder of prompts and their manifest")
    parser.add_argument("--litellm", metavar="COMMAND", help="path of `litellm`, to compare with it")
    args = parser.parse_args()
    out: Path = args.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    wanted = list(args.only or [*PARTS, "proxy-cost"])
    if args.virtual:
        wanted = [part for part in wanted if part not in ON_THE_WALL_CLOCK]
    if args.held_out is None and "burst-held-out" in wanted:
        wanted.remove("burst-held-out")
        print("burst-held-out: left out, it needs --held-out DIR", flush=True)
    for part in (part for part in PARTS if part in wanted and part not in ON_LLAMACPP):
        with told(part):
            if part == "burst-held-out":
                write_held_out(args.held_out.resolve(), out / HELD_OUT)
            try:
                bench(part, PARTS[part], out, quick=args.quick)
            finally:
                (out / HELD_OUT).unlink(missing_ok=True)
    for part in (part for part in PARTS if part in wanted and part in ON_LLAMACPP):
        with told(part), tempfile.TemporaryDirectory() as home, llamacpp(Path(home)) as url:
            bench(part, (PARTS[part][0], "--backend", url, *PARTS[part][1:]), out, quick=args.quick)
    if "proxy-cost" in wanted:
        with told("proxy-cost"):
            proxy_cost(out, args.litellm)
    sys.exit(f"failed: {', '.join(FAILED)}" if FAILED else 0)


if __name__ == "__main__":
    main()
