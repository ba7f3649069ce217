"""The level of a patient from the findings, by rules that emergency departments publish.

The complaint gives a level (CTAS, KTAS; ESI 4: decision points A to C), then come the first-order modifiers
(Bullard et al., CJEM 2008) and the danger zone of vital signs (ESI, point D). Levels count from 0.
"""

from dataclasses import dataclass

from predictor.urgency.vitals import DANGER


@dataclass(frozen=True, slots=True)
class Findings:
    """Vital signs: beats and breaths a minute, mmHg, %, degrees Celsius; age in years.

    `mind` is A, V, P, U (AVPU) or C for confused; `pain` is 0 to 10 at `place`: central, peripheral or none.
    """

    pulse: int
    breaths: int
    systolic: int
    diastolic: int
    oxygen: int
    heat: float
    mind: str
    pain: int
    place: str
    chronic: bool
    age: float


def by_signs(found: Findings) -> int:
    """Return the least urgent level that vital signs allow, 4 if they say nothing."""
    _, pulse, breaths = next(row for row in DANGER if found.age <= row[0])
    mind = {"U": 0, "P": 0, "V": 1, "C": 1}.get(found.mind, 4)
    return min(_breathing(found, breaths), _circulation(found, pulse), mind, _heat(found, pulse, breaths))


def _breathing(found: Findings, most: float) -> int:
    if found.oxygen < 86 or found.breaths < 7 or found.breaths > most + 20:
        return 0
    if found.oxygen < 91 or found.breaths > most + 7 or found.breaths < 10:
        return 1
    return 2 if found.oxygen < 94 or found.breaths > most + 3 else 4


def _circulation(found: Findings, most: float) -> int:
    least = 90 if found.age >= 10 else 70 + 2 * int(found.age)
    if found.systolic < least - 15 or found.pulse < 35:
        return 0
    if found.systolic < least or found.pulse > most + 30 or found.pulse < 43 or found.systolic > 225:
        return 1
    return 2 if found.pulse > most + 12 or found.systolic > 205 else 4


def _heat(found: Findings, pulse: float, breaths: float) -> int:
    """Fever, and three signs of a systemic inflammation; cold."""
    if found.heat < 32.0:
        return 0
    septic = found.heat >= 38.5 and found.pulse > pulse and found.breaths > breaths
    young = found.heat >= 38.0 and found.age < 0.25
    if septic or young or found.heat < 34.5 or found.heat > 40.8:
        return 1
    return 2 if found.heat >= 39.6 else 4


def by_pain(found: Findings) -> int:
    """Return the level of pain alone (CTAS 2008, table of pain: severe from 8 on, moderate from 4 on)."""
    if found.place == "none" or not found.pain:
        return 4
    severity = 2 if found.pain >= 8 else 1 if found.pain >= 4 else 0
    acute = {"central": (3, 2, 1), "peripheral": (4, 3, 2)}[found.place]
    return min(4, acute[severity] + (1 if found.chronic else 0))


def level_of(complaint: int, found: Findings) -> int:
    """Return the level of a patient whose complaint alone would have level `complaint`.

    A life-threatening sign is immediate. Another modifier raises by one level, or two for a sign of level 1.
    """
    signs, pain = by_signs(found), by_pain(found)
    if signs == 0:
        return 0
    level = min(complaint, max(signs, complaint - 2 if signs == 1 else complaint - 1))
    return min(level, max(pain, complaint - 1, 1))
