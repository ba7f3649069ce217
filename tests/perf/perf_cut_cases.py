"""Run N seeded cases of cut and continued answers: `python -m tests.perf.perf_cut_cases N [SEED]`.

Each is of the kind that `tests/proxy/test_cut_equals_uncut.py` runs; N are run of each dialect.
"""

import asyncio
import sys
from time import perf_counter

from tests.fakes.cut_cases import faults
from tests.fakes.dialects import DIALECTS


async def main(cases: int, seed: int) -> int:
    """Return how many went wrong."""
    wrong = 0
    for dialect in DIALECTS:
        begun = perf_counter()
        found = await faults(dialect, range(seed, seed + cases))
        wrong += len(found)
        print(f"{dialect.name}: {cases} cases, {len(found)} wrong, {perf_counter() - begun:.1f} s")
        print(*found[:3], sep="\n")
    return wrong


if __name__ == "__main__":
    cases, seed = (*map(int, sys.argv[1:]), 100_000)[:2]
    sys.exit(asyncio.run(main(cases, seed)) > 0)
