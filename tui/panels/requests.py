"""The three tables of requests: running, queued, ended."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from clairvoyant_cli.state.snapshot import FinishedRequest, QueuedRequest, RunningRequest
from tui.formatting import (
    bar,
    brief,
    class_letter,
    class_tone,
    clock,
    count,
    duration,
    duration_range,
    path_name,
    rate,
    ratio,
    short_names,
)
from tui.styled_text import Line, Tone
from tui.table_layout import Column, Grid, heeded, number, words
from tui.view_state import LinkState, ViewState

_STATE: dict[str, tuple[str, Tone]] = {
    "connecting": ("◌", "soft"),
    "prefill": ("◔", "soft"),
    "decoding": ("▶", "accent"),
    "releasing": ("×", "warn"),
}
_NOW_S = 0.005
_NEVER_S = 1e12
ETA_WIDE = 14
"""From this width on, the time that is expected stands before the range."""
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
    return LEVELS[min(level, len(LEVELS) - 1)]


def tau_fraction(row: QueuedRequest, view: ViewState) -> float | None:
    """Return how much of its tau a wait has used; None if the guard does not apply to it."""
    return (row.age_s + view.drift_s) / row.tau_s if row.tau_s else None


def tau_tone(row: QueuedRequest) -> Tone:
    """Return the tone of a wait: only the request that the guard starts next stands out."""
    return "alert" if row.cause == "guard" and row.rank == 1 else "soft"


def compared(row: QueuedRequest) -> Line:
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

AnyRequest = QueuedRequest | RunningRequest | FinishedRequest


def _all(view: ViewState) -> Iterable[AnyRequest]:
    """All requests: names are as wide in each table, and stay so when rows come and go."""
    return (*view.state.queue, *view.state.running, *view.state.recent)


def _id(row: AnyRequest, view: ViewState, width: int) -> Line:
    """The end of an id tells more than its beginning."""
    return Line(row.id if len(row.id) <= width else f"…{row.id[1 - width :]}")


def _class(row: AnyRequest, view: ViewState, width: int) -> Line:
    """The predicted class, and the real one if the answer fell into another."""
    name, real = row.predicted.length_class, row.real_class if isinstance(row, FinishedRequest) else ""
    if not real or real == name:
        return Line(" ").add(class_letter(name), class_tone(name))
    line = Line(class_letter(name), class_tone(name)).add("→", "faint")
    return line.add(class_letter(real), class_tone(real))


def _level(row: AnyRequest, view: ViewState, width: int) -> Line:
    if row.urgency is None:
        return Line("·", "track")
    return Line(str(row.urgency), level_tone(row.urgency)[1])


def _level_order(row: AnyRequest) -> int:
    return _UNSAID_LEVEL if row.urgency is None else row.urgency


def _prompt(row: QueuedRequest | RunningRequest, view: ViewState, width: int) -> Line:
    """The beginning of the prompt, as much as there is room for."""
    return Line(" ".join((row.prompt or "")[: 2 * width].split()), "soft")


def _no_ghost(view: ViewState) -> bool:
    return not view.ghost


def _server_name(name: str, view: ViewState) -> str:
    """Its name by what differs from the others'; nothing of the only one."""
    names = short_names([each.name for each in view.state.backends])
    return "" if len(names) < 2 else ", ".join(names.get(each, each) for each in name.split(", "))


_ID: Column[Any] = Column(
    "id", "id", 4, 5, _id, lambda r: r.id, holds=lambda view: (row.id[-9:] for row in _all(view))
)
_CLASS: Column[Any] = Column(
    "class", "cls", 3, 8, _class, lambda r: _CLASS_ORDER.get(r.predicted.length_class, 3)
)
_LEVEL: Column[Any] = Column("level", "lvl", 3, 7, _level, _level_order, right=True, when=heeded)
_MODEL: Column[Any] = words("model", "model", 8, 6, lambda r: r.model, _all)
_CLIENT: Column[Any] = words("client", "client", 6, 6, lambda r: r.client, _all)
_PROMPT: Column[Any] = Column(
    "prompt", "prompt", 16, 7, _prompt, flex=True, most=200, when=lambda view: view.prompts
)


# -- the queue --------------------------------------------------------------------------------------------

_CAUSE: dict[str, Tone] = {
    "guard": "warn",
    "down": "alert",
    "promoted": "accent",
    "urgent": "accent",
    "held": "warn",
    "limit": "warn",
    "session": "warn",
    "swap": "warn",
}


def starts(row: QueuedRequest, view: ViewState, width: int) -> Line:
    if row.refused_in_s is not None:
        return Line("refused ", "soft").add(duration(row.refused_in_s - view.drift_s), "alert")
    if row.held or row.cause == "session":
        return Line("held" if row.held else "parked", "warn")
    if row.cause == "down" or view.state.mode == "paused":
        return Line("–", "faint")
    return _in(row, view, width, Line("next", "accent"))


def _in(row: QueuedRequest | RunningRequest, view: ViewState, width: int, none: Line) -> Line:
    """A range of times, with the expected one before it if there is room; `none` if it has passed."""
    if row.eta_s is None:
        return Line("–", "faint")
    left_s, low_s, high_s = row.eta_s - view.drift_s, row.eta_low_s, row.eta_high_s
    if low_s is None or high_s is None:
        return Line(duration(left_s)) if left_s >= _NOW_S else none
    if high_s - view.drift_s < _NOW_S:
        return none
    between = duration_range(low_s - view.drift_s, high_s - view.drift_s)
    if width < ETA_WIDE:
        return Line(between)
    return Line("~", "faint").add(duration(left_s)).add(f" {between:>7}", "soft")


def _eta_holds(view: ViewState) -> Iterable[str]:
    refused_s = [row.refused_in_s for row in _queued(view) if row.refused_in_s is not None]
    return (f"refused {duration(max(refused_s))}" if refused_s else "12–40s",)


def _queued(view: ViewState) -> tuple[QueuedRequest, ...]:
    return view.state.queue


def _age_bar(row: QueuedRequest, view: ViewState, width: int) -> Line:
    fraction = tau_fraction(row, view)
    return bar(fraction, width, tau_tone(row)) if fraction is not None else Line()


def _expected(row: QueuedRequest) -> float:
    return row.predicted.expected_tokens


def _queue_tokens(row: QueuedRequest, view: ViewState, width: int) -> Line:
    """The expected tokens; of an answer that was cut, the ones it has."""
    if row.cuts:
        return Line(f"½ {count(row.tokens)}", "accent")
    return Line("~", "faint").add(count(row.predicted.expected_tokens))


def _p_long(row: QueuedRequest, view: ViewState, width: int) -> Line:
    return Line(ratio(row.predicted.p_long), class_tone(row.predicted.length_class))


def _priority(row: QueuedRequest, view: ViewState, width: int) -> Line:
    return Line(f"{row.priority:+d}") if row.priority else Line("·", "track")


def _any_priority(view: ViewState) -> bool:
    return any(row.priority for row in _queued(view))


def _longest_rank(view: ViewState) -> Iterable[str]:
    return (f"{view.state.waits:3}",)  # a mark stands before the number


def _start_s(row: QueuedRequest | RunningRequest) -> float:
    return _NEVER_S if row.eta_s is None else row.eta_s


def _places(row: QueuedRequest) -> int:
    return (row.rank_fcfs or row.rank) - row.rank


def _words(row: QueuedRequest) -> str:
    flags = f"{'held ' * row.held}{'promoted ' * row.promoted}{'suspended ' * bool(row.cuts)}"
    level = "" if row.urgency is None else f"level{row.urgency} "
    return f"{row.id} {row.model} {row.client} {row.endpoint} {row.predicted.length_class} {level}{flags}"


def _queue_empty(view: ViewState) -> str:
    if view.link.state is LinkState.LOST:
        return view.link.reason
    if view.snapshot is None:
        return f"Looking for a daemon at {view.link.where}"
    busy, slots = view.snapshot.slots
    if not slots:
        return "The queue is empty, and no server is up."
    if busy < slots and view.snapshot.mode == "serving":
        return "The queue is empty: a new request starts at once."
    return "The queue is empty."


QUEUE: Grid[QueuedRequest] = Grid(
    columns=(
        replace(number("rank", "#", 2, 9, lambda r: r.rank, str, "faint"), holds=_longest_rank),
        _ID,
        _CLASS,
        _LEVEL,
        words("why", "why", 5, 8, lambda r: r.cause, _queued, tone=lambda cause: _CAUSE.get(cause, "soft")),
        Column("p_long", "P(L)", 4, 1, _p_long, lambda r: r.predicted.p_long, right=True, when=_no_ghost),
        Column("tokens", "tokens", 6, 4, _queue_tokens, _expected, right=True, when=_no_ghost),
        number("q90", "≤q90", 6, 0, lambda r: r.predicted.q90_tokens, count, "faint"),
        Column("eta", "ETA", 7, 9, starts, _start_s, right=True, holds=_eta_holds, most=ETA_WIDE),
        number("age", "age", 6, 7, lambda r: r.age_s, grows=True),
        Column("bar", "of τ", 6, 3, _age_bar, flex=True, when=lambda view: not (view.ghost or view.prompts)),
        Column("ghost", "by arrival", 20, 8, lambda r, s, w: compared(r), _places, when=lambda s: s.ghost),
        words("only", "only on", 4, 5, lambda r: ", ".join(r.backends), _queued, _server_name),
        Column("priority", "pri", 3, 5, _priority, lambda r: r.priority, right=True, when=_any_priority),
        _MODEL,
        _CLIENT,
        words(
            "endpoint", "endpoint", 8, 0, lambda r: r.endpoint, _queued, lambda text, view: path_name(text)
        ),
        _PROMPT,
    ),
    rows=_queued,
    id=lambda row: row.id,
    text=_words,
    empty=_queue_empty,
    total=lambda view: view.state.waits,
)


# -- running ----------------------------------------------------------------------------------------------


def _state_mark(row: RunningRequest, view: ViewState, width: int) -> Line:
    by = _BY.get(row.dispatched_by) if row.state == "decoding" else None
    return Line(*(by or _STATE.get(row.state, ("?", "warn"))))


def _progress(row: RunningRequest, view: ViewState, width: int) -> Line:
    if row.state in ("connecting", "prefill", "releasing"):
        return Line(row.state, "faint")
    return bar(progress(row), width, class_tone(row.predicted.length_class))


def progress(row: RunningRequest) -> float:
    """Return the share of the predicted tokens so far; it stays under one until the answer ends."""
    return min(row.tokens / max(row.predicted.expected_tokens, 1.0), 0.97)


def _tokens(row: RunningRequest, view: ViewState, width: int) -> Line:
    over = row.tokens > row.predicted.q90_tokens > 0
    line = Line("~" if row.estimated else "", "faint").add(count(row.tokens), "warn" if over else "strong")
    return line.add("/", "faint").add(brief(row.predicted.expected_tokens), "soft")


def ends(row: RunningRequest, view: ViewState, width: int) -> Line:
    return _in(row, view, width, Line("soon", "soft"))  # longer than predicted


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
        number("slot", "slot", 4, 4, lambda r: r.slot, count, "faint"),
        Column("state", "", 2, 8, _state_mark, right=True),
        _ID,
        _CLASS,
        _LEVEL,
        Column("tokens", "tokens", 10, 5, _tokens, lambda r: r.tokens, right=True),
        Column("progress", "", 8, 4, _progress, flex=True),
        Column("eta", "ETA", 7, 9, ends, _start_s, right=True, most=ETA_WIDE),
        number("rate", "tok/s", 5, 3, lambda r: r.tokens_per_s, rate),
        number("elapsed", "for", 5, 3, lambda r: r.elapsed_s, tone="soft", grows=True),
        number("ttft", "TTFT", 5, 1, lambda r: r.ttft_s, tone="soft"),
        number("waited", "waited", 6, 1, lambda r: r.waited_s, tone="soft"),
        words("server", "server", 6, 6, lambda r: r.backend, lambda view: view.state.running, _server_name),
        _MODEL,
        _CLIENT,
        _PROMPT,
    ),
    rows=lambda view: view.state.running,
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


RECENT: Grid[FinishedRequest] = Grid(
    columns=(
        Column(
            "at", "at", 8, 4, lambda r, s, w: Line(clock(r.finished_at), "faint"), lambda r: -r.finished_at
        ),
        _ID,
        Column("outcome", "outcome", 9, 9, _outcome, lambda r: r.outcome),
        _CLASS,
        Column("tokens", "predicted→real", 14, 5, _real_tokens, lambda r: r.tokens or 0, right=True),
        number("waited", "waited", 6, 7, lambda r: r.waited_s),
        number("sojourn", "total", 6, 8, lambda r: r.sojourn_s),
        Column("by", "by", 2, 3, _by, lambda r: r.dispatched_by),
        _MODEL,
        _CLIENT,
        number("status", "code", 4, 0, lambda r: r.status, lambda code: str(code or "–"), "faint"),
    ),
    rows=lambda view: sorted(view.state.recent, key=lambda row: row.finished_at, reverse=True),
    id=lambda row: row.id,
    text=lambda row: (
        f"{row.id} {row.model} {row.client} {row.endpoint} {row.outcome} {row.predicted.length_class}"
    ),
    empty=lambda view: "No request has ended yet." if view.link.state is LinkState.LIVE else "",
    # Ended requests are only appended.
    of=lambda view: (len(view.state.recent), view.state.recent[-1:], view.link.state, heeded(view)),
)
