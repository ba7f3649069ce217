"""Patients as they come: a complaint, what is found, and all the rest that tells nothing of urgency."""

from dataclasses import dataclass
from random import Random

from predictor.research.training.urgency_cases.acuity import Findings, level_of
from predictor.research.training.urgency_cases.complaints import Complaint, Finding, read_lists

LISTS = read_lists()


@dataclass(frozen=True, slots=True)
class Patient:
    """Who came, for what, what was found, and how urgent that is. `detail` and `diagnosis` may be empty."""

    complaint: str
    detail: str
    diagnosis: str
    found: Findings
    level: int
    sex: str
    onset: str
    came: str
    injured: bool
    history: tuple[str, ...]
    denied: tuple[str, ...]

    @property
    def age(self) -> str:
        """The age as it is spoken of."""
        years = self.found.age
        return f"{years:.0f}-year-old" if years >= 2 else f"{max(1, round(years * 12))}-month-old"


def one_patient(complaint: Complaint, finding: Finding, rng: Random) -> Patient:
    """Return a patient of whom something is said; seldom is nothing, and the complaint counts as bare."""
    detail = rng.choice(finding.details) if rng.random() < 0.68 else ""
    diagnosis = rng.choice(finding.diagnoses) if rng.random() < (0.55 if detail else 0.88) else ""
    level = finding.level if detail or diagnosis else complaint.bare
    found = _found(complaint, level, rng)
    level = level_of(level, found)
    chance = (0.85, 0.5, 0.32, 0.12, 0.06)[level]
    return Patient(
        rng.choice(complaint.names),
        detail,
        diagnosis,
        found,
        level,
        rng.choice("MF") if complaint.name != "pregnancy" else "F",
        rng.choice(LISTS["long_onsets" if found.chronic else "onsets"]),
        rng.choice(LISTS["by_help" if rng.random() < chance else "alone"]),
        complaint.name in INJURIES,
        tuple(rng.sample(LISTS["history"], rng.choice((0, 0, 1, 1, 2, 3)))),
        tuple(rng.sample(LISTS["denials"], rng.choice((0, 0, 0, 1, 2, 2) if level else (0,)))),
    )


INJURIES = frozenset(
    ("head injury", "laceration", "upper limb injury", "lower limb injury", "major trauma", "burn")
)


def _found(complaint: Complaint, level: int, rng: Random) -> Findings:
    age = _age(complaint, rng)
    calm = _calm(age, rng)
    # Most who are urgent are so by their complaint, and have signs like everybody's.
    bad = rng.random() < (0.85, 0.4, 0.1, 0.05, 0.03)[level]
    signs = _bad(level, rng) if bad else {}
    calm.update(signs)
    altered = (complaint.name == "altered mind" and level <= 1) or (
        bad and len(signs) == 1 and rng.random() < 0.5
    )
    mind = rng.choice("PUU" if level == 0 else "VCC") if altered else "A"
    pain = 0
    if complaint.place != "none" and rng.random() < 0.85:
        pain = rng.choice(
            (
                (0, 5, 7, 8, 9, 10),
                (3, 5, 6, 7, 8, 9),
                (2, 3, 3, 4, 5, 6, 7, 8),
                (1, 2, 3, 3, 4, 5, 6),
                (0, 0, 1, 2, 3),
            )[level]
        )
    if complaint.name in ("fever", "cough and cold", "skin infection", "sick child") and rng.random() < 0.5:
        calm["heat"] = rng.uniform(37.8, 39.3)
    return Findings(
        int(calm["pulse"]),
        int(calm["breaths"]),
        int(calm["systolic"]),
        int(calm["systolic"] * rng.uniform(0.5, 0.72)),
        int(calm["oxygen"]),
        round(calm["heat"], 1),
        mind,
        pain,
        complaint.place,
        level >= 3 and rng.random() < 0.12,
        age,
    )


def _age(complaint: Complaint, rng: Random) -> float:
    if complaint.name == "sick child":
        return rng.choice((0.04, 0.1, 0.5, 1.0, 1.5, 2.0, 3.0, 5.0))
    if complaint.name == "pregnancy":
        return float(rng.randint(18, 44))
    return float(
        rng.choice(
            (
                rng.randint(16, 45),
                rng.randint(40, 70),
                rng.randint(60, 92),
                rng.randint(1, 15),
                rng.randint(30, 80),
            )
        )
    )


def _calm(age: float, rng: Random) -> dict[str, float]:
    """Return vital signs of somebody who is not in danger: excited, in pain, or as always."""
    young = max(0.0, 12.0 - age) / 12.0
    return {
        "pulse": min(max(rng.gauss(84 + 40 * young, 12), 50), 112 + 55 * young),
        "breaths": min(max(rng.gauss(18 + 10 * young, 1.6), 12), 22 + 16 * young),
        "systolic": min(max(rng.gauss(134 - 34 * young, 20), 96 - 16 * young), 198),
        "oxygen": rng.choice((95, 96, 97, 97, 98, 98, 98, 99, 99, 100, 100)),
        "heat": min(max(rng.gauss(36.7, 0.45), 35.6), 38.4),
    }  # fmt: skip


def _bad(level: int, rng: Random) -> dict[str, float]:
    """Return some vital signs as they are in danger of life (0) or short of it."""
    signs: dict[str, float] = {
        "pulse": rng.choice((rng.randint(36, 42), rng.randint(118, 150))),
        "breaths": rng.randint(25, 34),
        "systolic": rng.choice((rng.randint(76, 89), rng.randint(226, 245))),
        "oxygen": rng.randint(86, 91),
        "heat": rng.uniform(38.9, 40.6),
    }
    if level == 0:
        signs = {
            "pulse": rng.choice((rng.randint(20, 34), rng.randint(135, 190))),
            "breaths": rng.choice((rng.randint(3, 6), rng.randint(36, 48))),
            "systolic": rng.randint(45, 74),
            "oxygen": rng.randint(60, 85),
        }
    names = rng.sample(sorted(signs), rng.choice((1, 1, 2, 2, 3)))
    return {name: signs[name] for name in names}
