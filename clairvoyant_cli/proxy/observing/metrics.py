"""Exports Prometheus metrics. Their names end like vLLM's, so that its dashboards fit after a new prefix.

Gauges are read from the state at each scrape; histograms and requests by outcome are counted as they end.
"""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from itertools import accumulate
from typing import Any

from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from clairvoyant_cli.http.heads import REASONS
from clairvoyant_cli.protocols.routes import Shape
from clairvoyant_cli.proxy.queue.ended import NOWHERE, Ended, Outcome
from clairvoyant_cli.state.snapshot import Snapshot

SECONDS = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1000)
TOKENS = (1, 4, 16, 64, 200, 400, 800, 1600, 4096, 16384)
RATIOS = (0.1, 0.25, 0.5, 0.75, 1, 1.33, 2, 4, 10)
PREDICTING = (2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 5e-3, 0.02)
MAX_MODELS = 10  # with time series of their own
MODEL_CHARS = 64
MAX_SETS, MAX_HISTOGRAM_SETS = 80, 10  # of labels that are kept apart; each has 19 series in a histogram
MAX_REASONS = 12  # why engines refused requests, which they may tell in any number of words

OPEN = {"model", "code", "reason", "gen_ai_request_model", "error_type"}
"""Labels whose values clients and servers choose. Beyond these numbers they are counted as "other"."""

CODES = {0, *HTTPStatus, *REASONS}
"""Statuses with a time series of their own: the registered ones, our own, and 0 for no answer."""

_FIRST_TOKEN_S = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)
GENAI_BUCKETS = {
    "request_duration": [0.01 * 2**doubled for doubled in range(14)],
    "time_to_first_token": _FIRST_TOKEN_S,
    "time_per_output_token": [0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5],
}
"""The metrics `gen_ai.server.*` of OpenTelemetry's GenAI conventions (semantic-conventions-genai) and their
recommended buckets, in seconds."""

GENAI_LABELS = (
    *("gen_ai.operation.name", "gen_ai.provider.name", "gen_ai.request.model"),
    *("server.address", "server.port", "error.type"),
)

_COMPLETIONS = (Shape.OLLAMA_GENERATE, Shape.COMPLETION, Shape.LLAMACPP_COMPLETION, Shape.INFILL)
_OTHERS = {Shape.EMBEDDING: "embeddings", Shape.OPAQUE: "generate_content"}
OPERATIONS = dict.fromkeys(_COMPLETIONS, "text_completion") | _OTHERS
"""What routes do; the others are `chat`."""

Labels = tuple[str, ...]

REQUEST_LABELS = ("endpoint", "code", "outcome")
DROPPED_LABELS = ("backend", "reason")

Rows = Mapping[Any, float | int | None] | float | int | None
"""A value, or one for each label or tuple of labels; None is left out."""

Told = Iterator[tuple[type[GaugeMetricFamily | CounterMetricFamily], str, str, Rows]]


def _of_state(s: Snapshot) -> Told:
    """Yield the kind, the help, the name with its labels, and the values of what a state tells."""
    gauge, counter = GaugeMetricFamily, CounterMetricFamily
    engines = {each.name: each.engine for each in s.backends if each.engine is not None}
    level = s.service_level
    classes = level.classes if level else ()
    yield gauge, "Requests that hold a slot", "requests_running", len(s.running)
    waiting = {name: getattr(s.waiting, name) for name in ("short", "medium", "long")}
    yield gauge, "Requests in the queue", "requests_waiting class", waiting
    slots = {("busy", each.name): each.busy for each in s.backends}
    slots |= {("free", each.name): max(0, each.is_there * each.slots - each.busy) for each in s.backends}
    yield gauge, "Slots of each backend", "slots state backend", slots
    up = {each.name: each.state == "up" for each in s.backends}
    yield gauge, "Whether the backend answers", "backend_up backend", up
    inside = {("running", name): engine.running for name, engine in engines.items()}
    inside |= {("waiting", name): engine.waiting for name, engine in engines.items()}
    yield gauge, "Requests inside an engine with a queue of its own", "engine_requests state backend", inside
    preemptions = {name: engine.preemptions for name, engine in engines.items()}
    yield gauge, "Answers preempted by an engine", "engine_preemptions backend", preemptions
    used = {name: engine.kv_used for name, engine in engines.items()}
    yield gauge, "Share of an engine's KV cache in use", "engine_kv_cache_usage_ratio backend", used
    yield gauge, "Starvation timeout", "tau_seconds", s.tau.tau_s or 0
    accuracy = s.predictor.ranking_accuracy or 0
    yield gauge, "Ranking accuracy on recent traffic", "prediction_rank_accuracy", accuracy
    urgent = {str(each.level): each.waiting for each in s.urgency.levels}
    yield gauge, "Requests in the queue", "urgency_waiting level", urgent
    yield gauge, "Whether recent requests miss the service level", "slo_alert", bool(level and level.alert)
    yield counter, "Dispatches forced by tau", "starvation_promotions", s.tau.firings_total
    swaps = sum(each.swaps_total for each in s.backends)
    yield counter, "Models that were loaded in another's place", "model_swaps", swaps
    yield counter, "Answers that were preempted", "cuts", s.counters.cuts
    yield counter, "Answers that went on after a preemption", "resumes", s.counters.resumes
    told = {"read": s.sessions.read_tokens, "cached": s.sessions.cached_tokens}
    yield counter, "Prompt tokens by whether the KV cache had them", "prompt_tokens source", told
    told = {"turn": s.sessions.turns, "parked": s.sessions.parked}
    yield gauge, "Sessions of agents with a turn, and parked until they get one", "sessions state", told
    yield counter, "Tokens read again to resume", "recomputed_tokens", s.counters.recomputed_tokens
    yield counter, "Answers that broke off and were asked for again", "repeats", s.counters.repeats
    yield counter, "Requests of level 0 that waited beyond the target", "urgency_late", s.urgency.late
    judged = {each.length_class: each.judged for each in classes}
    yield counter, "Requests judged by the service level", "slo_requests class", judged
    missed = {each.length_class: each.missed for each in classes}
    yield counter, "Requests whose first token came too late", "slo_violations class", missed
    refused = level.refused if level else 0
    yield counter, "Requests refused because they could not be in time", "slo_refused", refused


def bounded(known: Collection[Labels], names: Sequence[str], values: Labels, most: int = MAX_SETS) -> Labels:
    """Return the labels to count under, given the sets of labels that are `known`."""
    if values in known or len(known) < most:
        return values
    return tuple("other" if name in OPEN else value for name, value in zip(names, values, strict=True))


class Histogram:
    """Counts values by bucket (ascending upper bounds) and by labels, faster than prometheus_client's.

    Several labels are separated by blanks.
    """

    def __init__(self, text: str, buckets: Sequence[float], label: str = "") -> None:
        self.text, self.buckets, self.labels = text, buckets, label.split()
        none = [0.0] * (len(buckets) + 2)  # the counts, that of larger values, and the sum
        self.rows: dict[Labels, list[float]] = defaultdict(none.copy, {} if label else {(): none.copy()})

    def family(self, name: str) -> HistogramMetricFamily:
        """Return the counts as Prometheus takes them: each bucket with all below it."""
        family = HistogramMetricFamily(name, self.text, labels=self.labels or None)
        bounds = [*map(floatToGoString, self.buckets), "+Inf"]
        for labels, (*counts, value) in self.rows.items():
            family.add_metric(labels, [*zip(bounds, accumulate(counts), strict=True)], value)
        return family


def observe(histograms: Mapping[str, Histogram], values: Mapping[str, tuple[float, Labels]]) -> None:
    """Count values in the histograms of their names, under their labels."""
    for name, (value, labels) in values.items():
        histogram = histograms[name]
        rows = histogram.rows
        if labels not in rows:
            labels = bounded(rows, histogram.labels, labels, MAX_HISTOGRAM_SETS)
        row = rows[labels]
        row[bisect_left(histogram.buckets, value)] += 1
        row[-1] += value


class Metrics:
    """The daemon's metrics, in a registry of their own."""

    CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

    def __init__(self, refused: Mapping[str, int]) -> None:
        """`refused` counts the proxy's own error answers by kind."""
        self._refused = refused
        self._requests: Counter[Labels] = Counter()
        self._answered: Counter[Labels] = Counter()
        self._dropped: Counter[Labels] = Counter()
        self._models: set[str] = set()
        self._histograms = {
            "urgency_queue_time_seconds": Histogram("Time in the queue", SECONDS, "level"),
            "request_queue_time_seconds": Histogram("Time in the queue", SECONDS, "class"),
            "time_to_first_token_seconds": Histogram("Arrival to first byte", SECONDS, "model"),
            "e2e_request_latency_seconds": Histogram("Arrival to end", SECONDS, "model"),
            "request_sojourn_seconds": Histogram("Arrival to end, by predicted class", SECONDS, "class"),
            "request_prompt_tokens": Histogram("Prompt length, estimated", TOKENS),
            "request_generation_tokens": Histogram("Answer length", TOKENS),
            "predicted_generation_tokens": Histogram("Predicted answer length", TOKENS),
            "prediction_seconds": Histogram("Time taken to predict one request", PREDICTING),
            "prediction_error_ratio": Histogram("Predicted over real answer length", RATIOS),
        }
        labels = " ".join(GENAI_LABELS).replace(".", "_")
        self._genai = {
            name: Histogram(f"gen_ai.server.{name} of OpenTelemetry", bounds, labels)
            for name, bounds in GENAI_BUCKETS.items()
        }

    def ended(self, of: Ended) -> None:
        """Count a finished request."""
        model, tokens, ttft_s, outcome = self._model(of), of.totals.tokens or 0, of.ttft_s, of.outcome.value
        last, predicted, classed = of.last, of.prediction.expected_tokens, (of.predicted_class,)
        code = str(of.status) if of.status in CODES else "other"
        attributes = genai_attributes(of)
        error = code if attributes["error.type"].isdigit() else attributes["error.type"]
        told = tuple((attributes | {"gen_ai.request.model": model, "error.type": error}).values())
        labels = of.endpoint, code, outcome
        self._requests[bounded(self._requests, REQUEST_LABELS, labels)] += 1
        if last is not NOWHERE:
            self._answered[last.backend, outcome] += 1
        if last.dropped:
            dropped = bounded(self._dropped, DROPPED_LABELS, (last.backend, last.dropped), MAX_REASONS)
            self._dropped[dropped] += 1
        genai = {"request_duration": (of.sojourn_s, told)}
        if ttft_s is not None and of.stream and not error:
            genai["time_to_first_token"] = ttft_s, told
            if tokens > 1:
                genai["time_per_output_token"] = (of.sojourn_s - ttft_s) / (tokens - 1), told
        values: dict[str, tuple[float, Labels]] = {"prediction_seconds": (of.predicted_in_s, ())}
        if of.was_queued:
            values["request_queue_time_seconds"] = of.waited_s, classed
            values["urgency_queue_time_seconds"] = of.waited_s, (str(of.level),)
        if ttft_s is not None:
            values["time_to_first_token_seconds"] = ttft_s, (model,)
        if of.outcome is Outcome.COMPLETED:
            values["e2e_request_latency_seconds"] = of.sojourn_s, (model,)
            values["request_sojourn_seconds"] = of.sojourn_s, classed
            values["request_prompt_tokens"] = of.job_prompt_tokens, ()
            values["predicted_generation_tokens"] = predicted, ()
            if tokens:
                values["request_generation_tokens"] = tokens, ()
                values["prediction_error_ratio"] = predicted / tokens, ()
        observe(self._histograms, values)
        observe(self._genai, genai)

    def render(self, state: Snapshot) -> Iterator[bytes]:
        """Yield the exposition text, one metric at a time."""
        yield from map(generate_latest, map(_Alone, self._metrics(state)))

    def _metrics(self, state: Snapshot) -> Iterator[Metric]:
        yield from (_family(*told) for told in _of_state(state))
        text = "Scheduled requests ended"
        yield _family(CounterMetricFamily, text, f"requests {' '.join(REQUEST_LABELS)}", self._requests)
        text = "Error answers of the proxy itself"
        yield _family(CounterMetricFamily, text, "refusals reason", self._refused)
        text = "Scheduled requests that ended on a backend"
        yield _family(CounterMetricFamily, text, "backend_requests backend outcome", self._answered)
        text = "Requests that a router refused by itself"
        yield _family(CounterMetricFamily, text, f"engine_dropped {' '.join(DROPPED_LABELS)}", self._dropped)
        for name, histogram in self._histograms.items():
            yield histogram.family(f"clairvoyant_{name}")
        for name, histogram in self._genai.items():
            yield histogram.family(f"gen_ai_server_{name}_seconds")

    def _model(self, of: Ended) -> str:
        """Return the model of a request as it is counted in all metrics: of those that have answered, the
        first. Clients make up names.
        """
        name = of.model[:MODEL_CHARS]
        if name and name not in self._models:
            if len(self._models) >= MAX_MODELS or of.outcome is not Outcome.COMPLETED:
                return "other"
            self._models.add(name)
        return name


@dataclass(frozen=True, slots=True)
class _Alone(Collector):
    """One metric, as `generate_latest` takes it."""

    metric: Metric

    def collect(self) -> Iterator[Metric]:
        yield self.metric


def genai_attributes(of: Ended) -> dict[str, str]:
    """Return the attributes in `GENAI_LABELS` of an ended request, "" for one that does not apply."""
    host, port = of.last.address or ("", "")
    operation, provider = OPERATIONS.get(of.shape, "chat"), of.last.provider or "clairvoyant"
    error = "" if of.outcome is Outcome.COMPLETED else of.outcome.value
    if of.status >= 400 and of.outcome not in (Outcome.CLIENT_CANCELLED, Outcome.OPERATOR_CANCELLED):
        error = str(of.status)
    values = operation, provider, of.model, host, str(port), error
    return dict(zip(GENAI_LABELS, values, strict=True))


def _family(kind: type[GaugeMetricFamily | CounterMetricFamily], text: str, name: str, rows: Rows) -> Metric:
    name, *labels = name.split()
    family = kind(f"clairvoyant_{name}", text, labels=labels)
    for key, value in (rows if isinstance(rows, Mapping) else {(): rows}).items():
        if value is not None:
            family.add_metric([key] if isinstance(key, str) else key, float(value))
    return family
