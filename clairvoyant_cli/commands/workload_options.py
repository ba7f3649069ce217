"""What the options of `simulate` say of a workload, its predictions and its backends, put together."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from clairvoyant_cli.errors import ClairvoyantError, ExitCode
from clairvoyant_cli.settings import did_you_mean

if TYPE_CHECKING:
    import numpy as np

    from clairvoyant_cli.research.simulator.advice import Arrivals
    from clairvoyant_cli.research.simulator.engine import Preemption
    from clairvoyant_cli.research.simulator.predictions import Predictions
    from clairvoyant_cli.research.simulator.report import Report
    from clairvoyant_cli.research.simulator.traces import History
    from clairvoyant_cli.research.simulator.trial import Forecaster, Options
    from clairvoyant_cli.research.simulator.workload import TwoNormals, Workload

    Draw = Callable[[np.random.Generator], Workload]


@dataclass(frozen=True, slots=True)
class Mix:
    """What the options say of a workload, its predictions and its backends."""

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
    arrivals: str
    models: int
    load_time: float
    preempt: str
    long_limit: float

    @property
    def generated(self) -> bool:
        """Whether the workload is not a file."""
        return self.workload in {"poisson", "burst"}

    @property
    def service(self) -> "TwoNormals":
        """The service times of a generated workload."""
        from clairvoyant_cli.research.simulator.workload import TwoNormals

        return TwoNormals(*self.short_s, *self.long_s, self.long_share)

    def history(self, limit: int | None) -> "History":
        """Read the file, with its prompts if a model is to see them."""
        from clairvoyant_cli.research.simulator.traces import Speed, read_history

        speed = Speed(self.prefill_rate, self.decode_rate)
        return read_history(Path(self.workload), speed, limit, prompts=self.predictor == "model")


def run_study(mix: Mix, options: "Options") -> "Report":
    """Compare policies on a workload of the user's own."""
    from clairvoyant_cli.research.simulator.study import (
        REQUESTS,
        Study,
        compare_policies,
        mean_by_class,
        with_models,
    )
    from clairvoyant_cli.scheduler.starvation import tau_from_service, tau_from_setting

    history = None if mix.generated else mix.history(options.requests)
    short_s, long_s = mix.short_s[0], mix.long_s[0]
    if history is not None:
        short_s, long_s = mean_by_class(history.workload)
    draw = arrivals_of(mix, history, options.requests or REQUESTS)
    load_s = None
    if mix.models > 1:
        draw, load_s = with_models(draw, mix.models), dict.fromkeys(range(mix.models), mix.load_time)
    study = Study(
        policies_of(mix.policies),
        tau_from_setting(mix.tau, tau_from_service(short_s)),
        forecaster_of(mix, history, short_s, long_s),
        {f"worker{number}": mix.slots for number in range(mix.workers)},
        preemption_of(mix.preempt),
        load_s,
    )
    replays = history is not None and mix.arrivals == "recorded"
    if replays and options.seeds is None and mix.predictor in {"oracle", "recorded", "model"}:
        options = replace(options, seeds=1)  # nothing is drawn: every run would be the same
    return compare_policies("simulation", draw, study, options)


def arrivals_of(mix: Mix, history: "History | None", requests: int) -> "Draw":
    """Return what draws the workload of each seed."""
    from functools import partial

    from clairvoyant_cli.research.simulator.study import replayed
    from clairvoyant_cli.research.simulator.workload import burst, poisson, resampled

    places = mix.slots * mix.workers
    if history is None:
        if mix.workload == "burst":
            long = round(requests * mix.long_share)
            return partial(burst, counts=(requests - long, long), service=mix.service, spread_s=0.05)
        rate_per_s = mix.load * places / mix.service.mean_s
        return partial(poisson, n=requests, rate_per_s=rate_per_s, service=mix.service)
    if mix.arrivals == "recorded":
        return replayed(history.workload, mix.speed_up)
    if mix.predictor in {"recorded", "model"}:
        message = f"--predictor {mix.predictor} predicts the FILE's own requests: use --arrivals recorded"
        raise ClairvoyantError(message, ExitCode.USAGE)
    service = resampled(history.workload.service_s, history.workload.kind)
    rate_per_s = mix.load * places / float(history.workload.service_s.mean())
    drawn = partial(poisson, n=requests, rate_per_s=rate_per_s, service=service)
    return drawn if mix.arrivals == "poisson" else lambda rng: drawn(rng).at_once()


def run_advice(mix: Mix, options: "Options") -> "Report":
    """Answer which policy and tau suit a mix, or a history's service times."""
    from functools import partial

    from clairvoyant_cli.research.simulator.advice import Question, advise, two_classes
    from clairvoyant_cli.research.simulator.study import mean_by_class
    from clairvoyant_cli.research.simulator.workload import drawn_again, poisson

    short_s, long_s = mix.short_s[0], mix.long_s[0]
    mean_s = mix.service.mean_s
    arrivals: Arrivals = partial(poisson, service=mix.service)
    if not mix.generated:
        recorded = mix.history(None).workload
        short_s, long_s = mean_by_class(recorded)
        mean_s = float(recorded.service_s.mean())
        arrivals = partial(drawn_again, service_s=recorded.service_s, kind=two_classes(recorded.kind))
    forecaster = forecaster_of(mix, None, short_s, long_s)
    places = mix.slots * mix.workers
    question = Question(arrivals, forecaster, short_s, mean_s, mix.load, places, mix.long_limit)
    return advise(question, options)[1]


def forecaster_of(mix: Mix, history: "History | None", short_s: float, long_s: float) -> "Forecaster":
    """Return what makes the predictions `--predictor` asks for."""
    from clairvoyant_cli.research.simulator import predictions

    kind, _, number = mix.predictor.partition(":")
    if kind == "oracle":
        return lambda _, workload: predictions.oracle(workload)
    if kind in {"class", "score"}:
        accuracy = accuracy_of(mix.predictor, number)
        make = predictions.noisy_class if kind == "class" else predictions.noisy_score
        return lambda rng, workload: make(rng, workload, accuracy, short_s, long_s)
    if kind == "recorded" and history is not None and history.predictions is not None:
        recorded = history.predictions
        return lambda _, __: recorded
    if kind == "model" and history is not None:
        predicted = model_forecast(history, mix.decode_rate)
        return lambda _, __: predicted
    raise ClairvoyantError(
        f"--predictor {mix.predictor!r} is not oracle, class:ACCURACY or score:ACCURACY; recorded and model"
        " need a --workload FILE with predicted_tokens or prompt",
        ExitCode.USAGE,
    )


def accuracy_of(predictor: str, number: str) -> float:
    """Return the accuracy a predictor's name carries."""
    try:
        accuracy = float(number or "0.85")
    except ValueError:
        accuracy = -1.0
    if not 0.5 <= accuracy <= 1.0:
        raise ClairvoyantError(f"--predictor {predictor!r}: give an accuracy from 0.5 to 1", ExitCode.USAGE)
    return min(accuracy, 1.0 - 1e-9)


def model_forecast(history: "History", decode_rate: float) -> "Predictions":
    """Return what the shipped model predicts of the history's prompts."""
    from clairvoyant_cli.commands.setup import load_predictor
    from clairvoyant_cli.research.simulator.predictions import of_model
    from predictor.record import PromptView

    views = [PromptView(prompt) for prompt in history.prompts]
    return of_model(load_predictor(None), views, 1.0 / decode_rate)


def preemption_of(text: str) -> "Preemption | None":
    """Return what `--preempt` says of the backend."""
    from clairvoyant_cli.research.simulator.engine import Preemption

    known = {"none": None, "keep": Preemption(), "recompute": Preemption(recompute=0.1)}
    if text in known:
        return known[text]
    try:
        return Preemption(fixed_s=float(text))
    except ValueError:
        message = f"--preempt {text!r} is not none, keep, recompute or a number of seconds"
        raise ClairvoyantError(message, ExitCode.USAGE) from None


def policies_of(names: tuple[str, ...]) -> list[str]:
    """Return the policies to compare; the most telling ones if none is named."""
    from clairvoyant_cli.scheduler.policy import DEFAULT_POLICY, POLICIES

    for name in names:
        if name not in POLICIES:
            hint = did_you_mean(name, POLICIES)
            raise ClairvoyantError(
                f"--policy {name!r} is none of {', '.join(POLICIES)}{hint}", ExitCode.USAGE
            )
    return list(names) or [DEFAULT_POLICY, "sjf", "sjf-rationed", "aging", "hrrn"]
