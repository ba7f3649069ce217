"""Formats numbers for an operator: short, aligned, without useless digits."""

import re
from collections.abc import Callable, Iterable
from itertools import takewhile
from math import ceil, floor
from time import localtime, strftime

from rich.cells import set_cell_size

from tui.styled_text import Line, Tone, cells

NOTHING = "–"
_UNNOTICED_S, _UNNOTICED = 0.05, 0.005  # differences between two waits, and their share
ENOUGH = 20  # answers for a percentage
_FORMAT = re.compile(r"[-.]gguf(?=:|$)", re.IGNORECASE)
_EIGHTHS = "▁▂▃▄▅▆▇█"
_WORDS = re.compile(r"(?<=[-_.:/])|(?<=\D)(?=\d)")
CLASS_LETTER: dict[Tone, str] = {"short": "S", "medium": "M", "long": "L"}


def duration(seconds: float | None) -> str:
    """0.42s 4.2s 42s 4m02 1h04 3d02h: at most six cells."""
    if seconds is None:
        return NOTHING
    seconds = max(0.0, seconds)
    if seconds < 59.5:
        digits = 2 if seconds < 0.995 else 1 if seconds < 9.95 else 0
        return f"{seconds:.{digits}f}s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}"
    if whole < 86_400:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}"
    return f"{whole // 86_400}d{whole % 86_400 // 3600:02d}h"


def duration_range(low_s: float, high_s: float) -> str:
    """0–2s 12–40s 45s–3m 12–40m 1–3h: rounded outwards, at most seven cells."""
    low, low_unit = _whole(low_s, floor)
    high, high_unit = _whole(high_s, ceil)
    if low == high and low_unit == high_unit:
        return f"{high}{high_unit}"
    return f"{low}{'' if low_unit == high_unit else low_unit}–{high}{high_unit}"


def _whole(seconds: float, rounded: Callable[[float], int]) -> tuple[int, str]:
    for unit, size in (("s", 1), ("m", 60), ("h", 3600)):
        if (number := rounded(max(0.0, seconds) / size)) < 100:
            return number, unit
    return rounded(seconds / 86_400), "d"


def model_name(name: str) -> str:
    """Return a model's name without its folder or owner, and without the format of its file."""
    return _FORMAT.sub("", name.rsplit("/", 1)[-1])


def middle_cut(text: str, width: int) -> str:
    """Cut text to `width` cells in its middle: names differ at their ends."""
    if cells(text) <= width:
        return text
    half = (width - 1) // 2
    return f"{set_cell_size(text, width - 1 - half)}…{text[-half:]}"


def short_names(names: Iterable[str], least: int = 4) -> dict[str, str]:
    """Shorten names to the words that differ, such as ports, `least` cells or more."""
    words = {name: [word for word in _WORDS.split(name) if word] for name in names}
    every = [*words.values()]
    if len(every) < 2:
        return {name: name for name in words}
    begin = len([*takewhile(lambda words: len(set(words)) == 1, zip(*every, strict=False))])
    for end in range(begin + 1, max(map(len, every)) + 1):
        if len({tuple(each[begin:end]) for each in every}) == len(every):
            break
    while begin and min(sum(map(cells, each[begin:end])) for each in every) < least:
        begin -= 1
    return {name: "".join(each[begin:end]).strip("-_.:/") for name, each in words.items()}


def count(value: float | None) -> str:
    """950 1,204 48.2k 1.3M: at most six cells."""
    if value is None:
        return NOTHING
    if value < 9_999.5:
        return f"{value:,.0f}"
    return f"{value / 1_000:.1f}k" if value < 999_950 else f"{value / 1_000_000:.1f}M"


def brief(value: float) -> str:
    """950 1.2k 48k 1.3M: at most four cells."""
    if value < 999.5:
        return f"{value:.0f}"
    if value < 9_950:
        return f"{value / 1_000:.1f}k"
    return f"{value / 1_000:.0f}k" if value < 999_500 else f"{value / 1_000_000:.0f}M"


def share(value: float | None) -> str:
    """A fraction as a whole percentage."""
    return NOTHING if value is None else f"{value * 100:.0f}%"


def gained(wait_s: float, reference_s: float) -> Tone:
    """The tone of a wait beside another: neither good nor bad if nobody notices the difference."""
    if abs(wait_s - reference_s) < max(_UNNOTICED_S, _UNNOTICED * reference_s):
        return "soft"
    return "good" if wait_s < reference_s else "warn"


def change(value: float, reference: float, of: int) -> str:
    """How much a wait is off another: −40% +12% ×12; ±0% if nobody notices the difference, nothing if they
    are `of` too few answers.
    """
    if not reference or of < ENOUGH:
        return ""
    ratio = value / reference
    if gained(value, reference) == "soft":
        return "±0%"
    return f"×{ratio:.0f}" if ratio >= 10.5 else f"{'−' if ratio < 1 else '+'}{share(abs(ratio - 1.0))}"


def rate(value: float | None) -> str:
    """Something per second, with three significant digits."""
    return f"{value:.1f}" if value is not None and value < 99.95 else count(value)


def size(value_bytes: float | None) -> str:
    """512M 4.7G 18.2G, in powers of 1024."""
    if value_bytes is None:
        return NOTHING
    gib = value_bytes / 2**30
    if gib < 0.995:
        return f"{value_bytes / 2**20:.0f}M"
    return f"{gib:.1f}G" if gib < 99.95 else f"{gib:.0f}G"


def clock(at: float) -> str:
    """A moment as local wall-clock time, to the second."""
    try:
        return strftime("%H:%M:%S", localtime(at))
    except (ValueError, OverflowError, OSError):
        return NOTHING  # no time of a calendar: the daemon's clock is wrong


def bar(fraction: float, width: int, tone: Tone = "accent") -> Line:
    """A gauge in half cells. Filled and empty differ in weight, so it reads without colour."""
    halves = max(round(min(1.0, max(0.0, fraction)) * width * 2), fraction > 0)
    full = "━" * (halves // 2) + "╸" * (halves % 2)
    return Line(full, tone).add("─" * (width - len(full)), "track")


def spark(series: Iterable[float], width: int, top: float | None = None) -> str:
    """The last `width` values as block characters, the newest at the right."""
    values = [*series][-width:] if width > 0 else []
    top = top or max(values, default=0.0) or 1.0
    return "".join(_EIGHTHS[min(7, max(0, round(value / top * 7)))] for value in values)


def class_tone(length_class: str) -> Tone:
    """The tone of a length class; plain ink for an unknown one."""
    return next((tone for tone in CLASS_LETTER if tone == length_class), "ink")


def class_letter(length_class: str) -> str:
    """S, M or L; the first letter of an unknown class."""
    return length_class[:1].upper() or "?"
