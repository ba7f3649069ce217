"""Tells which running requests are overdue: their server has sent nothing for far longer than it ever needed.

A false alarm may cost somebody an answer, so all bounds are generous. What may take long without a sign:
reading prompts, also those of requests beside it; an answer that is not streamed, or held back because of its
tools; loading a model.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from clairvoyant_cli.backends.speeds import Speeds
from clairvoyant_cli.protocols.routes import Work
from clairvoyant_cli.proxy.queue.exchange import Attempt

LEAST_S = 30.0
MARGIN = 4.0  # times the upper expectation
BEFORE = 2.0  # times the longest silence before that ended with an answer
FORGETTING = 0.98  # of that silence, at each answer
# Times the bound, where the server answers others and may have this one in a queue of its own: it may have
# fewer slots than it is said to.
MAYBE_QUEUED = 10.0
COLD_S = 600.0  # a model may have to be loaded: Ollama gives up after five minutes (OLLAMA_LOAD_TIMEOUT)
WARM_S = 240.0  # a model that answered this long ago is loaded still: Ollama unloads after five minutes
A_LOOK_S = 20.0  # between two looks at a server; in more, this process was stopped, and perhaps the server
LONG_TOKENS = 500.0  # that any answer may have, whatever was predicted
HALVED_TOKENS = 32_000.0  # attention: a prompt of this length is read at about half the speed of a short one
# Speeds of a server that has not been measured: a large model on a CPU.
SLOW_PREFILL_TOKENS_PER_S = 20.0
SLOW_DECODE_TOKENS_PER_S = 10.0
HEARTBEATS_END_S = 300.0
"""From then on an overdue request gets no empty events, so that its client's own time-out counts."""


@dataclass(slots=True)
class Silences:
    """What is known of how long one server is silent."""

    heard_s: float = 0.0  # when it last sent a piece of an answer
    longest_s: float = 0.0
    granted_s: float = -inf  # when the last of the requests was granted that it has begun to answer
    looked_s: float | None = None  # when it was last looked at
    _model: str | None = None  # that of this piece: answering with another may have unloaded all others

    def heard(self, attempt: Attempt, now: float) -> None:
        """A piece of an answer has come, other than a comment."""
        silent_s = 0.0 if attempt.heard_s is None else now - attempt.heard_s
        if silent_s > self.longest_s and not self.is_cold(attempt):
            self.longest_s = silent_s
        self._model, attempt.heard_s, self.heard_s = attempt.run.job.model, now, now
        self.granted_s = max(self.granted_s, attempt.run.started_s)

    def is_cold(self, attempt: Attempt) -> bool:
        return attempt.run.job.model != self._model or attempt.run.started_s - self.heard_s > WARM_S


def overdue(
    running: Sequence[Attempt],
    known: Silences,
    speeds: Speeds,
    now: float,
    *,
    loads: bool | None,
    queues: bool,
) -> set[str]:
    """Return the ids of a server's running requests that are overdue. `loads` says whether it may be loading
    a model for one of them, None if it does not list its models; `queues`, whether requests wait inside it.
    """
    stopped_s = max(0.0, now - (known.looked_s or now) - A_LOOK_S)
    known.looked_s = now
    cold = any(known.is_cold(attempt) for attempt in running) if loads is None else loads
    reading_s = sum(_reading_s(attempt, speeds) for attempt in running)
    least_s = max(COLD_S if cold else LEAST_S, BEFORE * known.longest_s)
    late = set[str]()
    for attempt in running:
        if attempt.heard_s is None or (attempt.connection is not None and attempt.connection.paused):
            continue  # its client is slow: it still sends the request, or does not read the answer
        attempt.heard_s += stopped_s
        expected_s = (reading_s + _unseen_s(attempt, speeds)) * speeds.slowdown
        bound_s, own_s = max(least_s, MARGIN * expected_s), now - attempt.heard_s
        # Servers take requests in the order of their arrival, so that this one has left their queue.
        started = attempt.first_byte_s is not None or attempt.heard_s < known.granted_s
        own_bound_s = inf if queues else bound_s if started else MAYBE_QUEUED * bound_s
        if min(own_s, now - known.heard_s) > bound_s or own_s > own_bound_s:
            late.add(attempt.run.job.id)
    return late


def _reading_s(attempt: Attempt, speeds: Speeds) -> float:
    if attempt.first_byte_s is not None:
        return 0.0
    tokens = attempt.run.job.prompt_tokens
    slowdown = 1.0 + tokens / HALVED_TOKENS
    return tokens * slowdown / (speeds.prefill_tokens_per_s or SLOW_PREFILL_TOKENS_PER_S)


def _unseen_s(attempt: Attempt, speeds: Speeds) -> float:
    """Return how long an answer may take of which nothing is seen until its end."""
    job, asked, view = attempt.run.job, attempt.asked, attempt.asked.parsed.view
    if asked.route.work is not Work.GENERATE or view is None or view.images:
        return max(COLD_S, job.cost_s)
    if asked.parsed.stream and not view.tools:
        return 0.0
    if (speed := speeds.decode_tokens_per_s) is None:
        return job.tokens_q90 / SLOW_DECODE_TOKENS_PER_S
    return max(job.tokens_q90, LONG_TOKENS) / speed
