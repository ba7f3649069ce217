"""Reads vital signs in a text, and scores how abnormal they are.

Scores of 0 to 3 follow the National Early Warning Score (NEWS2, Royal College of Physicians, 2017, chart 1),
which is for adults: for children only oxygen, temperature and mind are scored.
"""

import re
from dataclasses import dataclass
from math import log1p

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]

MAX_READ = 900  # characters of each end of a text that are read
_NUMBER = r"(\d{1,3}(?:\.\d{1,2})?)"
_GAP = r"[\s:=(\"']{0,4}(?:rate|level|score|of|is|was|at|about)?[\s:=(]{0,3}"
_WORDS = r"[^\d.;\n,|/]{0,24}?"  # what may stand between a sign's whole name and its number


def _sign(whole: str, short: str) -> re.Pattern[str]:
    """Return what reads a number behind a sign's whole name, or right behind a short one."""
    return re.compile(rf"\b(?:(?:{whole})\b{_WORDS}|(?:{short})\b{_GAP}){_NUMBER}", re.IGNORECASE)


_SIGNS = {
    "pulse": _sign(r"heart ?rate|heart ?beat|pulse(?: rate)?|hr|pr", "p"),
    "breaths": _sign(
        r"respiratory (?:rate|frequency)|respirations?|breathing(?: rate)?|breathes|resp|rr", r"r"
    ),
    "oxygen": _sign(
        r"oxygen (?:sat\w*|level)|saturation|saturating|satting|pulse ox\w*|sp ?o2|o2 ?sat\w*|sats?", r"o2"
    ),
    "temperature": _sign(r"(?:body )?temperature|temp|bt", "t"),
    "pressure": _sign(r"systolic(?: blood)?(?: pressure)?|blood pressure|pressure|bp", "sbp"),
}
_ANOTHER = re.compile(r"[a-z] and \d", re.IGNORECASE)
_BY_UNIT = {
    "pulse": re.compile(rf"\b{_NUMBER} ?(?:bpm|beats)\b", re.IGNORECASE),
    "breaths": re.compile(rf"\b{_NUMBER} ?(?:breaths|times a minute)\b", re.IGNORECASE),
    "oxygen": re.compile(
        rf"\b{_NUMBER} ?(?:%|percent) (?:on|in|with) (?:room|ambient|oxygen|o2|ra\b)", re.IGNORECASE
    ),
    "temperature": re.compile(rf"\b{_NUMBER} ?(?:°|degrees|c\b|celsius)", re.IGNORECASE),
    "pressure": re.compile(r"\b(\d{2,3})(?: ?/ ?| over | systolic and )\d{2,3}\b", re.IGNORECASE),
}
"""Signs given without a name."""
_NO_DURATION = r"(?! ?(?:/\d{2,}[^\d]|days?|hours?|h\b|d\b|weeks?|min))"
_PAIN = re.compile(
    rf"\b(?:nrs\w*|vas|rating scale|pain (?:level|score|scale|rating|intensity|severity)|pain rated"
    rf"|(?:intensity|severity) of)\b[^\d\n.;|]{{0,24}}?{_NUMBER}\b"
    rf"|\b(?:rated|rates|rating|scored|scores)\b[^\d\n.;|]{{0,12}}?{_NUMBER}\b{_NO_DURATION}"
    rf"|\b{_NUMBER} (?:on|in|by) (?:the |a )?(?:nrs|vas|numeric|pain|visual)"
    rf"|\bpain(?:[\":]| is| was| rated| of| at| as)*\s{{0,2}}{_NUMBER}\b{_NO_DURATION}"
    rf"|{_NUMBER} ?(?:/|out of) ?10\b",
    re.IGNORECASE,
)
_NO_PAIN = re.compile(
    r"\b(?:no|denie[sd]|without|not in|free of)(?: any)? pain\b"
    r"|\bpain(?:\"?: ?\"?| is | was |, )?(?: ?(?:no|none|absent|denied)\b|-?(?:free|less)\b)",
    re.IGNORECASE,
)
_AGES = (
    (1.0, re.compile(r"(?<![\d.])(\d{1,3}(?:\.\d)?)[ -]{0,2}(?:years?|yrs?|y/?o|y\.o)\b", re.IGNORECASE)),
    (12.0, re.compile(r"\b(\d{1,2})[ -]?(?:mo|months?[ -]old)\b", re.IGNORECASE)),
    (
        1.0,
        re.compile(
            r"\b(?:aged?\"?(?: of|:)?\s{0,2}|[mf]/|(?:fe)?male,? |(?:wo)?man, )(\d{1,3})\b"
            r"|\b(\d{1,3}) ?[mf]\b",
            re.IGNORECASE,
        ),
    ),
)
"""Ways to give an age, and how many of their units make a year."""
_GCS = re.compile(r"\bgcs\b[^\d\n]{0,12}(\d{1,2})\b", re.IGNORECASE)
_ROUSED_BY = r"(?:responds?|response|responsive|responding|reacts?) (?:only )?to"
_COMA = r"unresponsive|unconscious|does not (?:respond|react|wake)|no response|comatose|stuporous"
_DAZED = r"confused|confusion|letharg\w+|drowsy|disoriented|not oriented|altered mental"
_MINDS = (
    (3, rf"{_COMA}|{_ROUSED_BY} pain|pain respons\w+|avpu:? [pu]"),
    (2, rf"{_DAZED}|{_ROUSED_BY} (?:voice|verbal)|verbal(?:ly)? respons\w+|avpu:? v"),
)
_MIND = tuple(
    (depth, re.compile(rf"(?<!not )(?<!no )(?<!never )\b(?:{said})\b", re.IGNORECASE))
    for depth, said in _MINDS
)
_AWAKE = re.compile(r"\b(?:alert|oriented|conscious|a&o|avpu:? a|gcs:? 15)\b", re.IGNORECASE)

DANGER = ((0.25, 180.0, 50.0), (3.0, 160.0, 40.0), (8.0, 140.0, 30.0), (200.0, 100.0, 20.0))
"""The danger zone of vital signs (ESI handbook, decision point D): up to an age in years, the pulse and the
breaths above which they are dangerous."""

NAMES = tuple(
    (
        "early warning, any at 3, at 2 or more, pulse, breaths, oxygen, temperature, pressure, mind, out of "
        "mind, awake, signs told, normal signs, shock index, danger zone, far in it, slow, septic, pain, "
        "pain told, severe pain, no pain, baby, child, over 65, over 80, length, shouting, exclamation, "
        "question, patient"
    ).split(", ")
)
FORMS = 4  # of the cues are of a text's form
CHILD = 12.0  # years: below, NEWS2 does not apply to pulse, breaths and pressure


@dataclass(frozen=True, slots=True)
class Signs:
    """Beats and breaths a minute, %, degrees Celsius, mmHg systolic, pain of 10, years; None if not given.

    `mind` is 3 for unresponsive or responsive to pain only, 2 for altered, else 0; `awake` means that the
    text calls the mind normal.
    """

    pulse: float | None = None
    breaths: float | None = None
    oxygen: float | None = None
    temperature: float | None = None
    pressure: float | None = None
    pain: float | None = None
    age: float | None = None
    mind: int = 0
    awake: bool = False

    @property
    def told(self) -> int:
        """How many of pulse, breaths, oxygen, temperature and pressure are given."""
        signs = (self.pulse, self.breaths, self.oxygen, self.temperature, self.pressure)
        return sum(value is not None for value in signs)

    @property
    def of_patient(self) -> bool:
        """Whether the text is about a patient: it gives an age or two signs."""
        return self.age is not None or self.told > 1


def read_signs(text: str) -> Signs:
    """Return the vital signs in a text; numbers out of their bounds are ignored."""
    if len(text) > 2 * MAX_READ:
        text = f"{text[:MAX_READ]}\n{text[-MAX_READ:]}"
    found = {name: _first(pattern, text, *BOUNDS[name]) for name, pattern in _SIGNS.items()}
    for name, pattern in _BY_UNIT.items():
        if found[name] is None:
            found[name] = _first(pattern, text, *BOUNDS[name])
    heat = found["temperature"]
    if heat is not None and heat > MAX_CELSIUS:
        found["temperature"] = (heat - 32.0) / 1.8 if heat >= MIN_FAHRENHEIT else None
    return Signs(
        **found, pain=_pain(text), age=_age(text), mind=_mind(text), awake=_AWAKE.search(text) is not None
    )


def _pain(text: str) -> float | None:
    told = _first(_PAIN, text, 0.0, 10.0)
    return 0.0 if told is None and _NO_PAIN.search(text) else told


def _age(text: str) -> float | None:
    for units, pattern in _AGES:
        years = _first(pattern, text, 0.0, 110.0 * units)
        if years is not None:
            return years / units
    return None


def _mind(text: str) -> int:
    """Return how deep a mind is said to be altered."""
    coma = _first(_GCS, text, 3.0, 15.0)
    if coma is not None and coma < 14.0:
        return 3 if coma < 9.0 else 2
    return next((depth for depth, pattern in _MIND if pattern.search(text)), 0)


MAX_CELSIUS, MIN_FAHRENHEIT = 45.0, 86.0
"""No living body has a temperature between these two in either scale."""

BOUNDS = {
    "pulse": (15.0, 260.0),
    "breaths": (2.0, 80.0),
    "oxygen": (40.0, 100.0),
    "temperature": (26.0, 110.0),
    "pressure": (30.0, 290.0),
}
"""Bounds of plausible numbers."""


def _first(pattern: re.Pattern[str], text: str, low: float, high: float) -> float | None:
    """Return the first number within its bounds. "Pulse and 36.6 for temperature" tells no pulse."""
    for match in pattern.finditer(text):
        value = float(next(each for each in match.groups() if each is not None))
        if low <= value <= high and not _ANOTHER.search(match[0]):
            return value
    return None


def _score(value: float | None, *steps: tuple[float, int]) -> int:
    """Return the score of the first step whose upper bound is not exceeded."""
    if value is None:
        return 0
    return next(score for bound, score in steps if value <= bound)


def cues(text: str, signs: Signs) -> Floats:
    """Return the cues of a text, (len(NAMES),), each from about 0 to 1.

    A text about a patient has those of the signs, any other those of the form: thirty degrees in a question
    about the weather are no hypothermia, and a long record is not urgent for its length.
    """
    told = signs if signs.of_patient else Signs(pain=signs.pain, mind=signs.mind, awake=signs.awake)
    age = told.age
    child = age is not None and age < CHILD
    scores = _warnings(told, child)
    total, worst = sum(scores.values()), max(scores.values())
    shock = told.pulse / told.pressure if told.pulse and told.pressure and not child else 0.0
    pain = told.pain
    return np.array(
        [
            min(total / 10.0, 1.2),
            worst == 3,
            sum(score >= 2 for score in scores.values()) / 3.0,
            *(score / 3.0 for score in scores.values()),
            told.mind == 3,
            told.awake and not told.mind,
            told.told / 5.0,
            told.told >= 3 and total == 0,
            min(shock, 2.0),
            *_danger(told),
            0.0 if pain is None else pain / 10.0,
            pain is not None,
            pain is not None and pain >= 8.0,
            pain == 0.0,
            age is not None and age < 1.0,
            child,
            age is not None and age >= 65.0,
            age is not None and age >= 80.0,
            *((0.0,) * FORMS if signs.of_patient else _form(text)),
            signs.of_patient,
        ],
        np.float32,
    )


def _form(text: str) -> tuple[float, float, float, bool]:
    """Return a text's length, its share of capitals, its exclamation marks, and whether it asks."""
    letters = [each for each in text[:MAX_READ] if each.isalpha()]
    shouted = sum(each.isupper() for each in letters) / len(letters) if len(letters) > 8 else 0.0
    return log1p(len(text)) / 8.0, shouted, min(text.count("!"), 5) / 5.0, "?" in text


def _warnings(signs: Signs, child: bool) -> dict[str, int]:
    """Return the early warning score of each sign."""
    inf = float("inf")
    return {
        "pulse": 0 if child else _score(signs.pulse, (40, 3), (50, 1), (90, 0), (110, 1), (130, 2), (inf, 3)),
        "breaths": 0 if child else _score(signs.breaths, (8, 3), (11, 1), (20, 0), (24, 2), (inf, 3)),
        "oxygen": _score(signs.oxygen, (91, 3), (93, 2), (95, 1), (inf, 0)),
        "temperature": _score(signs.temperature, (35, 3), (36, 1), (38, 0), (39, 1), (inf, 2)),
        "pressure": 0 if child else _score(signs.pressure, (90, 3), (100, 2), (110, 1), (219, 0), (inf, 3)),
        "mind": 3 if signs.mind else 0,
    }


def _danger(signs: Signs) -> tuple[float, bool, float, float]:
    """Return the shares of signs in the danger zone of the age, whether one is far in it, and the shares of
    dangerously slow pulse and breaths and of signs of sepsis.
    """
    age = 40.0 if signs.age is None else signs.age
    _, fast, breathless = next(row for row in DANGER if age <= row[0])
    pulse, breaths = signs.pulse or 80.0, signs.breaths or 16.0
    oxygen, heat = signs.oxygen or 98.0, signs.temperature or 37.0
    zone = (pulse > fast) + (breaths > breathless) + (oxygen < 92.0)
    far = pulse > fast + 30.0 or breaths > breathless + 8.0 or oxygen < 88.0
    slow = (pulse < 43.0) + (breaths < 9.0)
    septic = (pulse > fast - 8.0) + (breaths > breathless) + (heat >= 38.3 or heat < 36.0)
    return zone / 3.0, far, slow / 2.0, septic / 3.0
