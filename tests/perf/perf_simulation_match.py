"""The simulator beside the bench: the same arrivals and service times, once simulated, once over sockets.

    python tests/perf/perf_simulation_match.py [--runs N] [--requests N] [--rho RHO]

Prints what the simulator says of the workload that `clairvoyant bench poisson --backend replay` sends in
virtual time with the same options, so that the two reports can be laid side by side.
"""

import argparse
import sys
from pathlib import Path
from random import Random

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from clairvoyant_cli.bench.plan import Plan, TwoNormals, poisson, without_repeats  # noqa: E402
from clairvoyant_cli.bench.prompts import load_prompts  # noqa: E402
from clairvoyant_cli.simulator import workload as simulated  # noqa: E402
from clairvoyant_cli.simulator.estimate import change_of, mean_of  # noqa: E402
from clairvoyant_cli.simulator.report import Cell, shown  # noqa: E402
from clairvoyant_cli.simulator.trial import BY_CLASS, Options, classes, compare, named  # noqa: E402
from predictor.record import LengthClass  # noqa: E402


def plan_of(run: int, requests: int, rho: float) -> Plan:
    pools = load_prompts()
    normals = TwoNormals(pools)
    draw = without_repeats(normals, pools)
    return poisson(requests, rho / normals.mean_s, draw, Random(f"0:poisson:{run}"))


def workload_of(plan: Plan) -> simulated.Workload:
    rate = TwoNormals({}).tokens_per_s
    return simulated.Workload(
        np.array([arrival.at_s for arrival in plan]),
        np.array([arrival.question.tokens / rate for arrival in plan]),
        np.array(
            [
                simulated.LONG if arrival.question.length_class is LengthClass.LONG else simulated.SHORT
                for arrival in plan
            ],
            dtype=np.int64,
        ),
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=4)
    parser.add_argument("--requests", type=int, default=250)
    parser.add_argument("--rho", type=float, default=0.74)
    args = parser.parse_args()
    perfect = classes(1.0, simulated.TwoNormals())
    variants = [
        named("fcfs"),
        named("bounded", 36.0, perfect, "bounded@classes:36"),
        named("sjf", 10.5, perfect, "sjf@classes:10.5"),
    ]
    workloads = iter([workload_of(plan_of(run, args.requests, args.rho)) for run in range(args.runs)])
    samples = compare(variants, lambda rng: next(workloads), BY_CLASS, args.runs, Options())
    for name, figures in samples.items():
        print(name)
        for figure, values in figures.items():
            change = change_of(values, samples["fcfs"][figure])
            print(
                f"  {figure:10} {shown(Cell(name, figure, mean_of(values))):16}",
                shown(Cell(name, figure, change, "%")),
                "%",
            )


if __name__ == "__main__":
    main()
