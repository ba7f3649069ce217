"""Chaos with cuts: thousands of requests, most of them cut or cutting, leavers, dead servers, an operator.

    python tests/perf/perf_cut_chaos.py [--requests N] [--seed S]

In virtual time, one process: see `tests/fakes/cut_chaos.py`. Each request ends once, no slot leaks, every
text is what the server would have written uncut, or its beginning. Exits with 1 if anything of this does not
hold.
"""

import argparse
import asyncio
import logging
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from clairvoyant_cli.bench.virtual import run_virtually  # noqa: E402
from tests.fakes.cut_chaos import chaos  # noqa: E402

SCENES = {
    "srpt, one slot": (("srpt", "srpt", "srpt", "bounded", "fcfs"), 1, 1),
    "srpt, two workers": (("srpt", "srpt", "srpt", "bounded", "fcfs"), 2, 1),
    "srpt, two slots": (("srpt", "srpt", "srpt", "bounded"), 1, 2),
    "turns, two workers": (("rr", "rr-sjf", "rr", "srpt"), 2, 1),
}


async def scene(name: str, requests: int, seed: int) -> bool:
    policies, workers, slots = SCENES[name]
    begun_s = time.monotonic()
    async with chaos(policies, workers=workers, slots=slots, seed=seed) as it:
        await it.run(requests)
        faults = it.faults()
    virtual_s, took_s = asyncio.get_running_loop().time(), time.monotonic() - begun_s
    print(f"{name}: {virtual_s:.0f} s in {took_s:.0f} s\n  " + it.told.replace("\n", "\n  "))
    for fault in faults[:20]:
        print("  FAIL " + fault[:500])
    return not faults


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=5000, help="of all scenes together")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    logging.getLogger("clairvoyant").setLevel(logging.ERROR)
    held = [run_virtually(scene(name, args.requests // len(SCENES), args.seed)) for name in SCENES]
    sys.exit(0 if all(held) else 1)


if __name__ == "__main__":
    main()
