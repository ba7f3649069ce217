"""Chaos before a pool: thousands of requests, servers killed and started at random, one removed, one added.

    python tests/perf/perf_pool_chaos.py [--requests N] [--seed S]

In virtual time, one process: see `tests/fakes/pool_chaos.py`. Each request ends once; no server is asked for
one twice; what was not answered whole was under way on a server that died. Exits with 1 if anything of this
does not hold.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from clairvoyant_lab.virtual_time import run_virtually  # noqa: E402

from tests.fakes.chaos_run import faultless, wanted  # noqa: E402
from tests.fakes.pool_chaos import pool_chaos  # noqa: E402


def main() -> None:
    args = wanted(__doc__, 10_000)
    sys.exit(0 if run_virtually(faultless(pool_chaos(args.seed), args.requests, "pool")) else 1)


if __name__ == "__main__":
    main()
