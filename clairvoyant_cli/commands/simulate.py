"""`clairvoyant simulate`: the serving scheduler in virtual time, on the papers' workloads or your own."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from clairvoyant_cli.simulator.report import Report
    from clairvoyant_cli.simulator.trial import Options

# name -> module and function under clairvoyant_cli.simulator.scenarios
SCENARIOS = {
    "clairvoyant-table9": ("clairvoyant", "table9"),
    "clairvoyant-figure3": ("clairvoyant", "figure3"),
    "clairvoyant-table8": ("clairvoyant", "table8"),
    "rr-sjf": ("rr_sjf", "figures"),
    "pars": ("pars", "burst"),
    "semantic": ("semantic", "tables"),
    "quartz": ("quartz", "ablation"),
}

WORKLOAD_HELP = "Generated arrivals, all at once, or a FILE: a history, an Azure or a Mooncake trace."
PREDICTOR_HELP = (
    "What the scheduler is told: oracle, class:ACCURACY, score:ACCURACY (knows how sure it is), recorded"
    " (the FILE's own forecasts), or model (the shipped model on the FILE's prompts)."
)


class MeanAndSpread(click.ParamType[tuple[float, float]]):
    """Two numbers, MEAN,SPREAD."""

    name = "MEAN,SPREAD"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[float, float]:
        """Return the two numbers."""
        if isinstance(value, tuple):
            return value
        try:
            mean, spread = (float(part) for part in str(value).split(","))
        except ValueError:
            self.fail(f"{value!r} is not MEAN,SPREAD, such as 3.5,0.8", param, ctx)
        if mean <= 0.0 or spread < 0.0:
            self.fail("the mean must be positive and the spread not negative", param, ctx)
        return mean, spread


@contextmanager
def progress() -> Iterator[Callable[[int], None] | None]:
    """Show on stderr how many requests have been simulated, if anybody is there to see it."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.completed:,.0f} requests simulated"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda done: bar.advance(task, done)


def run_scenario(name: str, options: "Options") -> "Report":
    """Run a named scenario and return its report."""
    from importlib import import_module

    module, function = SCENARIOS[name]
    found = getattr(import_module(f"clairvoyant_cli.simulator.scenarios.{module}"), function)
    report: Report = found(options)
    return report


@click.command(name="simulate")
@click.option("--scenario", type=click.Choice(list(SCENARIOS)), help="An experiment of one of the papers.")
@click.option("--advise", is_flag=True, help="Say which policy and tau suit this mix, and whether any does.")
@click.option(
    "--workload", metavar="poisson|burst|FILE", default="poisson", show_default=True, help=WORKLOAD_HELP
)
@click.option("--policy", "policies", multiple=True, help="A policy to compare with fcfs; may be repeated.")
@click.option("--tau", type=click.FloatRange(min=0), metavar="SECONDS", help="Starvation timeout; 0: none.")
@click.option("--predictor", default="class:0.85", show_default=True, metavar="KIND", help=PREDICTOR_HELP)
@click.option(
    "--load",
    type=click.FloatRange(min=0, min_open=True),
    default=0.74,
    show_default=True,
    help="Utilisation per slot of a Poisson workload.",
)
@click.option(
    "--short",
    "short_s",
    type=MeanAndSpread(),
    default="3.5,0.8",
    show_default=True,
    help="Mean and spread of short service times, in seconds.",
)
@click.option(
    "--long",
    "long_s",
    type=MeanAndSpread(),
    default="8.9,2.0",
    show_default=True,
    help="Mean and spread of long service times, in seconds.",
)
@click.option(
    "--long-share",
    type=click.FloatRange(0, 1),
    default=0.5,
    show_default=True,
    help="Share of requests that are long.",
)
@click.option(
    "--slots",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Requests a worker runs at once.",
)
@click.option("--workers", type=click.IntRange(min=1), default=1, show_default=True, help="Backends.")
@click.option(
    "--prefill-rate",
    type=click.FloatRange(min=0, min_open=True),
    default=1000.0,
    show_default=True,
    help="Prompt tokens per second, for a FILE without service_s.",
)
@click.option(
    "--decode-rate",
    type=click.FloatRange(min=0, min_open=True),
    default=40.0,
    show_default=True,
    help="Answer tokens per second, for a FILE without service_s.",
)
@click.option(
    "--speed-up",
    type=click.FloatRange(min=0, min_open=True),
    default=1.0,
    show_default=True,
    help="Replay a FILE's arrivals so many times as fast.",
)
@click.option(
    "--arrivals",
    type=click.Choice(["recorded", "poisson", "burst"]),
    default="recorded",
    show_default=True,
    help="When the requests of a FILE arrive; poisson and burst draw from its service times.",
)
@click.option(
    "--models",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Models the requests ask for, at random; a worker holds one at a time.",
)
@click.option(
    "--load-time",
    type=click.FloatRange(min=0),
    default=10.0,
    show_default=True,
    help="Seconds it takes to load a model, with --models.",
)
@click.option(
    "--preempt",
    metavar="none|keep|recompute|SECONDS",
    default="none",
    show_default=True,
    help="What the backend can do, and what resuming costs it.",
)
@click.option(
    "--long-limit",
    type=click.FloatRange(min=0),
    default=0.20,
    show_default=True,
    help="With --advise: how much slower long requests may get at P95, as a fraction.",
)
@click.option("--seeds", type=click.IntRange(min=1), help="Independent runs; more narrow the intervals.")
@click.option("--requests", type=click.IntRange(min=2), help="Requests a run.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV, one figure a line.")
@click.option("--plot", type=click.Path(path_type=Path, dir_okay=False), help="Write a plot, .svg or .png.")
def command(
    scenario: str | None,
    advise: bool,
    seeds: int | None,
    requests: int | None,
    as_json: bool,
    as_csv: bool,
    plot: Path | None,
    **mix: Any,
) -> None:
    """Run the serving scheduler in virtual time and compare policies.

    With --scenario, an experiment of one of the papers, its figures in brackets beside ours. Otherwise a
    workload of your own: generated, or a FILE of recorded requests (CSV or JSON lines, also gzipped).
    """
    from clairvoyant_cli.commands.mixture import Mix, run_advice, run_study
    from clairvoyant_cli.commands.reporting import publish
    from clairvoyant_cli.simulator.trial import Options

    with progress() as tick:
        options = Options(seeds, requests, tick)
        if scenario is not None:
            report = run_scenario(scenario, options)
        elif advise:
            report = run_advice(Mix(**mix), options)
        else:
            report = run_study(Mix(**mix), options)
    publish(report, as_json, as_csv, plot)
