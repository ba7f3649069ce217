"""The three tables of requests: running, queued, ended."""

from collections.abc import Callable, Iterable
from itertools import groupby
from operator import attrgetter
from typing import Any

from clairvoyant_cli.state.snapshot import FinishedRequest, QueuedRequest, RunningRequest
from tui.formatting import (
    CLASS_LETTER,
    bar,
    brief,
    class_letter,
    class_tone,
    clock,
    count,
    duration,
    duration_range,
    middle_cut,
    model_name,
    rate,
    short_names,
    spark,
)
from tui.history import RECENTLY_S, SAMPLES
from tui.styled_text import Line, Tone
from tui.table_layout import Column, Grid, heeded, number, words
from tui.view_state import ViewState

AnyRequest = QueuedRequest | RunningRequest | FinishedRequest
Rows = Callable[[ViewState], Iterable[AnyRequest]]
Sign = tuple[str, Tone]
LEVELS: tuple[Sign, ...] = (  # what each urgency level means, and its tone
    ("immediate", "alert"),
    ("high risk", "warn"),
    ("urgent", "ink"),
    ("less urgent", "soft"),
    ("not urgent", "faint"),
)
NAME_CELLS = 22  # of a model or a client; the page of a request has them whole
ETA_WIDE = 14  # from this width on, the time that is expected stands before the range
_STATE: dict[str, Sign] = {
    "connecting": ("◌", "soft"),
    "prefill": ("◔", "soft"),
    "decoding": ("▶", "accent"),
    "silent": ("!", "alert"),
    "releasing": ("×", "warn"),
}
_BY: dict[str, Sign] = {"tau": ("τ", "alert"), "promoted": ("▲", "accent")}
OUTCOME: dict[str, Sign] = {
    "completed": ("✓ done", "good"),
    "client_cancelled": ("← left", "soft"),
    "operator_cancelled": ("cancelled", "soft"),
    "upstream_error": ("✗ failed", "alert"),
    "rejected": ("⊘ refused", "warn"),
    "timeout": ("✗ timeout", "alert"),
}
_ROWS_STEP, _MOST_ROWS = 4, 100  # of the queue
_NOW_S = 0.005
_TREND = 12  # cells of the trend of the queue
_NEVER_S = 1e12


def tau_fraction(row: QueuedRequest, view: ViewState) -> float | None:
    """Return how much of its tau a wait has used; None if the guard does not apply to it."""
    return (row.age_s + view.drift_s) / row.tau_s if row.tau_s else None


def tau_tone(row: QueuedRequest) -> Tone:
    """Return the tone of a wait: only the request that the guard starts next stands out."""
    return "alert" if row.cause == "guard" and row.rank == 1 else "soft"


def compared(row: QueuedRequest) -> Line:
    """Compare its place and start with those in order of arrival."""
    if row.rank_fcfs is None or row.held:
        return Line()
    places = row.rank_fcfs - row.rank
    sooner_s = (row.eta_fcfs_s or 0.0) - (row.eta_s or 0.0)
    if not places and abs(sooner_s) < _NOW_S:
        return Line("as by arrival", "soft")
    line = Line(f"{'up' if places > 0 else 'down'} {abs(places):,}, " if places else "", "soft")
    line.add(duration(abs(sooner_s)), "good" if sooner_s >= 0 else "warn")
    return line.add(" sooner" if sooner_s >= 0 else " later", "soft")


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


def starts(row: QueuedRequest, view: ViewState, width: int) -> Line:
    if row.refused_in_s is not None:
        return Line("refused ", "soft").add(duration(row.refused_in_s - view.drift_s), "alert")
    if row.held or row.cause == "session":
        return Line("held" if row.held else "parked", "warn")
    if row.cause == "down" or view.state.mode == "paused":
        return Line("–", "faint")
    return _in(row, view, width, Line("next", "accent"))


def ends(row: RunningRequest, view: ViewState, width: int) -> Line:
    return _in(row, view, width, Line("soon", "soft"))  # longer than predicted


def progress(row: RunningRequest) -> float:
    """Return the share of the predicted tokens so far; it stays under one until the answer ends."""
    return min(row.tokens / max(row.predicted.expected_tokens, 1.0), 0.97)


def _id(row: AnyRequest, view: ViewState, width: int) -> Line:
    """The end of an id tells more than its beginning."""
    return Line(row.id if len(row.id) <= width else f"…{row.id[1 - width :]}")


def _class(row: AnyRequest, view: ViewState, width: int) -> Line:
    """The predicted class, and the real one if the answer fell into another."""
    name = row.predicted.length_class
    real = (row.real_class if isinstance(row, FinishedRequest) else "") or name
    line = Line(" " * (real == name)).add(class_letter(name), class_tone(name))
    return line if real == name else line.add("→", "faint").add(class_letter(real), class_tone(real))


def _level(row: AnyRequest, view: ViewState, width: int) -> Line:
    return (
        Line("·", "track") if row.urgency is None else Line(str(row.urgency), LEVELS[min(row.urgency, 4)][1])
    )


def _prompt(row: QueuedRequest | RunningRequest, view: ViewState, width: int) -> Line:
    """The beginning of the prompt, as much as there is room for."""
    return Line(" ".join((row.prompt or "")[: 2 * width].split()), "soft")


def _server_name(name: str, view: ViewState) -> str:
    """Its name by what differs; nothing of the only one."""
    short = short_names([each.name for each in view.state.backends])
    return short.get(name, name) if len(short) > 1 else ""


def _only_on(names: tuple[str, ...], view: ViewState) -> str:
    """The servers that can take a request, or those that cannot; nothing if all that are up can."""
    others = [each.name for each in view.state.backends if each.name not in names and each.state != "down"]
    if not names or not others:
        return ""
    few, word = (others, "not ") if len(others) < len(names) else (names, "")
    return word + ", ".join(_server_name(each, view) for each in few)


def _start_s(row: QueuedRequest | RunningRequest) -> float:
    return _NEVER_S if row.eta_s is None else row.eta_s


def _words(row: AnyRequest, *more: str) -> str:
    return " ".join((row.id, row.model, row.client, row.endpoint, row.predicted.length_class, *more))


def _ids(rows: Rows) -> Column[Any]:
    return Column("id", 4, 10, _id, lambda r: r.id, holds=lambda view: (row.id[-9:] for row in rows(view)))


def _names(rows: Rows, field: str, width: int, form: Callable[[str], str]) -> Column[Any]:
    """Make a column of names; where room lacks they are cut in the middle, as they differ at their ends."""
    of = attrgetter(field)
    return Column(
        field,
        width,
        6,
        lambda row, view, width: Line(middle_cut(form(of(row)), width), "soft"),
        of,
        holds=lambda view: {middle_cut(form(name), NAME_CELLS) for name in {of(row) for row in rows(view)}},
    )


def _models_and_clients(rows: Rows) -> tuple[Column[Any], Column[Any]]:
    return _names(rows, "model", 8, model_name), _names(rows, "client", 6, str)


_CLASS: Column[Any] = Column(
    "class", 3, 8, _class, lambda r: "SML".find(class_letter(r.predicted.length_class)), "cls"
)
_LEVEL: Column[Any] = Column(  # one without a level counts as one of the middle
    "level", 3, 7, _level, lambda r: 2 if r.urgency is None else r.urgency, "lvl", right=True, when=heeded
)
_PROMPT: Column[Any] = Column("prompt", 16, 7, _prompt, flex=True, most=200, when=lambda view: view.prompts)


def _queued(view: ViewState) -> tuple[QueuedRequest, ...]:
    return view.state.queue


def _runs(view: ViewState) -> tuple[RunningRequest, ...]:
    return view.state.running


def _ended(view: ViewState) -> list[FinishedRequest]:
    return sorted(view.state.recent, key=lambda row: row.finished_at, reverse=True)


def _eta_holds(view: ViewState) -> Iterable[str]:
    refused_s = [row.refused_in_s for row in _queued(view) if row.refused_in_s is not None]
    return (f"refused {duration(max(refused_s))}" if refused_s else "12–40s",)


def _age_bar(row: QueuedRequest, view: ViewState, width: int) -> Line:
    fraction = tau_fraction(row, view)
    return Line() if fraction is None else bar(fraction, width, tau_tone(row))


def _queue_tokens(row: QueuedRequest, view: ViewState, width: int) -> Line:
    """The expected tokens; of an answer that was cut, those so far before them."""
    if row.cuts:
        return Line("½", "accent").add(f"{brief(row.tokens)}/{brief(row.predicted.expected_tokens)}")
    return Line("~", "faint").add(count(row.predicted.expected_tokens))


def _held(view: ViewState) -> Iterable[str]:
    return ("½1.0k/1.0k" if any(row.cuts for row in _queued(view)) else "tokens",)


def _queue_words(row: QueuedRequest) -> str:
    flags = f"{'held ' * row.held}{'promoted ' * row.promoted}{'suspended ' * bool(row.cuts)}"
    return _words(row, flags, "" if row.urgency is None else f"level{row.urgency}")


def _queue_empty(view: ViewState) -> str:
    if view.lost:
        return view.lost
    if view.snapshot is None:
        return f"Looking for a daemon at {view.where}"
    busy, slots = view.snapshot.slots
    if not slots:
        return "The queue is empty, and no server is up."
    at_once = busy < slots and view.snapshot.mode == "serving"
    return f"The queue is empty{': a new request starts at once' if at_once else ''}."


QUEUE: Grid[QueuedRequest] = Grid(
    columns=(
        # A mark stands before the rank.
        number("rank", 2, 9, "rank", str, "faint", "#", holds=lambda view: (f"{view.state.waits:3}",)),
        _ids(_queued),
        _CLASS,
        _LEVEL,
        words("why", 5, 8, "cause", _queued, tone=attrgetter("tone")),
        Column(
            "tokens", 6, 10, _queue_tokens, lambda r: r.predicted.expected_tokens, right=True, holds=_held
        ),
        Column("eta", 7, 9, starts, _start_s, "ETA", right=True, holds=_eta_holds, most=ETA_WIDE),
        number("age", 6, 7, "age_s", grows=True),
        Column("bar", 6, 3, _age_bar, title="of τ", flex=True, when=lambda s: not s.prompts),
        words("only", 4, 5, "backends", _queued, _only_on, title="only on"),
        words("priority", 3, 5, "priority", _queued, lambda n, view: f"{n:+d}" if n else "", title="pri"),
        *_models_and_clients(_queued),
        _PROMPT,
    ),
    rows=_queued,
    text=_queue_words,
    empty=_queue_empty,
    total=lambda view: view.state.waits,
)


def _state_mark(row: RunningRequest, view: ViewState, width: int) -> Line:
    by = _BY.get(row.dispatched_by) if row.state == "decoding" else None
    return Line(*(by or _STATE.get(row.state, ("?", "warn"))))


def _progress(row: RunningRequest, view: ViewState, width: int) -> Line:
    if row.state in ("connecting", "prefill", "silent", "releasing"):
        return Line(row.state, "alert" if row.state == "silent" else "faint")
    return bar(progress(row), width, class_tone(row.predicted.length_class))


def _tokens(row: RunningRequest, view: ViewState, width: int) -> Line:
    over = row.tokens > row.predicted.q90_tokens > 0
    so_far = brief(row.tokens) if row.estimated else count(row.tokens)
    line = Line("~" * row.estimated, "faint").add(so_far, "warn" if over else "strong")
    return line.add("/", "faint").add(brief(row.predicted.expected_tokens), "soft")


def _running_empty(view: ViewState) -> str:
    if view.snapshot is None or view.lost:
        return ""
    if view.snapshot.mode == "paused":
        return "Paused. Resume with P."
    if not any(server.is_there for server in view.snapshot.backends):
        return "No server takes requests now."
    if view.snapshot.waits:
        return "Idle. No request of the queue may start yet."
    return f"Idle. Point a client at http://{view.snapshot.listen} instead of the server's own address."


RUNNING: Grid[RunningRequest] = Grid(
    columns=(
        number("slot", 4, 6, "slot", count, "faint"),
        Column("state", 2, 8, _state_mark, title=" ", right=True),
        _ids(_runs),
        _CLASS,
        _LEVEL,
        Column("tokens", 10, 10, _tokens, lambda r: r.tokens, right=True),
        Column("progress", 8, 6, _progress, title=" ", flex=True),
        Column("eta", 7, 9, ends, _start_s, "ETA", right=True, most=ETA_WIDE),
        number("rate", 5, 3, "tokens_per_s", rate, title="tok/s"),
        number("elapsed", 5, 3, "elapsed_s", tone="soft", title="for", grows=True),
        number("ttft", 5, 1, "ttft_s", tone="soft", title="TTFT"),
        number("waited", 6, 1, "waited_s", tone="soft"),
        words("server", 6, 6, "backend", _runs, _server_name),
        *_models_and_clients(_runs),
        _PROMPT,
    ),
    rows=_runs,
    text=lambda row: _words(row, row.state),
    empty=_running_empty,
)


def _outcome(row: FinishedRequest, view: ViewState, width: int) -> Line:
    return Line(*OUTCOME.get(row.outcome, (row.outcome, "warn")))


def _real_tokens(row: FinishedRequest, view: ViewState, width: int) -> Line:
    line = Line(count(row.predicted.expected_tokens), "soft").add(" → ", "faint")
    over = (row.tokens or 0) > row.predicted.q90_tokens > 0
    return line.add(count(row.tokens), "faint" if row.tokens is None else "warn" if over else "strong")


RECENT: Grid[FinishedRequest] = Grid(
    columns=(
        Column("at", 8, 4, lambda r, s, w: Line(clock(r.finished_at), "faint"), lambda r: -r.finished_at),
        _ids(_ended),
        Column("outcome", 9, 9, _outcome, lambda r: r.outcome),
        _CLASS,
        Column("tokens", 14, 10, _real_tokens, lambda r: r.tokens or 0, "predicted→real", right=True),
        number("waited", 6, 7, "waited_s"),
        number("sojourn", 6, 8, "sojourn_s", title="total"),
        Column("by", 2, 3, lambda r, s, w: Line(*_BY.get(r.dispatched_by, ("",))), lambda r: r.dispatched_by),
        *_models_and_clients(_ended),
        number("status", 4, 0, "status", lambda code: str(code or "–"), "faint", "code"),
    ),
    rows=_ended,
    text=lambda row: _words(row, row.outcome),
    empty=lambda view: "No request has ended yet." * view.live,
    # Ended requests are only appended.
    of=lambda view: (len(view.state.recent), view.state.recent[-1:], view.live, heeded(view)),
)


def slots(view: ViewState) -> int:
    return sum(server.slots for server in view.state.backends)


def queue_rows(view: ViewState) -> int:
    """Return the rows that the queue needs: those of its last half minute, in steps."""
    longest = max([view.state.waits, *(each.waiting for each in view.history.last(RECENTLY_S))])
    return min(_ROWS_STEP * -(-max(1, longest) // _ROWS_STEP), _MOST_ROWS)


def running_facts(view: ViewState) -> Line:
    rate = sum(job.tokens_per_s or 0.0 for job in view.state.running)
    return Line(f" {rate:.0f}", "strong").add(" tok/s ", "soft") if rate else Line()


def trend(view: ViewState) -> Line:
    """The longest queue of each part of the last ten minutes; a part stands still while time goes on."""
    parts = groupby(view.history.samples, lambda each: each.at // (SAMPLES / _TREND))
    waiting = [max(each.waiting for each in part) for _, part in parts]
    return Line(spark(waiting, _TREND), "faint") if any(waiting) else Line()


def queue_facts(view: ViewState) -> Line:
    """The trend of the queue, and the requests of each class, and of each urgency level if it is heeded."""
    state = view.state
    if not state.queue:
        return Line()
    line = Line(" ").join(trend(view)).add(" ")
    for name, letter in CLASS_LETTER.items():
        waiting = getattr(state.waiting, name)
        line.add(f"{count(waiting)}{letter} " if waiting else "", name)
    levels = [each for each in state.urgency.levels if each.waiting and state.urgency.heeded]
    line.add("level " if levels else "", "faint")
    for each in levels:
        line.add(f"{each.level}", LEVELS[each.level][1]).add(f":{count(each.waiting)} ", "soft")
    return line
