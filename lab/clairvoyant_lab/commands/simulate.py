"""`clairvoyant simulate`: the serving scheduler in virtual time, on the papers' workloads or your own."""

import json
import sys
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from clairvoyant_cli.commands.options import json_option, option_with_default
from clairvoyant_cli.config import MAX_SLOTS
from clairvoyant_cli.errors import InputError
from clairvoyant_cli.scheduler.policy import DEFAULT_POLICY
from clairvoyant_cli.settings import did_you_mean
from clairvoyant_lab.simulator.policies import SIMULATED_POLICIES

if TYPE_CHECKING:
    from clairvoyant_lab.report import Report
    from clairvoyant_lab.simulator.comparison import Draw, Forecaster, Options
    from clairvoyant_lab.simulator.traces import History

SCENARIOS = ("clairvoyant-table9", "clairvoyant-table8")
SEEDS = 10
REQUESTS = 2000
BURST_SPREAD_S = 0.05

TAU_PER_SHORT_SERVICE = 10.0
"""Tau in mean service times of a short request, where no sojourn times are known. At a utilisation of 0.74
that is three to four mean short sojourns; the paper's factor of 3 would cost a third of the gain at P50."""

WORKLOAD_HELP = (
    "Poisson arrivals of two classes or of log-normal answers, a burst of two classes, or a FILE: a history, "
    "an Azure or a Mooncake trace."
)
PREDICTOR_HELP = (
    "What the scheduler knows: oracle, class:ACCURACY, error:SIGMA (of the log of a log-normal length), or "
    "recorded (the FILE's own predictions)."
)


class MeanAndSpread(click.ParamType[tuple[float, float]]):
    """Two numbers, MEAN,SPREAD."""

    name = "MEAN,SPREAD"

    def convert(
        self, value: str, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[float, float]:
        try:
            mean, spread = (float(part) for part in value.split(","))
        except ValueError:
            self.fail(f"{value!r} is not MEAN,SPREAD, such as 3.5,0.8", param, ctx)
        if mean <= 0.0 or spread < 0.0:
            self.fail("the mean must be positive and the spread not negative", param, ctx)
        return mean, spread


@dataclass(frozen=True, slots=True)
class Mix:
    """A workload, its predictions and its backends, as the options describe them."""

    workload: str
    policies: tuple[str, ...]
    tau: float | None
    predictor: str
    load: float
    short_s: tuple[float, float]
    long_s: tuple[float, float]
    long_share: float
    slots: int
    workers: int
    prefill_rate: float
    decode_rate: float
    speed_up: float
    preempt: float | None


POSITIVE = click.FloatRange(min=0, min_open=True)
COUNT = click.IntRange(1, MAX_SLOTS)
SECONDS = MeanAndSpread()


@click.command(name="simulate")
@click.option("--scenario", type=click.Choice(SCENARIOS), help="Reproduce an experiment.")
@click.option(
    "--workload",
    metavar="poisson|lognormal|burst|FILE",
    default="poisson",
    show_default=True,
    help=WORKLOAD_HELP,
)
@click.option("--policy", "policies", multiple=True, help="A policy to compare with fcfs; repeatable.")
@click.option("--tau", type=click.FloatRange(min=0), metavar="SECONDS", help="Starvation timeout; 0: none.")
@click.option("--predictor", default="class:0.85", show_default=True, metavar="KIND", help=PREDICTOR_HELP)
@option_with_default("--load", POSITIVE, 0.74, "Utilisation per slot of Poisson arrivals.")
@option_with_default(
    "--short", SECONDS, "3.5,0.8", "Short service times: mean and spread in seconds.", "short_s"
)
@option_with_default(
    "--long", SECONDS, "8.9,2.0", "Long service times: mean and spread in seconds.", "long_s"
)
@option_with_default("--long-share", click.FloatRange(0, 1), 0.5, "Share of requests that are long.")
@option_with_default("--slots", COUNT, 1, "Slots per backend.")
@option_with_default("--workers", COUNT, 1, "Backends.")
@option_with_default(
    "--prefill-rate", POSITIVE, 1000.0, "Prompt tokens per second, for a FILE without service_s."
)
@option_with_default(
    "--decode-rate", POSITIVE, 40.0, "Answer tokens per second, for a FILE without service_s."
)
@option_with_default("--speed-up", POSITIVE, 1.0, "Speed up a FILE's arrivals.")
@click.option(
    "--preempt",
    type=click.FloatRange(0),
    metavar="SECONDS",
    help="The cost of resuming a cut answer. Default: the backend cannot cut answers.",
)
@click.option("--seeds", type=click.IntRange(min=1), help="Independent runs. More give narrower intervals.")
@click.option("--requests", type=click.IntRange(min=2), help="Requests per run.")
@json_option("Print JSON.")
def command(scenario: str | None, seeds: int | None, requests: int | None, as_json: bool, **mix: Any) -> None:
    """Run the serving scheduler in virtual time and compare policies.

    With --scenario, reproduce a paper's experiment; the paper's figures are in brackets. Otherwise, use a
    generated workload or a FILE of recorded requests (CSV or JSON lines, also gzipped), such as
    `clairvoyant history --trace` prints.
    """
    from clairvoyant_cli.commands.console import PlainConsole
    from clairvoyant_lab.report import print_report, to_json
    from clairvoyant_lab.simulator.comparison import Options
    from clairvoyant_lab.simulator.scenarios import run_scenario

    given = click.get_current_context()
    for name in mix if scenario is not None else ():
        if given.get_parameter_source(name) is not ParameterSource.DEFAULT:
            flag = next(each.opts[0] for each in given.command.params if each.name == name)
            raise click.UsageError(f"{flag} does not go with --scenario, which has its own", given)
    simulated = 0
    with PlainConsole(stderr=True, quiet=not sys.stderr.isatty()).progress() as show:

        def tick(done: int) -> None:
            nonlocal simulated
            simulated += done
            show(f"{simulated:,} requests simulated", simulated)

        options = Options(seeds or 0, requests or 0, tick)
        report = run_mix(Mix(**mix), options) if scenario is None else run_scenario(scenario, options)
    if as_json:
        click.echo(json.dumps(to_json(report), indent=2))
    else:
        print_report(report, PlainConsole())


def run_mix(mix: Mix, options: "Options") -> "Report":
    """Compare the policies and fcfs on a workload of the user's own."""
    import numpy as np

    from clairvoyant_cli.scheduler.policy import tau_from_setting
    from clairvoyant_lab.report import Report, figures
    from clairvoyant_lab.simulator import comparison
    from clairvoyant_lab.simulator.engine import Preemption
    from clairvoyant_lab.simulator.traces import mean_by_class, read_history

    for name in mix.policies:
        if name not in SIMULATED_POLICIES:
            hint = did_you_mean(name, SIMULATED_POLICIES)
            raise InputError(f"--policy {name!r} is none of {', '.join(SIMULATED_POLICIES)}{hint}")
    policies = list(dict.fromkeys(["fcfs", *(mix.policies or (DEFAULT_POLICY, "sjf"))]))
    history = None
    short_s, long_s = mix.short_s[0], mix.long_s[0]
    if mix.workload not in ("poisson", "lognormal", "burst"):
        history = read_history(
            Path(mix.workload),
            prefill_rate=mix.prefill_rate,
            decode_rate=mix.decode_rate,
            limit=options.requests or None,
        )
    nothing_random = history is not None and mix.predictor in ("oracle", "recorded")
    seeds = options.seeds or (1 if nothing_random else SEEDS)
    options = replace(options, seeds=seeds, requests=options.requests or REQUESTS)
    draw = draw_of(mix, history, options.requests)
    sample = draw(np.random.default_rng((0, 0)))
    if mix.workload not in ("poisson", "burst"):
        short_s, long_s = mean_by_class(sample)
    tau_s = tau_from_setting(mix.tau, TAU_PER_SHORT_SERVICE * short_s)
    forecaster = forecaster_of(mix, history, short_s, long_s)
    samples = comparison.compare(
        [comparison.variant(policy, tau_s, forecaster) for policy in policies],
        draw,
        comparison.figures_for(sample.kind),
        options,
        slots={f"server{number}": mix.slots for number in range(mix.workers)},
        preemption=None if mix.preempt is None else Preemption(mix.preempt),
    )
    places = mix.slots * mix.workers
    load = mix.load if mix.workload in ("poisson", "lognormal") else sample.offered_load / places
    tau = "none" if tau_s is None else f"{tau_s:.3g} s"
    return Report(
        "simulation",
        f"{len(sample)} requests, {places} slots, offered load {load:.2f} per slot,"
        f" tau {tau}; sojourn times, mean of {seeds} seeds, 95 % confidence",
        (
            figures("Sojourn", comparison.absolute(samples)),
            figures("Change against fcfs", comparison.relative(samples)),
        ),
    )


def draw_of(mix: Mix, history: "History | None", requests: int) -> "Draw":
    """Return a function that draws the workload of a seed."""
    from clairvoyant_lab.simulator.workload import LogNormal, TwoNormals, burst, poisson

    if history is not None:
        recorded = replace(history.workload, arrival_s=history.workload.arrival_s / mix.speed_up)
        return lambda rng: recorded
    slots = mix.slots * mix.workers
    if mix.workload == "lognormal":
        answers = LogNormal()
        return lambda rng: poisson(rng, requests, mix.load * slots / answers.mean_s, answers)
    service = TwoNormals(*mix.short_s, *mix.long_s, mix.long_share)
    if mix.workload == "burst":
        long = round(requests * mix.long_share)
        return lambda rng: burst(rng, (requests - long, long), service, BURST_SPREAD_S)
    rate_per_s = mix.load * slots / service.mean_s
    return lambda rng: poisson(rng, requests, rate_per_s, service)


def forecaster_of(mix: Mix, history: "History | None", short_s: float, long_s: float) -> "Forecaster":
    """Return the forecaster that `--predictor` names."""
    from clairvoyant_lab.simulator.workload import LogNormal, noisy_class, oracle, with_error

    kind, _, number = mix.predictor.partition(":")
    if kind == "oracle":
        return lambda _, workload: oracle(workload)
    if kind == "class":
        accuracy = -1.0
        with suppress(ValueError):
            accuracy = float(number or "0.85")
        if not 0.5 <= accuracy <= 1.0:
            raise InputError(f"--predictor {mix.predictor!r}: give an accuracy from 0.5 to 1")
        accuracy = min(accuracy, 1.0 - 1e-9)
        return lambda rng, workload: noisy_class(rng, workload, accuracy, short_s, long_s)
    if kind == "error" and mix.workload == "lognormal":
        error = 0.0
        with suppress(ValueError):
            error = float(number or "0.9")
        if not 0.0 < error <= 10.0:
            raise InputError(f"--predictor {mix.predictor!r}: give an error above 0, such as error:0.9")
        return lambda rng, workload: with_error(rng, workload, error, LogNormal())
    if kind == "recorded" and history is not None and history.predictions is not None:
        recorded = history.predictions
        return lambda _, __: recorded
    raise InputError(
        f"--predictor {mix.predictor!r} is neither oracle nor class:ACCURACY; error:SIGMA needs --workload"
        " lognormal, and recorded a --workload FILE with predicted_tokens"
    )
