"""The papers' experiments, by name, each with its own number of seeds and requests."""

from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clairvoyant_cli.research.report import Report
    from clairvoyant_cli.research.simulator.comparison import Options

# name: module, function, seeds, requests
SCENARIOS = {
    "clairvoyant-table9": ("clairvoyant", "table9", 20, 2000),
    "clairvoyant-figure3": ("clairvoyant", "figure3", 20, 2000),
    "clairvoyant-table8": ("clairvoyant", "table8", 20, 100),
}


def run_scenario(name: str, options: "Options") -> "Report":
    """Run a scenario and return its report."""
    module, function, seeds, requests = SCENARIOS[name]
    sized = replace(options, seeds=options.seeds or seeds, requests=options.requests or requests)
    report: Report = getattr(import_module(f"{__name__}.{module}"), function)(sized)
    return replace(report, name=name)
