"""`clairvoyant simulate`: the serving scheduler in virtual time, on the papers' workloads or your own."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from clairvoyant_cli.commands.options import db_option, json_option, output_file
from clairvoyant_cli.commands.time_spans import when
from clairvoyant_cli.config import MAX_SLOTS
from clairvoyant_cli.errors import ClairvoyantError, ExitCode

if TYPE_CHECKING:
    from clairvoyant_cli.commands.history_advice import Wanted
    from clairvoyant_cli.commands.workload_options import Mix
    from clairvoyant_cli.research.simulator.report import Report
    from clairvoyant_cli.research.simulator.trial import Options

# name -> module and function under clairvoyant_cli.research.simulator.scenarios
SCENARIOS = {
    "clairvoyant-table9": ("clairvoyant", "table9"),
    "clairvoyant-figure3": ("clairvoyant", "figure3"),
    "clairvoyant-table8": ("clairvoyant", "table8"),
    "rr-sjf": ("rr_sjf", "figures"),
    "pars": ("pars", "burst"),
    "semantic": ("semantic", "tables"),
    "quartz": ("quartz", "ablation"),
    "preemption": ("preemption", "frontier"),
}

BY_HAND = {"workload", "short_s", "long_s", "long_share"}
"""Options that describe a mix: without any of them, --advise looks at what was recorded."""

OF_THE_DATABASE = {"since", "client", "model", "profile", "db_file"}

WORKLOAD_HELP = "Generated arrivals, all at once, or a FILE: a history, an Azure or a Mooncake trace."
PREDICTOR_HELP = (
    "What the scheduler knows: oracle, class:ACCURACY, score:ACCURACY (knows how sure it is), recorded"
    " (the FILE's own predictions), or model (the shipped model on the FILE's prompts)."
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
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    from clairvoyant_cli.commands.console import PlainConsole

    columns = (SpinnerColumn(), TextColumn("{task.completed:,.0f} requests simulated"), TimeElapsedColumn())
    with Progress(*columns, console=PlainConsole(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda done: bar.advance(task, done)


def run_scenario(name: str, options: "Options") -> "Report":
    """Run a named scenario and return its report."""
    from importlib import import_module

    module, function = SCENARIOS[name]
    found = getattr(import_module(f"clairvoyant_cli.research.simulator.scenarios.{module}"), function)
    report: Report = found(options)
    return report


@click.command(name="simulate")
@click.option("--scenario", type=click.Choice(list(SCENARIOS)), help="An experiment: of a paper, or our own.")
@click.option(
    "--advise",
    is_flag=True,
    help="Say which policy and tau suit the recorded history, or a mix that is given, and whether any does.",
)
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
    type=click.IntRange(1, MAX_SLOTS),
    default=1,
    show_default=True,
    help="Requests a worker runs at once.",
)
@click.option("--workers", type=click.IntRange(1, MAX_SLOTS), default=1, show_default=True, help="Backends.")
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
@click.option(
    "--since",
    type=when,
    metavar="WHEN",
    help="With --advise: only what was recorded since then: 90m, 12h, 7d ago, or a date.",
)
@click.option("--client", help="With --advise: only recorded requests of this client.")
@click.option("--model", help="With --advise: only recorded requests for this model.")
@click.option("--profile", help="With --advise: this measured profile, not the one `serve` would use.")
@db_option
@click.option("--seeds", type=click.IntRange(min=1), help="Independent runs; more narrow the intervals.")
@click.option("--requests", type=click.IntRange(min=2), help="Requests a run.")
@json_option("Print JSON.")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV, one figure a line.")
@click.option("--plot", type=output_file(".svg"), help="Draw the plots, as SVG.")
def command(
    scenario: str | None,
    advise: bool,
    seeds: int | None,
    requests: int | None,
    as_json: bool,
    as_csv: bool,
    plot: Path | None,
    **rest: Any,
) -> None:
    """Run the serving scheduler in virtual time and compare policies.

    With --scenario, an experiment of one of the papers, its figures in brackets beside ours. With --advise,
    which policy and tau suit this machine, by its profile and its recorded history. Otherwise, or with
    --advise and one of --workload, --short, --long or --long-share, a workload of your own: generated, or a
    FILE of recorded requests (CSV or JSON lines, also gzipped).
    """
    from clairvoyant_cli.commands.print_report import publish
    from clairvoyant_cli.commands.workload_options import Mix, run_advice, run_study
    from clairvoyant_cli.research.simulator.trial import Options

    context = click.get_current_context()
    given = {name for name in context.params if is_given(context, name)}
    of_the_database = {name: rest.pop(name) for name in OF_THE_DATABASE}
    mix = Mix(**rest)
    recorded = advise and scenario is None and not given & BY_HAND
    if not recorded and given & OF_THE_DATABASE:
        raise ClairvoyantError(
            "--since, --client, --model, --profile and --db go with --advise, without a mix given by hand",
            ExitCode.USAGE,
        )
    with progress() as tick:
        options = Options(seeds, requests, tick)
        if scenario is not None:
            report = run_scenario(scenario, options)
        elif recorded:
            from clairvoyant_cli.commands.history_advice import run_recorded_advice

            report = run_recorded_advice(recorded_of(mix, given, **of_the_database), options)
        elif advise:
            report = run_advice(mix, options)
        else:
            report = run_study(mix, options)
    publish(report, as_json, as_csv, plot)


def is_given(context: click.Context, name: str) -> bool:
    """Say whether an option stands on the command line, rather than having its default."""
    return context.get_parameter_source(name) is ParameterSource.COMMANDLINE


def recorded_of(mix: "Mix", given: set[str], **recorded: Any) -> "Wanted":
    """Return the question to the database: of the mix, what was given overrules what was recorded."""
    from clairvoyant_cli.commands.history_advice import Wanted
    from clairvoyant_cli.commands.workload_options import forecaster_of

    return Wanted(
        mix.long_limit,
        load=mix.load if "load" in given else None,
        slots=mix.slots * mix.workers if given & {"slots", "workers"} else None,
        forecaster=partial(forecaster_of, mix, None) if "predictor" in given else None,
        **recorded,
    )
