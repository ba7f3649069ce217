"""The ways in which hospitals, ambulances and patients write one and the same patient down."""

import json
from collections.abc import Callable
from random import Random

from predictor.research.training.urgency_cases.acuity import Findings
from predictor.research.training.urgency_cases.patients import LISTS, Patient

MINDS = {
    "A": (
        "alert",
        "A&O x3",
        "Ment: alert",
        "Alert",
        "GCS 15",
        "awake and oriented",
        "AVPU A",
        "mental: alert",
    ),
    "C": ("confused", "disoriented", "GCS 14, confused", "lethargic", "drowsy but answers", "not oriented"),
    "V": ("responds to voice", "verbal response", "AVPU V", "drowsy", "GCS 12", "Ment: verbal"),
    "P": ("responds to pain only", "AVPU P", "GCS 8", "stuporous", "Ment: pain response", "pain response"),
    "U": ("unresponsive", "AVPU U", "GCS 3", "comatose", "no response", "Ment: unresponsive"),
}
SEXES = {"M": ("male", "man", "gentleman", "He", "his"), "F": ("female", "woman", "lady", "She", "her")}

Style = Callable[[Patient, Random], str]


def _heat(found: Findings, rng: Random) -> str:
    return f"{found.heat}" if rng.random() < 0.8 else f"{found.heat * 1.8 + 32:.1f}F"


def _short(patient: Patient, rng: Random, most: float = 0.9) -> str:
    """Return the signs in a nurse's shorthand; now and then only some of them, or none."""
    found = patient.found
    parts = [
        rng.choice(("BP {}/{}", "BP: {}/{}", "BP {}-{}")).format(found.systolic, found.diastolic),
        rng.choice(("HR {}", "P {}", "PR {}", "HR: {}", "pulse {}")).format(found.pulse),
        rng.choice(("RR {}", "R {}", "RR: {}", "resp {}")).format(found.breaths),
        rng.choice(("T {}", "BT {}", "Temp {}", "BT: {}")).format(_heat(found, rng)),
        rng.choice(("SpO2 {}%", "SpO2 {}% RA", "sat {}%", "SpO2: {}", "O2 sat {}% on room air")).format(
            found.oxygen
        ),
    ]
    if rng.random() < 0.4:
        parts.pop()
    if rng.random() > most:
        parts = rng.sample(parts, rng.randint(0, 3))
    said = rng.choice((" ", ", ", "; ", " / ")).join(parts)
    if patient.found.place != "none" and rng.random() < 0.8:
        said += rng.choice((". NRS {}", ", pain {}/10", ". Pain {}", ", VAS {}", " NRS: {}")).format(
            found.pain
        )
    if found.mind != "A" or rng.random() < 0.6:
        said += rng.choice((". ", ", ")) + rng.choice(MINDS[found.mind])
    return said.strip(" .,;") + "."


def _spoken(patient: Patient, rng: Random) -> str:
    """Return the signs in sentences."""
    found, own = patient.found, SEXES[patient.sex][4]
    pulse, breaths, upper, lower = found.pulse, found.breaths, found.systolic, found.diastolic
    said = rng.choice(LISTS["signs"]).format(
        upper=upper, lower=lower, pulse=pulse, breaths=breaths, heat=found.heat, oxygen=found.oxygen, own=own
    )
    if found.place != "none" and rng.random() < 0.8:
        said += rng.choice(
            (
                " The pain is rated {} out of 10.",
                " Pain score {}.",
                " Pain {}/10.",
                " Reported pain level is {}.",
            )
        ).format(found.pain)
    if found.mind != "A" or rng.random() < 0.6:
        word = rng.choice(MINDS[found.mind])
        said += rng.choice(
            (" Mental status: {}.", " The patient is {}.", " Level of consciousness: {}.")
        ).format(word)
    return said


def _why(patient: Patient) -> str:
    return ", ".join(part for part in (patient.complaint, patient.detail) if part)


def _past(patient: Patient, rng: Random) -> str:
    parts = []
    if patient.history:
        parts.append(
            rng.choice(("PMH: ", "Hx ", "PMHx ", "History of ", "Past history: "))
            + ", ".join(patient.history)
        )
    if patient.denied:
        parts.append(
            rng.choice(("Denies ", "No ", "denies ", "(-) ", "without "))
            + rng.choice((", ", " or ")).join(patient.denied)
        )
    rng.shuffle(parts)
    return ". ".join(parts) + ("." if parts else "")


def _suspected(patient: Patient, rng: Random) -> str:
    if not patient.diagnosis:
        return ""
    return (
        rng.choice(
            ("Imp: {}", "r/o {}", "Dx {}", "Impression: {}", "Dx: {}", "Suspected {}", "DDx {}")
        ).format(patient.diagnosis)
        + "."
    )


def _joined(*parts: str) -> str:
    return " ".join(part for part in parts if part)


def nurse(patient: Patient, rng: Random) -> str:
    """A triage nurse's line."""
    years = (
        f"{patient.found.age:.0f}"
        if patient.found.age >= 1
        else f"{max(1, round(patient.found.age * 12))} mo"
    )
    who = rng.choice(("{a} yo {s}", "{a}{s}", "{a} y/o {s}", "{s}/{a}", "{a}yo{s}")).format(
        a=years, s=patient.sex
    )
    said = rng.choice(("c/o {}", "CC: {}", "{}", "pt c/o {}", "presents w/ {}", "here for {}")).format(
        _why(patient)
    )
    return _joined(
        f"{who} {said} {patient.onset}.", _short(patient, rng), _past(patient, rng), _suspected(patient, rng)
    )


def table(patient: Patient, rng: Random) -> str:
    """A form, a line for each field."""
    found = patient.found
    rows = [
        ("Age", patient.age), ("Sex", SEXES[patient.sex][0]), ("Chief complaint", _why(patient)),
        ("Arrival", patient.came), ("Injury", "yes" if patient.injured else "no"),
        ("Mental", rng.choice(MINDS[found.mind])), ("Pain", "yes" if found.pain else "no"),
        ("NRS", found.pain),
        ("SBP", found.systolic), ("DBP", found.diastolic), ("HR", found.pulse), ("RR", found.breaths),
        ("BT", found.heat), ("Saturation", found.oxygen), ("Diagnosis", patient.diagnosis or "pending"),
        ("Onset", patient.onset), ("History", ", ".join(patient.history) or "none"),
    ]  # fmt: skip
    kept = [row for row in rows if row[0] in ("Chief complaint", "Age") or rng.random() < 0.8]
    if rng.random() < 0.3:
        rng.shuffle(kept)
    return rng.choice(("\n", "; ", ", ", " | ")).join(f"{name}: {value}" for name, value in kept)


def as_json(patient: Patient, rng: Random) -> str:
    """A record as programs send it."""
    found = patient.found
    record = {
        "age": round(found.age, 1), "sex": patient.sex, "complaint": _why(patient), "arrival": patient.came,
        "vitals": {"sbp": found.systolic, "dbp": found.diastolic, "hr": found.pulse, "rr": found.breaths,
                   "temp": found.heat, "spo2": found.oxygen},
        "mental_status": rng.choice(MINDS[found.mind]), "pain": found.pain, "diagnosis": patient.diagnosis,
        "history": list(patient.history),
    }  # fmt: skip
    return json.dumps({name: value for name, value in record.items() if value or value == 0})


def report(patient: Patient, rng: Random) -> str:
    """Full sentences, as somebody writes who has a table before him."""
    noun, (pronoun, own) = rng.choice(SEXES[patient.sex][:2]), SEXES[patient.sex][3:]
    who = f"{patient.age} {noun}"
    place = rng.choice(LISTS["departments"])
    afoot = patient.came == "on foot"
    way = patient.came if afoot else rng.choice(("by {}", "via {}", "using {}")).format(patient.came)
    injury = rng.choice(LISTS["injuries" if patient.injured else "no_injuries"]).strip("-")
    first = rng.choice(LISTS["reports"]).format(
        who=who, place=place, way=way, injury=injury, why=_why(patient), onset=patient.onset, pronoun=pronoun,
        own=own.capitalize(), came=patient.came,
    )  # fmt: skip
    first = first.replace(" ,", ",").replace(" .", ".")
    told = _spoken(patient, rng) if rng.random() < 0.9 else ""
    past = f"{pronoun} has a history of {', '.join(patient.history)}." if patient.history else ""
    denied = f"{pronoun} denies {' or '.join(patient.denied)}." if patient.denied else ""
    end = ""
    if patient.diagnosis:
        end = rng.choice(LISTS["ends"]).format(patient.diagnosis)
    middle = [told, past, denied]
    rng.shuffle(middle)
    return _joined(first, *middle, end)


def vignette(patient: Patient, rng: Random) -> str:
    """A case as a textbook tells it."""
    noun, pronoun = rng.choice(SEXES[patient.sex][1:3]), SEXES[patient.sex][3]
    first = rng.choice(LISTS["vignettes"]).format(
        complaint=patient.complaint, who=f"{patient.age} {noun}", pronoun=pronoun, onset=patient.onset,
        detail=patient.detail or patient.diagnosis, came=patient.came.capitalize(),
    )  # fmt: skip
    past = f"{pronoun} has {' and '.join(patient.history)}." if patient.history else ""
    denied = f"{pronoun} denies {', '.join(patient.denied)}." if patient.denied else ""
    return _joined(first, denied, past, (_spoken if rng.random() < 0.5 else _short)(patient, rng))


def terse(patient: Patient, rng: Random) -> str:
    """The complaint and hardly anything else."""
    end = patient.diagnosis if rng.random() < 0.8 else ""
    parts = [
        _why(patient),
        end,
        f"{patient.found.age:.0f}{patient.sex}" if patient.found.age >= 1 else "infant",
    ]
    if patient.found.mind != "A":
        parts.append(rng.choice(MINDS[patient.found.mind]))
    return rng.choice((", ", " / ", " - ", "; ")).join(part for part in parts if part)


def radio(patient: Patient, rng: Random) -> str:
    """An ambulance announces itself, or one that drives a patient with nothing much."""
    noun = SEXES[patient.sex][0]
    unit = rng.choice(("Medic 12", "Rescue 4", "Ambulance 7", "EMS", "Unit 31", "BLS crew"))
    return _joined(
        f"{unit} inbound with a {patient.age} {noun}, {_why(patient)}, onset {patient.onset}.",
        _short(patient, rng),
        _past(patient, rng),
        f"ETA {rng.randint(2, 25)} minutes.",
        _suspected(patient, rng),
    )


def soap(patient: Patient, rng: Random) -> str:
    """A doctor's note."""
    parts = (
        f"S: {_why(patient)} {patient.onset}. {_past(patient, rng)}",
        f"O: {_short(patient, rng)}",
        f"A: {patient.diagnosis or 'as above'}",
        rng.choice(("P: see orders", "P: to be seen", "")),
    )
    return rng.choice(("\n", " ")).join(part.strip() for part in parts if part)


def asked(patient: Patient, rng: Random) -> str:
    """A question to a model about a patient."""
    ask = rng.choice(LISTS["asks"])
    who = f"{patient.age} {SEXES[patient.sex][0]}"
    told = _joined(_short(patient, rng, 0.6), _suspected(patient, rng))
    text = f"{who} with {_why(patient)} {patient.onset}. {told}"
    return f"{ask} {text}" if rng.random() < 0.5 else f"{text} {ask}"


def handover(patient: Patient, rng: Random) -> str:
    """SBAR."""
    who = f"{patient.age} {SEXES[patient.sex][0]}"
    return _joined(
        f"Situation: {_why(patient)}. Background: {who}, {_past(patient, rng) or 'nil'}",
        f"Assessment: {_short(patient, rng)} {_suspected(patient, rng)}",
        f"Recommendation: {rng.choice(('please review', 'see when you can', 'advise', 'for assessment'))}.",
    )


def letter(patient: Patient, rng: Random) -> str:
    """A general practitioner sends a patient."""
    noun = rng.choice(SEXES[patient.sex][1:3])
    thanks = rng.choice(
        ("Many thanks.", "Kind regards.", "Please see and advise.", "Thank you for seeing this patient.")
    )
    thought = f"I wonder about {patient.diagnosis}." if patient.diagnosis else ""
    helped = "I called an ambulance." if patient.came in LISTS["by_help"] else ""
    return _joined(
        f"Dear colleague, this {patient.age} {noun} has {patient.complaint}",
        f"({patient.detail})." if patient.detail else f"{patient.onset}.",
        _spoken(patient, rng) if rng.random() < 0.6 else "", _past(patient, rng), thought, helped, thanks,
    )  # fmt: skip


STYLES: tuple[Style, ...] = (
    nurse, table, report, vignette, terse, radio, soap, asked, handover, letter, as_json, report, nurse,
)  # fmt: skip
