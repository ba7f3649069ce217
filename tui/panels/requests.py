"""The three tables of requests: running, queued, ended."""

from collections.abc import Callable
from typing import TypeVar

from clairvoyant_cli.state.snapshot import FinishedRequest, PredictionState, QueuedRequest, RunningRequest
from tui.formatting import (
    bar,
    brief,
    class_letter,
    class_tone,
    clock,
    count,
    duration,
    path_name,
    rate,
    ratio,
)
from tui.styled_text import Line, Tone
from tui.table_layout import Column, Grid
from tui.view_state import LinkState, ViewState

_STATE: dict[str, tuple[str, Tone]] = {
    "connecting": ("◌", "soft"),
    "prefill": ("◔", "soft"),
    "decoding": ("▶", "accent"),
    "releasing": ("×", "warn"),
}
_NOW_S = 0.005
_NEVER_S = 1e12
_COAST_S = 1.5
_BY: dict[str, tuple[str, Tone]] = {"tau": ("τ", "alert"), "promoted": ("▲", "accent")}
LEVELS: tuple[tuple[str, Tone], ...] = (
    ("immediate", "alert"),
    ("high risk", "warn"),
    ("urgent", "ink"),
    ("less urgent", "soft"),
    ("not urgent", "faint"),
)
"""What each urgency level means, and its tone."""

_UNSAID_LEVEL = 2
"""A request without a level counts as one of the middle."""

_CLASS_ORDER = {"short": 0, "medium": 1, "long": 2}
_OUTCOME: dict[str, tuple[str, Tone]] = {
    "completed": ("✓ done", "good"),
    "client_cancelled": ("← left", "soft"),
    "operator_cancelled": ("cancelled", "soft"),
    "upstream_error": ("✗ failed", "alert"),
    "rejected": ("⊘ refused", "warn"),
    "timeout": ("✗ timeout", "alert"),
}


def level_tone(level: int) -> tuple[str, Tone]:
    """Return what an urgency level means, and its tone."""
    return LEVELS[min(level, len(LEVELS) - 1)]


def tau_fraction(row: QueuedRequest, view: ViewState) -> float | None:
    """Return how much of its tau a wait has used; None if the guard does not apply to it."""
    return (row.age_s + view.drift_s) / row.tau_s if row.tau_s else None


def tau_tone(row: QueuedRequest) -> Tone:
    """Return the tone of a wait: only the request that the guard starts next stands out."""
    return "alert" if _is_next_by_guard(row) else "soft"


def _is_next_by_guard(row: QueuedRequest) -> bool:
    return row.cause == "guard" and row.rank == 1


def compared(row: QueuedRequest) -> Line:
    """Compare a request's place with first-come-first-served."""
    if row.rank_fcfs is None or row.held:
        return Line()
    places = row.rank_fcfs - row.rank
    sooner_s = (row.eta_fcfs_s or 0.0) - (row.eta_s or 0.0)
    if not places and abs(sooner_s) < _NOW_S:
        return Line("as by arrival", "soft")
    tone: Tone = "good" if sooner_s >= 0 else "warn"
    line = Line(f"{'up' if places > 0 else 'down'} {abs(places):,}, " if places else "", "soft")
    return line.add(duration(abs(sooner_s)), tone).add(" sooner" if sooner_s >= 0 else " later", "soft")


# -- columns that several tables have ---------------------------------------------------------------------

Row = TypeVar("Row", bound=QueuedRequest | RunningRequest | FinishedRequest)


def _id() -> Column[Row]:
    """The end of an id tells more than its beginning."""

    def draw(row: Row, view: ViewState, width: int) -> Line:
        return Line(row.id if len(row.id) <= width else f"…{row.id[1 - width :]}")

    return Column("id", "id", 9, draw, lambda r: r.id)


def class_mark(prediction: PredictionState) -> Line:
    """The letter of the predicted class, in its tone."""
    return Line(class_letter(prediction.length_class), class_tone(prediction.length_class))


def _both_classes(row: Row, view: ViewState, width: int) -> Line:
    """The predicted class, and the real one if the answer fell into another."""
    real = row.real_class if isinstance(row, FinishedRequest) else ""
    if not real or real == row.predicted.length_class:
        return Line(" ").join(class_mark(row.predicted))
    return class_mark(row.predicted).add("→", "faint").add(class_letter(real), class_tone(real))


def _class() -> Column[Row]:
    return Column("class", "cls", 3, _both_classes, lambda r: _CLASS_ORDER.get(r.predicted.length_class, 3))


def _word(
    name: str,
    width: int,
    of: Callable[[Row], str],
    form: Callable[[str], str] = str,
    *,
    title: str = "",
    tone: Tone = "soft",
    flex: int = 0,
    from_width: int = 0,
    when: Callable[[ViewState], bool] = lambda view: True,
) -> Column[Row]:
    """Make a column of texts, sorted by the unformatted text."""

    def draw(row: Row, view: ViewState, width: int) -> Line:
        return Line(form(of(row)), tone)

    return Column(name, title or name, width, draw, of, flex=flex, from_width=from_width, when=when)


def _number(
    name: str,
    title: str,
    width: int,
    of: Callable[[Row], float | None],
    form: Callable[[float | None], str] = duration,
    tone: Tone = "ink",
    *,
    grows: bool = False,
    from_width: int = 0,
) -> Column[Row]:
    """Make a column of numbers; a time that `grows` also does so between two states."""

    def draw(row: Row, view: ViewState, width: int) -> Line:
        value = of(row)
        return Line(form(value + view.drift_s if grows and value is not None else value), tone)

    return Column(name, title, width, draw, lambda r: of(r) or 0.0, right=True, from_width=from_width)


def _level() -> Column[Row]:
    def draw(row: Row, view: ViewState, width: int) -> Line:
        if row.urgency is None:
            return Line("·", "track")
        return Line(str(row.urgency), level_tone(row.urgency)[1])

    def sort(row: Row) -> float:
        return _UNSAID_LEVEL if row.urgency is None else row.urgency

    return Column("level", "lvl", 3, draw, sort, right=True, when=_heeded)


def _heeded(view: ViewState) -> bool:
    return view.snapshot is not None and view.snapshot.urgency.heeded


def _several(view: ViewState) -> bool:
    return view.snapshot is not None and len(view.snapshot.backends) > 1


def _no_ghost(view: ViewState) -> bool:
    return not view.ghost


def _prompt(row: QueuedRequest | RunningRequest, view: ViewState, width: int) -> Line:
    """The beginning of the prompt, as much as there is room for."""
    return Line(" ".join((row.prompt or "")[: 2 * width].split()), "soft")


def _prompts_shown(view: ViewState) -> bool:
    return view.prompts


# -- the queue --------------------------------------------------------------------------------------------


def _flag(row: QueuedRequest, view: ViewState, width: int) -> Line:
    flags: tuple[tuple[object, str, Tone], ...] = (
        (row.held, "‖", "warn"),
        (row.promoted, "▲", "accent"),
        (row.cuts, "½", "accent"),
        (row.priority, "+" if row.priority < 0 else "−", "soft"),
        (_is_next_by_guard(row), "τ", "alert"),
    )
    return next((Line(sign, tone) for is_so, sign, tone in flags if is_so), Line())


def _eta(row: QueuedRequest, view: ViewState, width: int) -> Line:
    if row.held:
        return Line("held", "warn")
    if row.cause == "session":
        return Line("parked", "warn")
    if row.eta_s is None or (view.snapshot is not None and view.snapshot.mode == "paused"):
        return Line("–", "faint")
    left_s = row.eta_s - view.drift_s
    return Line(duration(left_s)) if left_s >= _NOW_S else Line("next", "accent")


def _age_bar(row: QueuedRequest, view: ViewState, width: int) -> Line:
    fraction = tau_fraction(row, view)
    return bar(fraction, width, tau_tone(row)) if fraction is not None else Line()


def _expected(row: QueuedRequest) -> float:
    return row.predicted.expected_tokens


def _queue_tokens(row: QueuedRequest, view: ViewState, width: int) -> Line:
    """The expected tokens; of an answer that was cut, the ones it has."""
    if row.cuts:
        return Line(count(row.tokens), "accent")
    return Line("~", "faint").add(count(row.predicted.expected_tokens))


def _p_long(row: QueuedRequest, view: ViewState, width: int) -> Line:
    return Line(ratio(row.predicted.p_long), class_tone(row.predicted.length_class))


def _priority(row: QueuedRequest, view: ViewState, width: int) -> Line:
    return Line(f"{row.priority:+d}") if row.priority else Line("·", "track")


def _words(row: QueuedRequest) -> str:
    flags = f"{'held ' * row.held}{'promoted ' * row.promoted}{'suspended ' * bool(row.cuts)}"
    level = "" if row.urgency is None else f"level{row.urgency} "
    return f"{row.id} {row.model} {row.client} {row.endpoint} {row.predicted.length_class} {level}{flags}"


def _queue_empty(view: ViewState) -> str:
    if view.link.state is LinkState.LOST:
        return view.link.reason
    if view.snapshot is None:
        return f"Looking for a daemon at {view.link.where}"
    if any(server.is_there for server in view.snapshot.backends):
        return "The queue is empty: a new request starts at once."
    return "The queue is empty, and no server is up."


QUEUE: Grid[QueuedRequest] = Grid(
    columns=(
        Column("rank", "#", 4, lambda r, s, w: Line(str(r.rank), "faint"), lambda r: r.rank, right=True),
        Column("flag", "", 1, _flag),
        _id(),
        _class(),
        _level(),
        Column("p_long", "P(L)", 4, _p_long, lambda r: r.predicted.p_long, right=True, when=_no_ghost),
        Column("tokens", "tokens", 6, _queue_tokens, _expected, right=True, when=_no_ghost),
        _number("q90", "≤q90", 6, lambda r: r.predicted.q90_tokens, count, "faint", from_width=96),
        Column("eta", "ETA", 6, _eta, lambda r: _NEVER_S if r.eta_s is None else r.eta_s, right=True),
        _number("age", "age", 6, lambda r: r.age_s, grows=True),
        Column("bar", "of τ", 7, _age_bar, flex=1, when=lambda view: not (view.ghost or view.prompts)),
        Column(
            "ghost",
            "by arrival",
            20,
            lambda r, s, w: compared(r),
            lambda r: (r.rank_fcfs or r.rank) - r.rank,
            when=lambda view: view.ghost,
        ),
        _word("only", 8, lambda r: ", ".join(r.backends), title="only on", from_width=88, when=_several),
        Column("priority", "pri", 3, _priority, lambda r: r.priority, right=True, from_width=90),
        _word("model", 11, lambda r: r.model, flex=2),
        _word("client", 9, lambda r: r.client, flex=1),
        _word("endpoint", 9, lambda r: r.endpoint, path_name, tone="faint", from_width=104),
        Column("prompt", "prompt", 16, _prompt, flex=6, from_width=60, when=_prompts_shown),
    ),
    rows=lambda view: view.snapshot.queue if view.snapshot else (),
    id=lambda row: row.id,
    text=_words,
    empty=_queue_empty,
    total=lambda view: view.snapshot.waits if view.snapshot else 0,
)


# -- running ----------------------------------------------------------------------------------------------


def _slot(row: RunningRequest, view: ViewState, width: int) -> Line:
    return Line(str(row.slot) if row.slot is not None else "–", "faint")


def _state_mark(row: RunningRequest, view: ViewState, width: int) -> Line:
    by = _BY.get(row.dispatched_by) if row.state == "decoding" else None
    return Line(*(by or _STATE.get(row.state, ("?", "warn"))))


def _progress(row: RunningRequest, view: ViewState, width: int) -> Line:
    if row.state in ("connecting", "prefill", "releasing"):
        return Line(row.state, "faint")
    return bar(progress(row, view), width, class_tone(row.predicted.length_class))


def tokens_now(row: RunningRequest, view: ViewState) -> float:
    """Return the tokens so far, extrapolated since the last state at the speed it reported."""
    since_s = min(view.drift_s, _COAST_S) if row.state == "decoding" else 0.0
    return row.tokens + since_s * (row.tokens_per_s or 0.0)


def progress(row: RunningRequest, view: ViewState) -> float:
    """Return the share of the predicted tokens so far; it stays under one until the answer ends."""
    return min(tokens_now(row, view) / max(row.predicted.expected_tokens, 1.0), 0.97)


def _tokens(row: RunningRequest, view: ViewState, width: int) -> Line:
    tokens = tokens_now(row, view)
    over = tokens > row.predicted.q90_tokens > 0
    line = Line("~" if row.estimated else "", "faint").add(count(tokens), "warn" if over else "strong")
    return line.add("/", "faint").add(brief(row.predicted.expected_tokens), "soft")


def _running_eta(row: RunningRequest, view: ViewState, width: int) -> Line:
    if row.eta_s is None:
        return Line("–", "faint")
    left_s = row.eta_s - view.drift_s
    return Line(duration(left_s)) if left_s >= _NOW_S else Line("soon", "soft")  # longer than predicted


def _running_empty(view: ViewState) -> str:
    if view.link.state is not LinkState.LIVE or view.snapshot is None:
        return ""
    if view.snapshot.mode == "paused":
        return "Paused. Press P to resume."
    if view.snapshot.waits or not any(server.is_there for server in view.snapshot.backends):
        return "No server takes requests now."
    return f"Idle. Point a client at http://{view.snapshot.listen} instead of the server's own address."


RUNNING: Grid[RunningRequest] = Grid(
    columns=(
        Column("slot", "slot", 4, _slot, lambda r: r.slot if r.slot is not None else -1, right=True),
        Column("state", "", 1, _state_mark),
        _id(),
        _class(),
        _level(),
        Column("tokens", "tokens", 10, _tokens, lambda r: r.tokens, right=True),
        Column("progress", "", 8, _progress, flex=2),
        Column("eta", "ETA", 6, _running_eta, lambda r: _NEVER_S if r.eta_s is None else r.eta_s, right=True),
        _number("rate", "tok/s", 5, lambda r: r.tokens_per_s, rate),
        _number("elapsed", "for", 5, lambda r: r.elapsed_s, tone="soft", grows=True),
        _number("ttft", "TTFT", 5, lambda r: r.ttft_s, tone="soft", from_width=90),
        _number("waited", "waited", 6, lambda r: r.waited_s, tone="soft", from_width=100),
        _word("server", 8, lambda r: r.backend, tone="ink", when=_several),
        _word("model", 10, lambda r: r.model, flex=2),
        _word("client", 9, lambda r: r.client, flex=1, from_width=78),
        Column("prompt", "prompt", 16, _prompt, flex=6, from_width=60, when=_prompts_shown),
    ),
    rows=lambda view: view.snapshot.running if view.snapshot else (),
    id=lambda row: row.id,
    text=lambda row: (
        f"{row.id} {row.model} {row.client} {row.endpoint} {row.predicted.length_class} {row.state}"
    ),
    empty=_running_empty,
)


# -- ended ------------------------------------------------------------------------------------------------


def _real_tokens(row: FinishedRequest, view: ViewState, width: int) -> Line:
    line = Line(count(row.predicted.expected_tokens), "soft").add(" → ", "faint")
    if row.tokens is None:
        return line.add("–", "faint")
    return line.add(count(row.tokens), "warn" if row.tokens > row.predicted.q90_tokens > 0 else "strong")


def _outcome(row: FinishedRequest, view: ViewState, width: int) -> Line:
    return Line(*_OUTCOME.get(row.outcome, (row.outcome, "warn")))


def _by(row: FinishedRequest, view: ViewState, width: int) -> Line:
    return Line(*_BY.get(row.dispatched_by, ("", "ink")))


def _status(row: FinishedRequest, view: ViewState, width: int) -> Line:
    return Line(str(row.status) if row.status else "–", "faint")


def _newest_first(view: ViewState) -> list[FinishedRequest]:
    recent = view.snapshot.recent if view.snapshot else ()
    return sorted(recent, key=lambda row: row.finished_at, reverse=True)


RECENT: Grid[FinishedRequest] = Grid(
    columns=(
        Column("at", "at", 8, lambda r, s, w: Line(clock(r.finished_at), "faint"), lambda r: -r.finished_at),
        _id(),
        Column("outcome", "outcome", 9, _outcome, lambda r: r.outcome),
        _class(),
        Column("tokens", "predicted→real", 14, _real_tokens, lambda r: r.tokens or 0, right=True),
        _number("waited", "waited", 6, lambda r: r.waited_s),
        _number("sojourn", "total", 6, lambda r: r.sojourn_s),
        Column("by", "by", 2, _by, lambda r: r.dispatched_by),
        _word("model", 8, lambda r: r.model, flex=2, from_width=72),
        _word("client", 8, lambda r: r.client, flex=1, from_width=84),
        Column("status", "code", 4, _status, lambda r: r.status, right=True, from_width=92),
    ),
    rows=_newest_first,
    id=lambda row: row.id,
    text=lambda row: (
        f"{row.id} {row.model} {row.client} {row.endpoint} {row.outcome} {row.predicted.length_class}"
    ),
    empty=lambda view: "No request has ended yet." if view.link.state is LinkState.LIVE else "",
    of=lambda view: (view.snapshot.recent if view.snapshot else None, view.link.state, _heeded(view)),
)
