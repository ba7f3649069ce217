"""The project's own figures: `clairvoyant bench` and the proxy's cost, reports into docs/bench.

    python tests/perf/perf_bench.py [--only PART] [--quick] [--out DIR] [--litellm COMMAND]

Parts: burst-replay, poisson-replay and gain-over-load in virtual time; burst-replay-real-time; burst-llamacpp
and poisson-llamacpp on a real llama.cpp server with one slot, before a model of random weights; proxy-cost.
Nothing is downloaded. All parts take an hour or two; each leaves its finished cells in DIR/*.jsonl.part and
goes on from there.
"""

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.fakes.llamacpp_server import LlamaServer  # noqa: E402
from tests.fakes.tiny_gguf import write_tiny_model  # noqa: E402

KNOWN = ("--arm", "fcfs", "--arm", "sjf@classes:0", "--arm", "bounded@classes:36", "--arm", "bounded:36")
VIRTUAL = ("--backend", "replay", "--virtual-time")
LOADS = ("0.5", "0.74", "0.85")

PARTS: dict[str, tuple[str, ...]] = {
    "burst-replay": ("burst", *VIRTUAL, "--runs", "3", "--arm", "direct", *KNOWN, "--arm", "oracle"),
    "poisson-replay": (
        *("poisson", *VIRTUAL, "--runs", "3", "--arm", "fcfs", "--arm", "bounded@classes:36"),
        *("--arm", "bounded:36", "--arm", "sjf@classes:10.5"),
    ),
    "gain-over-load": (
        *("poisson", *VIRTUAL, "--runs", "2", "--arm", "fcfs", "--arm", "bounded:36", "--arm", "sjf:10.5"),
        *(word for rho in LOADS for word in ("--rho", rho)),
    ),
    "burst-replay-real-time": (
        *("burst", "--backend", "replay", "--speedup", "20", "--runs", "4"),
        *("--arm", "direct", *KNOWN, "--arm", "oracle"),
    ),
    "burst-llamacpp": (
        *("burst", "--set-lengths", "--runs", "2", "--arm", "direct", "--arm", "fcfs", "--arm", "bounded"),
        *("--arm", "bounded@classes", "--arm", "sjf@classes:0", "--arm", "oracle"),
    ),
    "poisson-llamacpp": (
        *("poisson", "--set-lengths", "--runs", "2", "--requests", "100", "--arm", "fcfs"),
        *("--arm", "bounded:4", "--arm", "bounded@classes:4", "--arm", "oracle"),
    ),
}
PORT = 8137
ON_LLAMACPP = {"burst-llamacpp", "poisson-llamacpp"}


def bench(part: str, words: tuple[str, ...], out: Path, *, quick: bool) -> None:
    command = ["bench", *words, "--report", f"{part}.md", "--resume", f"{part}.jsonl.part"]
    if quick:
        command.append("--quick")
    print(f"{part}: clairvoyant {' '.join(command)}", flush=True)
    subprocess.run(
        [sys.executable, "-c", "from clairvoyant_cli.main import main; main()", *command],
        cwd=out,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "HOME": str(out)},
        check=True,
    )
    (out / f"{part}.jsonl.part").unlink()


def proxy_cost(out: Path, litellm: str | None) -> None:
    compared = ["--nginx", *(["--litellm", litellm] if litellm else [])]
    script = ROOT / "tests/perf/perf_proxy.py"
    done = subprocess.run(
        [sys.executable, str(script), *compared], capture_output=True, text=True, check=True
    )
    with_litellm = " --litellm litellm" if litellm else ""
    said = f"$ python tests/perf/perf_proxy.py --nginx{with_litellm}\n{done.stdout}"
    (out / "proxy-cost.md").write_text(f"# What the proxy costs\n\n```text\n{said}```\n")


@contextmanager
def llamacpp(home: Path) -> Iterator[str]:
    """A real server with one slot, always on the same port: it stands in the command that is resumed."""
    server = LlamaServer(write_tiny_model(home / "tiny.gguf"), port=PORT)
    try:
        server.start()
        yield server.base_url
    finally:
        server.stop()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", action="append", choices=[*PARTS, "proxy-cost"])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", type=Path, default=ROOT / "docs/bench")
    parser.add_argument("--litellm", metavar="COMMAND", help="path of `litellm`, to compare with it")
    args = parser.parse_args()
    out: Path = args.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    wanted = args.only or [*PARTS, "proxy-cost"]
    for part in (part for part in PARTS if part in wanted and part not in ON_LLAMACPP):
        bench(part, PARTS[part], out, quick=args.quick)
    if ON_LLAMACPP & set(wanted):
        with tempfile.TemporaryDirectory() as home, llamacpp(Path(home)) as url:
            for part in (part for part in PARTS if part in wanted and part in ON_LLAMACPP):
                words = (PARTS[part][0], "--backend", url, *PARTS[part][1:])
                bench(part, words, out, quick=args.quick)
    if "proxy-cost" in wanted:
        proxy_cost(out, args.litellm)


if __name__ == "__main__":
    main()
