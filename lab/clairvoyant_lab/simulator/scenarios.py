"""Experiments of Clairvoyant (arXiv:2606.07248): starvation timeout (Table 9), burst (Table 8).

The paper's figures are those that its prose states: the stored text has no table cells.
"""

from collections.abc import Callable
from dataclasses import replace

from clairvoyant_cli.scheduler.policy import DEFAULT_POLICY
from clairvoyant_lab.report import Report, figures, paragraphs
from clairvoyant_lab.simulator.comparison import (
    BY_CLASS,
    Draw,
    Options,
    absolute,
    classes,
    compare,
    relative,
    variant,
)
from clairvoyant_lab.simulator.workload import TwoNormals, burst, poisson

SERVICE = TwoNormals()
LOAD = 0.12 * SERVICE.mean_s
TAU_S = 10.5
DEFAULT_TAU_S = 36.0
TAU_MULTIPLES = (0.5, 1.0, 2.0, 3.0, 5.0, 10.0, 20.0)

SETTING = (
    "one slot, Poisson arrivals, service N(3.5, 0.8) s short and N(8.9, 2.0) s long, half and half; "
    "sojourn times; "
)

TABLE9_S = {
    ("fcfs", "short P50"): 9.63,
    ("fcfs", "long P95"): 51.8,
    ("sjf no tau", "short P50"): 5.97,
    ("sjf no tau", "long P95"): 79.3,
}
TABLE9_CHANGES = {
    ("sjf tau 3 x 3.5 s", "short P50"): -0.17,
    ("sjf tau 3 x 3.5 s", "long P95"): 0.17,
    ("sjf no tau", "short P50"): -0.38,
    ("sjf no tau", "long P95"): 0.53,
}
TABLE9_NOTES = paragraphs(
    f"""
    The paper's FCFS figures are derived from its text: 5.97 s is 38 % below, 79.3 s 53 % above.

    Short P50 agrees, with and without tau. Long P95 does not. The guard as worded in section 3.4, checked
    before every dispatch, promotes in arrival order once the backlog exceeds tau: at P95 it neither costs
    long requests nor helps short ones. The paper's +17 % needs a guard that fires less often. Without tau we
    measure about +24 %; the paper's +53 % is outside our interval.

    {DEFAULT_POLICY} runs with tau = {DEFAULT_TAU_S:g} s, ten short service times. @85% and @76% are class
    accuracies; nothing is known within a class. Pure shortest-first (no tau) bounds the gain of any order.
    """
)
TABLE8 = {
    ("sjf no tau", "short P50"): -0.70,
    ("sjf no tau", "short P95"): -0.70,
    ("sjf no tau", "long P50"): 0.24,
}
TABLE8_NOTES = paragraphs(
    """
    The paper: short P50 -70 % (Gemma3:4b) and -76 % (Llama3.1:8b), P95 and P99 -68 to -73 %, long +21 to +27
    %. Its absolute FCFS P50 of 159 to 230 s does not follow from its service times (100 requests of 6.2 s on
    average give 310 s), so changes are compared.

    The paper also states that tau changes the burst by less than 1 %. The guard as worded in section 3.4
    turns the burst into arrival order as soon as tau has passed. The default's guard does not: it compares
    waiting times, and in a burst all requests have waited equally long.
    """
)


def steady(load: float, requests: int) -> Draw:
    """Return the paper's steady state (section 5.5) at a utilisation."""
    return lambda rng: poisson(rng, requests, load / SERVICE.mean_s, SERVICE)


def table9(options: Options) -> Report:
    """Sweep the starvation timeout at a utilisation of 0.74, and compare other policies."""
    perfect = classes(1.0, SERVICE)
    variants = [
        variant("fcfs"),
        *(variant("sjf", m * 3.5, perfect, f"sjf tau {m:g} x 3.5 s") for m in TAU_MULTIPLES),
        variant("sjf", None, perfect, "sjf no tau"),
        variant("oracle", name="sjf on true times"),
    ]
    for accuracy in (1.0, 0.85, 0.76):
        for policy, tau_s, label in (
            ("sjf", TAU_S, "sjf"),
            ("sjf", None, "sjf no tau"),
            (DEFAULT_POLICY, DEFAULT_TAU_S, DEFAULT_POLICY),
        ):
            variants.append(variant(policy, tau_s, classes(accuracy, SERVICE), f"{label} @{accuracy:.0%}"))
    samples = compare(variants, steady(LOAD, options.requests), BY_CLASS, options)
    return Report(
        "",
        SETTING + options.size,
        (
            figures("Sojourn", absolute(samples, paper=TABLE9_S)),
            figures("Change against fcfs", relative(samples, TABLE9_CHANGES)),
        ),
        TABLE9_NOTES,
    )


def table8(options: Options) -> Report:
    """Send 50 short and 50 long requests within 50 ms."""
    half = options.requests // 2
    perfect = classes(1.0, SERVICE)
    variants = [
        variant("fcfs"),
        variant("sjf", None, perfect, "sjf no tau"),
        variant("sjf", TAU_S, perfect, "sjf tau 10.5 s"),
        variant(DEFAULT_POLICY, DEFAULT_TAU_S, perfect),
        variant(DEFAULT_POLICY, DEFAULT_TAU_S, classes(0.85, SERVICE), f"{DEFAULT_POLICY} @85%"),
        variant(DEFAULT_POLICY, DEFAULT_TAU_S, classes(0.76, SERVICE), f"{DEFAULT_POLICY} @76%"),
    ]
    samples = compare(variants, lambda rng: burst(rng, (half, half), SERVICE, 0.05), BY_CLASS, options)
    return Report(
        "",
        f"one slot, {half} short and {half} long requests within 50 ms, service as in section 5.5; "
        f"mean of {options.seeds} seeds, 95 % confidence",
        (figures("Sojourn", absolute(samples)), figures("Change against fcfs", relative(samples, TABLE8))),
        TABLE8_NOTES,
    )


SCENARIOS: dict[str, tuple[Callable[[Options], Report], int, int]] = {
    "clairvoyant-table9": (table9, 20, 2000),
    "clairvoyant-table8": (table8, 20, 100),
}
"""Each experiment with its own number of seeds and of requests."""


def run_scenario(name: str, options: Options) -> Report:
    run, seeds, requests = SCENARIOS[name]
    sized = replace(options, seeds=options.seeds or seeds, requests=options.requests or requests)
    return replace(run(sized), name=name)
