"""Two hundred random schedules: what `status --json` prints beside servers' journals and clients' times.

    python -m tests.perf.perf_truth [--schedules N] [--seed S]

In virtual time: pauses, outages, cuts, holds, cancellations, clients that leave, one or two servers. See
`tests/fakes/watched_schedule.py`. Exits with 1 if anything differs.
"""

import argparse
import logging
import sys
from collections.abc import Callable
from itertools import cycle, islice

from tests.tui.test_tui_truth import WITH_TROUBLE, WITHOUT_TROUBLE, check_calm, check_trouble


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--schedules", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1000)
    args = parser.parse_args()
    logging.getLogger("clairvoyant").setLevel(logging.CRITICAL)
    kinds: list[tuple[Callable[..., None], tuple[str | int, ...]]] = [
        *((check_calm, kind) for kind in WITHOUT_TROUBLE),
        *((check_trouble, kind) for kind in WITH_TROUBLE),
    ]
    failed = 0
    for number, (check, kind) in enumerate(islice(cycle(kinds), args.schedules)):
        try:
            check(*kind, args.seed + number)
        except AssertionError as error:
            failed += 1
            sys.stdout.write(f"FAIL {kind} seed {args.seed + number}: {str(error)[:500]}\n")
    sys.stdout.write(f"{args.schedules} schedules, {failed} failed\n")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
