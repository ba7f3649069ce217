"""How long a million simulated requests take: python tests/perf/perf_simulator.py [POLICY ...]."""

import sys
from time import perf_counter

import numpy as np
from clairvoyant_lab.simulator.engine import SlotSimulation
from clairvoyant_lab.simulator.workload import TwoNormals, noisy_class, poisson

from clairvoyant_cli.scheduler.policy import POLICIES
from clairvoyant_cli.scheduler.queue import Scheduler

REQUESTS = 1_000_000


def main() -> None:
    """Print the seconds each policy takes."""
    rng = np.random.default_rng(0)
    workload = poisson(rng, REQUESTS, 0.12, TwoNormals())
    prediction = noisy_class(rng, workload, 0.85, 3.5, 8.9)
    for name in sys.argv[1:] or ["sjf", "bounded"]:
        before = perf_counter()
        scheduler = Scheduler(POLICIES[name], workers={"a": 1}, tau_s=36.0, capacity=REQUESTS)
        SlotSimulation(scheduler, workload, prediction).run()
        sys.stdout.write(f"{name:14s} {REQUESTS:,} requests in {perf_counter() - before:.1f} s\n")


if __name__ == "__main__":
    main()
