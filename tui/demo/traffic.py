"""Requests as a developer's machine sees them: many short, a few very long, in bursts, told with errors."""

from math import exp, log
from random import Random

from tui.demo.lane import Ask
from tui.snapshot import PredictionState

_KINDS = (  # share, client, endpoint, model, median tokens, spread, what it might have asked
    (0.30, "zed", "/v1/completions", "qwen2.5-coder:7b", 60, 0.7, "def parse_header(line: bytes) ->"),
    (0.24, "open-webui", "/api/chat", "llama3.1:8b", 190, 0.9, "What does a 429 mean?"),
    (0.16, "home-assist", "/api/generate", "llama3.1:8b", 45, 0.5, "Turn the light in the kitchen off."),
    (0.14, "cursor", "/v1/chat/completions", "qwen2.5-coder:7b", 520, 0.7, "Write tests for the queue."),
    (0.10, "notes-cli", "/v1/messages", "llama3.1:8b", 950, 0.5, "Summarise these minutes in detail."),
    (0.06, "batch-report", "/v1/responses", "llama3.1:8b", 1700, 0.4, "Write the quarterly report."),
)
_SHORT, _LONG = 200, 800
_MEAN_TOKENS = 390.0
TOKENS_PER_S = 58.0


_BURST_EVERY_S = 90.0
_BURST_SPAN_S = 4.0
_BURST_SHARE = 0.5


class Traffic:
    """Arrivals from one seed: half of them alone, half in bursts (an agent that fans out, a batch that
    starts). `load` is the offered load per slot: 1.0 just fills them.
    """

    def __init__(self, seed: int, load: float, slots: int) -> None:
        self._random = Random(seed)  # noqa: S311 - a picture, not a secret
        self._per_s = load * slots * TOKENS_PER_S / _MEAN_TOKENS
        self._next_at: float | None = None

    def until(self, now: float) -> list[Ask]:
        """Return what has arrived up to `now`."""
        if self._per_s <= 0:
            return []
        asks = []
        if self._next_at is None:
            self._next_at = now
        peak = self._rate(0.0)
        while self._next_at <= now:
            if self._random.random() * peak < self._rate(self._next_at):
                asks.append(self.ask(self._next_at))
            self._next_at += self._random.expovariate(peak)
        return asks

    def _rate(self, at: float) -> float:
        """Requests per second at a moment; a burst starts at each multiple of its period."""
        in_burst = at % _BURST_EVERY_S < _BURST_SPAN_S
        burst = _BURST_SHARE * _BURST_EVERY_S / _BURST_SPAN_S if in_burst else 0.0
        return self._per_s * (1.0 - _BURST_SHARE + burst)

    def ask(self, at: float) -> Ask:
        """Make one request."""
        random = self._random
        kind = random.choices(_KINDS, weights=[each[0] for each in _KINDS])[0]
        _, client, endpoint, model, median, spread, text = kind
        tokens = max(4, round(median * exp(random.gauss(0.0, spread))))
        guess = median * (tokens / median) ** 0.6 * exp(random.gauss(0.0, 0.9))
        prompt_tokens = float(round(exp(random.uniform(log(20), log(3000)))))
        return Ask(
            id=f"{random.getrandbits(32):08x}",
            arrived_at=at,
            tokens=tokens,
            prefill_s=0.08 + prompt_tokens / 2400.0,
            tokens_per_s=TOKENS_PER_S * random.uniform(0.9, 1.1),
            predicted=_foretell(guess, prompt_tokens),
            endpoint=endpoint,
            model=model,
            client=client,
            prompt_tokens=prompt_tokens,
            streaming=random.random() < 0.7,
            text=text,
        )


def _foretell(guess: float, prompt_tokens: float) -> PredictionState:
    p_long = 1.0 / (1.0 + (_LONG / guess) ** 2.2)
    p_short = (1.0 - p_long) / (1.0 + (guess / _SHORT) ** 2.2)
    p_medium = 1.0 - p_long - p_short
    best = max(p_short, p_medium, p_long)
    name = "short" if best == p_short else "medium" if best == p_medium else "long"
    features = (
        ("prompt tokens", prompt_tokens),
        ("asks for code", float(guess % 2 < 1)),
        ("asks for a list", float(guess % 3 < 1)),
        ("asks for length", float(guess > _LONG)),
    )
    return PredictionState(name, p_short, p_medium, p_long, guess, guess * 2.1, "demo", features)
