"""Chaos before a pool: thousands of requests, servers killed and started at random, one removed, one added.

    python tests/perf/perf_pool_chaos.py [--requests N] [--seed S]

In virtual time, one process: see `tests/fakes/pool_chaos.py`. Each request ends once; no server is asked for
one twice; what was not answered whole was under way on a server that died. Exits with 1 if anything of this
does not hold.
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
from tests.fakes.pool_chaos import pool_chaos  # noqa: E402


async def scene(requests: int, seed: int) -> bool:
    begun_s = time.monotonic()
    async with pool_chaos(seed) as it:
        await it.run(requests)
        faults = it.faults()
    virtual_s, took_s = asyncio.get_running_loop().time(), time.monotonic() - begun_s
    print(f"{virtual_s:.0f} s in {took_s:.0f} s\n" + it.told)
    for fault in faults[:20]:
        print("  FAIL " + fault[:500])
    return not faults


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    logging.getLogger("clairvoyant").setLevel(logging.ERROR)
    sys.exit(0 if run_virtually(scene(args.requests, args.seed)) else 1)


if __name__ == "__main__":
    main()
