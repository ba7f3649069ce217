"""Chaos with cuts: thousands of requests, most of them cut or cutting, leavers, dead servers, an operator.

    python tests/perf/perf_cut_chaos.py [--requests N] [--seed S]

In virtual time, one process: see `tests/fakes/cut_chaos.py`. Each request ends once, no slot leaks, every
text is what the server would have written uncut, or its beginning. Exits with 1 if anything of this does not
hold.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from clairvoyant_lab.virtual_time import run_virtually  # noqa: E402

from tests.fakes.chaos_run import faultless, wanted  # noqa: E402
from tests.fakes.cut_chaos import chaos  # noqa: E402

SCENES = {
    "srpt, one slot": (("srpt", "srpt", "srpt", "bounded", "fcfs"), 1, 1),
    "srpt, two workers": (("srpt", "srpt", "srpt", "bounded", "fcfs"), 2, 1),
    "srpt, two slots": (("srpt", "srpt", "srpt", "bounded"), 1, 2),
    "turns, two workers": (("rr", "rr-sjf", "rr", "srpt"), 2, 1),
}


def main() -> None:
    args = wanted(__doc__, 5000)
    held = [
        run_virtually(
            faultless(
                chaos(policies, workers=workers, slots=slots, seed=args.seed),
                args.requests // len(SCENES),
                name,
            )
        )
        for name, (policies, workers, slots) in SCENES.items()
    ]
    sys.exit(0 if all(held) else 1)


if __name__ == "__main__":
    main()
