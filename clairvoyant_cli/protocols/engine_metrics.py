"""Reads an engine's queue from its Prometheus metrics (text format 0.0.4)."""

import re
from dataclasses import dataclass
from math import isfinite

from clairvoyant_cli.protocols.probes import ANSWER_BYTES
from clairvoyant_cli.state.snapshot import EngineState

_LINE = re.compile(rb"^([a-zA-Z_:][a-zA-Z0-9_:]*)(\{[^\n]*\})? ([^ \n]+)", re.MULTILINE)
_OF_A_PART = re.compile(rb'priority="[^"]')
"""SGLang counts its queue as a whole, and by priority: that would count requests twice."""

MOST = 1e15


@dataclass(frozen=True, slots=True)
class EngineMetrics:
    """Metric names of an engine's queue; `preemptions` is a counter."""

    running: str
    waiting: str
    preemptions: str
    kv_used: str


def engine_state(body: bytes | None, metrics: EngineMetrics) -> EngineState | None:
    """Return the state of an engine; None if there is none. Counts of several engines behind one address add
    up; of their caches the fullest counts.
    """
    if body is None or len(body) > ANSWER_BYTES:
        return None
    wanted = (metrics.running, metrics.waiting, metrics.preemptions, metrics.kv_used)
    found: dict[str, list[float]] = {name: [] for name in wanted}
    for name, labels, text in _LINE.findall(body):
        values = found.get(name.decode("ascii"))
        value = None if values is None or _OF_A_PART.search(labels) else _number(text)
        if values is not None and value is not None:
            values.append(value)
    if not any(found.values()):
        return None
    running, waiting, preemptions, kv_used = found.values()
    used = min(1.0, max(kv_used)) if kv_used else None
    sums = [int(sum(values)) if values else None for values in (running, waiting, preemptions)]
    return EngineState(sums[0], sums[1], sums[2], used)


def _number(text: bytes) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if isfinite(value) and 0.0 <= value <= MOST else None
