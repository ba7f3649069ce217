"""Prometheus metrics; the names end like vLLM's, so that its panels fit after a change of prefix."""

from http import HTTPStatus

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

from clairvoyant_cli.http.status import REASONS
from clairvoyant_cli.proxy.observing.histogram import Histogram
from clairvoyant_cli.proxy.queue.exchange import End, Exchange, Outcome
from clairvoyant_cli.scheduler.urgency import level_of
from clairvoyant_cli.state.snapshot import (
    BackendState,
    EngineState,
    ServiceLevelState,
    Snapshot,
    UrgencyState,
)

SECONDS = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1000)
TOKENS = (1, 4, 16, 64, 200, 400, 800, 1600, 4096, 16384)
MAX_MODELS = 50

CODES = {0, *HTTPStatus, *REASONS}
"""Statuses that are counted by themselves: the registered ones, our own, and 0 for no answer. A backend may
send any three digits, and each would be a time series of its own."""


NO_ENGINE = EngineState()


class Metrics:
    """The daemon's metrics, in a registry of their own."""

    CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

    def __init__(self) -> None:
        registry = self._registry = CollectorRegistry()
        self._models: set[str] = set()
        self._promoted = 0
        self._swapped: dict[str, int] = {}
        self._running = Gauge("clairvoyant_requests_running", "Requests that hold a slot", registry=registry)
        self._waiting = Gauge(
            "clairvoyant_requests_waiting", "Requests in the queue", ["class"], registry=registry
        )
        self._slots = Gauge(
            "clairvoyant_slots", "Slots of each backend", ["state", "backend"], registry=registry
        )
        self._up = Gauge(
            "clairvoyant_backend_up", "Whether the backend answers", ["backend"], registry=registry
        )
        self._engine_requests = Gauge(
            "clairvoyant_engine_requests",
            "Requests inside an engine that orders its own queue, as it says",
            ["state", "backend"],
            registry=registry,
        )
        self._engine_preemptions = Gauge(
            "clairvoyant_engine_preemptions",
            "Answers that an engine has preempted since it was started, as it says",
            ["backend"],
            registry=registry,
        )
        self._engine_cache = Gauge(
            "clairvoyant_engine_kv_cache_usage_ratio",
            "Share of an engine's KV cache in use, as it says",
            ["backend"],
            registry=registry,
        )
        self._heeded = Gauge(
            "clairvoyant_engine_priority_heeded_ratio",
            "Share of an engine's last starts that followed priority against the order of arrival",
            ["backend"],
            registry=registry,
        )
        self._tau = Gauge("clairvoyant_tau_seconds", "Starvation timeout", registry=registry)
        self._accuracy = Gauge(
            "clairvoyant_prediction_rank_accuracy", "Ranking accuracy on recent traffic", registry=registry
        )
        self._promotions = Counter(
            "clairvoyant_starvation_promotions", "Dispatches that tau forced", registry=registry
        )
        self._swaps = Counter(
            "clairvoyant_model_swaps", "Models that were loaded in another's place", registry=registry
        )
        self._totals = {
            "cuts": Counter("clairvoyant_cuts", "Answers that were cut for another", registry=registry),
            "resumes": Counter("clairvoyant_resumes", "Answers that went on after a cut", registry=registry),
            "recomputed_tokens": Counter(
                "clairvoyant_recomputed_tokens", "Tokens read again to go on", registry=registry
            ),
            "repeats": Counter(
                "clairvoyant_repeats", "Answers that broke off and were asked for again", registry=registry
            ),
        }
        self._told = dict.fromkeys(self._totals, 0)
        self._urgent_waiting = Gauge(
            "clairvoyant_urgency_waiting", "Requests in the queue", ["level"], registry=registry
        )
        self._urgent_time = Histogram(
            "clairvoyant_urgency_queue_time_seconds", "Time in the queue", SECONDS, registry, label="level"
        )
        self._late = Counter(
            "clairvoyant_urgency_late", "Requests of level 0 that waited beyond the target", registry=registry
        )
        self._overruled = Counter(
            "clairvoyant_urgency_overruled",
            "Requests that got less urgency than was asked for them",
            ["why"],
            registry=registry,
        )
        self._told_of_urgency: dict[str, int] = {}
        self._shouting = Gauge(
            "clairvoyant_urgency_unbelieved_last_minute",
            "Claims of urgency that were not believed, of the client that had most of them",
            ["client"],
            registry=registry,
        )
        self._alert = Gauge(
            "clairvoyant_slo_alert",
            "Whether the service level is not met by recent requests",
            registry=registry,
        )
        self._judged = Counter(
            "clairvoyant_slo_requests",
            "Requests held against the service level",
            ["class"],
            registry=registry,
        )
        self._violations = Counter(
            "clairvoyant_slo_violations",
            "Those whose first token came too late",
            ["class"],
            registry=registry,
        )
        self._refused = Counter(
            "clairvoyant_slo_refused", "Requests told that they could not be in time", registry=registry
        )
        self._told_of_level: dict[str, int] = {}
        self._requests = Counter(
            "clairvoyant_requests",
            "Scheduled requests ended",
            ["endpoint", "code", "outcome"],
            registry=registry,
        )
        self._answered = Counter(
            "clairvoyant_backend_requests",
            "Scheduled requests that ended on a backend",
            ["backend", "outcome"],
            registry=registry,
        )
        self._queue_time = Histogram(
            "clairvoyant_request_queue_time_seconds", "Time in the queue", SECONDS, registry, label="class"
        )
        self._ttft = Histogram(
            "clairvoyant_time_to_first_token_seconds",
            "Arrival to first byte",
            SECONDS,
            registry,
            label="model",
        )
        self._latency = Histogram(
            "clairvoyant_e2e_request_latency_seconds", "Arrival to end", SECONDS, registry, label="model"
        )
        self._sojourn = Histogram(
            "clairvoyant_request_sojourn_seconds",
            "Arrival to end, by the class that was predicted",
            SECONDS,
            registry,
            label="class",
        )
        self._prompt = Histogram(
            "clairvoyant_request_prompt_tokens", "Prompt length, estimated", TOKENS, registry
        )
        self._generated = Histogram(
            "clairvoyant_request_generation_tokens", "Answer length", TOKENS, registry
        )
        self._predicted = Histogram(
            "clairvoyant_predicted_generation_tokens", "Predicted answer length", TOKENS, registry
        )
        self._predicting = Histogram(
            "clairvoyant_prediction_seconds",
            "Time taken to predict one request",
            (2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 5e-3, 0.02),
            registry,
        )
        self._error = Histogram(
            "clairvoyant_prediction_error_ratio",
            "Predicted over real answer length",
            (0.1, 0.25, 0.5, 0.75, 1, 1.33, 2, 4, 10),
            registry,
        )

    def ended(self, exchange: Exchange, end: End) -> None:
        """Count a finished request."""
        asked, now = exchange.asked, end.at_s
        code = str(end.status) if end.status in CODES else "other"
        self._requests.labels(asked.route.name, code, end.outcome.value).inc()
        if exchange.attempt is not None:
            self._answered.labels(exchange.attempt.worker, end.outcome.value).inc()
        self._predicting.observe(asked.predicted_in_s)
        self._queue_time.observe(exchange.waited_s(now), asked.prediction.length_class.value)
        self._urgent_time.observe(exchange.waited_s(now), str(level_of(exchange.job)))
        model = self._model(asked.parsed.model)
        if exchange.ttft_s is not None:
            self._ttft.observe(exchange.ttft_s, model)
        if end.outcome is not Outcome.COMPLETED:
            return
        self._latency.observe(exchange.sojourn_s(now), model)
        self._sojourn.observe(exchange.sojourn_s(now), asked.prediction.length_class.value)
        self._prompt.observe(asked.parsed.prompt_tokens)
        expected = asked.prediction.expected_tokens
        self._predicted.observe(expected)
        tokens = exchange.totals.tokens
        if tokens:
            self._generated.observe(tokens)
            self._error.observe(expected / tokens)

    def render(self, snapshot: Snapshot) -> bytes:
        """Return the exposition text; gauges are read off the snapshot."""
        self._running.set(len(snapshot.running))
        for each in ("short", "medium", "long"):
            self._waiting.labels(each).set(getattr(snapshot.waiting, each))
        self._slots.clear()
        self._up.clear()
        for backend in snapshot.backends:
            self._slots.labels("busy", backend.name).set(backend.busy)
            self._slots.labels("free", backend.name).set(max(0, backend.slots - backend.busy))
            self._up.labels(backend.name).set(backend.state == "up")
            self._engine(backend)
        self._tau.set(snapshot.tau.tau_s or 0)
        self._promotions.inc(snapshot.tau.firings_total - self._promoted)
        self._promoted = snapshot.tau.firings_total
        for name, counter in self._totals.items():
            total = getattr(snapshot.counters, name)
            counter.inc(total - self._told[name])
            self._told[name] = total
        self._render_urgency(snapshot.urgency)
        self._render_service_level(snapshot.service_level)
        for backend in snapshot.backends:  # one that has come again begins to count anew
            self._swaps.inc(max(0, backend.swaps_total - self._swapped.get(backend.name, 0)))
        self._swapped = {backend.name: backend.swaps_total for backend in snapshot.backends}
        if snapshot.predictor.ranking_accuracy is not None:
            self._accuracy.set(snapshot.predictor.ranking_accuracy)
        return generate_latest(self._registry)

    def _render_urgency(self, state: UrgencyState) -> None:
        for level in state.levels:
            self._urgent_waiting.labels(str(level.level)).set(level.waiting)
        told = self._told_of_urgency
        self._late.inc(state.late - told.get("late", 0))
        for why, total in state.overruled:
            self._overruled.labels(why).inc(total - told.get(why, 0))
        self._shouting.clear()
        if state.shouter is not None:
            self._shouting.labels(state.shouter.client).set(state.shouter.unbelieved)
        self._told_of_urgency = {"late": state.late, **dict(state.overruled)}

    def _engine(self, backend: BackendState) -> None:
        """Set what is known of an engine's own queue; what is not known of it any more is not shown."""
        name, engine = backend.name, backend.engine or NO_ENGINE
        told: list[tuple[Gauge, tuple[str, ...], float | None]] = [
            (self._engine_requests, ("running", name), engine.running),
            (self._engine_requests, ("waiting", name), engine.waiting),
            (self._engine_preemptions, (name,), engine.preemptions),
            (self._engine_cache, (name,), engine.kv_used),
            (self._heeded, (name,), backend.heeded),
        ]
        for gauge, labels, value in told:
            if value is not None:
                gauge.labels(*labels).set(value)
            else:
                gauge.remove(*labels)

    def _render_service_level(self, state: ServiceLevelState | None) -> None:
        if state is None:
            return
        self._alert.set(state.alert)
        told = self._told_of_level
        self._refused.inc(state.refused - told.get("refused", 0))
        now = {"refused": state.refused}
        for each in state.classes:
            name = each.length_class
            now |= {f"{name} judged": each.judged, f"{name} missed": each.missed}
            self._judged.labels(name).inc(each.judged - told.get(f"{name} judged", 0))
            self._violations.labels(name).inc(each.missed - told.get(f"{name} missed", 0))
        self._told_of_level = now

    def _model(self, name: str) -> str:
        # Clients choose the model's name: the label's values must not grow without bound.
        if name not in self._models and len(self._models) >= MAX_MODELS:
            return "other"
        self._models.add(name)
        return name
