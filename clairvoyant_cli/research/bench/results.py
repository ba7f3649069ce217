"""The results of a bench: cells of answers."""

from dataclasses import dataclass, field

from clairvoyant_cli.research.bench.client import Call


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer, in seconds of the model's time (see `Settings.speedup`); it contains no text.

    `kind` is the question's length class. Times are None if the call failed; `error` says why.
    """

    kind: str
    tokens: int
    at_s: float
    sojourn_s: float | None
    ttft_s: float | None
    predicted_tokens: float | None = None
    error: str | None = None

    @classmethod
    def of(cls, call: Call, speedup: float) -> "Answer":
        """Return the record of a call that has ended."""
        sojourn_s, ttft_s = (
            None if time_s is None else time_s * speedup for time_s in (call.sojourn_s, call.ttft_s)
        )
        kind = call.question.length_class.value
        return cls(kind, call.tokens, call.at_s, sojourn_s, ttft_s, call.predicted_tokens, call.error)


@dataclass(frozen=True, slots=True)
class Cell:
    """One arm's answers to one run of one load. `took_s` is wall-clock time.

    `counts` are what the daemon counted: "tau firings", "busy" (seconds that slots were held), and where the
    policy cuts answers "cuts", "resumes" and "tokens read again".
    """

    load: str
    run: int
    arm: str
    took_s: float
    answers: tuple[Answer, ...]
    counts: dict[str, float] = field(default_factory=dict)
