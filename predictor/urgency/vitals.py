"""Vital signs in a text, and how far they are from what they should be.

Each sign is scored from 0 to 3 as in the National Early Warning Score (NEWS2, Royal College of Physicians,
2017, chart 1). Its scores are for adults: of children only oxygen, temperature and mind are scored.
"""

import re
from dataclasses import dataclass
from math import log1p

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]

MAX_READ = 4000
"""Characters of each end of a text that are looked at."""

_NUMBER = r"(\d{1,3}(?:\.\d{1,2})?)"
_GAP = r"[\s:=(]{0,3}(?:rate|level|of|is|was|at|about)?[\s:=(]{0,3}"
_SIGNS = {
    "pulse": re.compile(rf"\b(?:heart rate|pulse|hr|p)\b{_GAP}{_NUMBER}", re.IGNORECASE),
    "breaths": re.compile(
        rf"\b(?:respiratory rate|respirations?|resp|rr|breathing)\b{_GAP}{_NUMBER}", re.IGNORECASE
    ),
    "oxygen": re.compile(
        rf"\b(?:sp ?o2|o2 ?sats?|sats?|saturation|pulse ox\w*)\b{_GAP}{_NUMBER}", re.IGNORECASE
    ),
    "temperature": re.compile(rf"\b(?:temperature|temp|t)\b{_GAP}{_NUMBER}", re.IGNORECASE),
    "pressure": re.compile(
        rf"\b(?:systolic(?: blood)? pressure|blood pressure|bp|sbp)\b{_GAP}{_NUMBER}", re.IGNORECASE
    ),
}
_PAIN = re.compile(rf"\b(?:pain|nrs|vas)\b[^\d\n.;]{{0,24}}?{_NUMBER}|{_NUMBER} ?/ ?10\b", re.IGNORECASE)
_AGE = re.compile(r"\b(\d{1,3}) ?-? ?(year|yr|y/?o|month|week|day)s?\b", re.IGNORECASE)
_MINDS = (
    r"unresponsive|unconscious|does not (?:respond|react|wake)|no response|comatose",
    r"(?:responds?|response|responsive|reacts?) (?:only )?to (?:pain|voice)|(?:pain|verbal) respons\w+",
    r"confused|confusion|letharg\w+|drowsy|disoriented|altered mental",
)
_MIND = re.compile(rf"\b(?:{'|'.join(_MINDS)})\b", re.IGNORECASE)

NAMES = (
    "early warning",
    "any at 3",
    "at 2 or more",
    "pulse",
    "breaths",
    "oxygen",
    "temperature",
    "pressure",
    "mind",
    "signs told",
    "normal signs",
    "shock index",
    "pain",
    "pain told",
    "baby",
    "child",
    "over 65",
    "over 80",
    "length",
    "shouting",
    "exclamation",
    "question",
)


@dataclass(frozen=True, slots=True)
class Signs:
    """What was read: numbers in their usual units (beats and breaths a minute, %, degrees Celsius, mmHg
    systolic, pain of 10, years), None where nothing is told. `mind` is 3 where it is altered, else 0.
    """

    pulse: float | None = None
    breaths: float | None = None
    oxygen: float | None = None
    temperature: float | None = None
    pressure: float | None = None
    pain: float | None = None
    age: float | None = None
    mind: int = 0


def read_signs(text: str) -> Signs:
    """Return the vital signs that a text tells; what cannot be one is left out."""
    if len(text) > 2 * MAX_READ:
        text = f"{text[:MAX_READ]}\n{text[-MAX_READ:]}"
    found = {name: _first(pattern, text, *BOUNDS[name]) for name, pattern in _SIGNS.items()}
    heat = found["temperature"]
    if heat is not None and heat > 60.0:
        found["temperature"] = (heat - 32.0) / 1.8
    age = _AGE.search(text)
    units = {"month": 12.0, "week": 52.0, "day": 365.0}
    years = float(age[1]) / units.get(age[2].lower(), 1.0) if age else None
    mind = 3 if _MIND.search(text) else 0
    return Signs(**found, pain=_first(_PAIN, text, 0.0, 10.0), age=years, mind=mind)


BOUNDS = {
    "pulse": (15.0, 260.0),
    "breaths": (2.0, 80.0),
    "oxygen": (40.0, 100.0),
    "temperature": (26.0, 110.0),
    "pressure": (30.0, 290.0),
}
"""What a number must lie between to be believed."""


def _first(pattern: re.Pattern[str], text: str, low: float, high: float) -> float | None:
    for match in pattern.finditer(text):
        value = float(next(each for each in match.groups() if each is not None))
        if low <= value <= high:
            return value
    return None


def _score(value: float | None, *steps: tuple[float, int]) -> int:
    """Return the score of the first step whose upper bound is not exceeded."""
    if value is None:
        return 0
    return next(score for bound, score in steps if value <= bound)


def cues(text: str) -> Floats:
    """Return what of a text its words do not tell, (len(NAMES),), each about from 0 to 1."""
    signs = read_signs(text)
    child = signs.age is not None and signs.age < 12.0
    inf = float("inf")
    scores = {
        "pulse": 0 if child else _score(signs.pulse, (40, 3), (50, 1), (90, 0), (110, 1), (130, 2), (inf, 3)),
        "breaths": 0 if child else _score(signs.breaths, (8, 3), (11, 1), (20, 0), (24, 2), (inf, 3)),
        "oxygen": _score(signs.oxygen, (91, 3), (93, 2), (95, 1), (inf, 0)),
        "temperature": _score(signs.temperature, (35, 3), (36, 1), (38, 0), (39, 1), (inf, 2)),
        "pressure": 0 if child else _score(signs.pressure, (90, 3), (100, 2), (110, 1), (219, 0), (inf, 3)),
        "mind": signs.mind,
    }
    told = [signs.pulse, signs.breaths, signs.oxygen, signs.temperature, signs.pressure]
    known = sum(value is not None for value in told)
    total, worst = sum(scores.values()), max(scores.values())
    shock = signs.pulse / signs.pressure if signs.pulse and signs.pressure and not child else 0.0
    letters = [each for each in text[:MAX_READ] if each.isalpha()]
    shouted = sum(each.isupper() for each in letters) / len(letters) if letters else 0.0
    age = signs.age
    return np.array(
        [
            min(total / 10.0, 1.2),
            worst == 3,
            sum(score >= 2 for score in scores.values()) / 3.0,
            *(score / 3.0 for score in scores.values()),
            known / 5.0,
            known >= 3 and total == 0,
            min(shock, 2.0),
            0.0 if signs.pain is None else signs.pain / 10.0,
            signs.pain is not None,
            age is not None and age < 1.0,
            child,
            age is not None and age >= 65.0,
            age is not None and age >= 80.0,
            log1p(len(text)) / 8.0,
            shouted if len(letters) > 8 else 0.0,
            min(text.count("!"), 5) / 5.0,
            "?" in text,
        ],
        np.float32,
    )
