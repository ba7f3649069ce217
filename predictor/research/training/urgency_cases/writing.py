"""Write training cases: `python -m predictor.research.training.urgency_cases.writing > cases.jsonl`.

Phrases stand in the text files beside this one, none taken from anywhere; this puts them into the forms that
such requests come in, with vital signs as a level has them. A case with signs worse than its complaint is
raised, as triage does.
"""

import json
import re
import sys
from random import Random

from predictor.research.training.urgency_cases.complaints import read_complaints, read_lines, read_lists
from predictor.research.training.urgency_cases.patients import one_patient
from predictor.research.training.urgency_cases.records import STYLES
from predictor.research.training.urgency_data import Case

SEED = 20
PATIENTS = 34
"""For each complaint and each level that it can have."""

TRIAGE_FORMS = 20
REQUEST_FORMS = 12
REQUEST_WEIGHT = 2.5
"""There are fewer of them than triage cases, and more of them in any traffic."""

TRIAGE_MIX = (0.35, 1.1, 1.65, 1.28, 0.6)
"""What patients of each level count for: the square root of how frequent they are in emergency departments,
about 2, 20, 45, 27 and 6 %, so that the rare levels are still heard."""

OPENINGS = (
    "",
    "",
    "",
    "",
    "Hi, ",
    "Hello, ",
    "please: ",
    "ok so ",
    "quick one, ",
    "Assistant, ",
    "[chat] ",
    "Message: ",
)
ENDINGS = (
    "",
    "",
    "",
    "",
    " Thanks.",
    " Please advise.",
    " What should I do?",
    " Give me steps.",
    " Short answer please.",
)

FEMALE = ("woman", "female", "lady", "F", "She", "her")
MALE = ("man", "male", "gentleman", "M", "He", "his")


def write_cases(seed: int = SEED) -> list[Case]:
    """Return all cases; the same for the same seed."""
    rng = Random(seed)  # noqa: S311 - for variety, not for secrets
    cases = _patients(rng)
    cases += [case for line in read_lines("triage.txt") for case in _triage(line, rng)]
    cases += [case for line in read_lines("requests.txt") for case in _requests(line, rng)]
    seen: dict[str, Case] = {}
    for case in cases:
        seen.setdefault(case.text, case)
    return list(seen.values())


LISTS = read_lists()


def read_apart() -> list[Case]:
    """Return the cases that no model learns from, each written by hand as a whole."""
    split = (line.split(" | ", 1) for line in read_lines("apart.txt"))
    return [Case(text, int(level), text) for level, text in split]


def _patients(rng: Random) -> list[Case]:
    made = []
    for complaint in read_complaints():
        for finding in complaint.findings:
            for _ in range(PATIENTS):
                patient = one_patient(complaint, finding, rng)
                text = rng.choice(STYLES)(patient, rng)
                made.append(Case(text, patient.level, complaint.name, TRIAGE_MIX[patient.level]))
    return made


# -- requests -----------------------------------------------------------------------------------------


def _requests(line: str, rng: Random) -> list[Case]:
    level, text = (part.strip() for part in line.split(" | ", 1))
    made = []
    for _ in range(REQUEST_FORMS):
        said = _filled(text, rng)
        said = rng.choice(OPENINGS) + said + rng.choice(ENDINGS)
        if rng.random() < 0.15:
            said = said.upper() if rng.random() < 0.3 else said + "!" * rng.randint(1, 4)
        made.append(Case(said, int(level), line, REQUEST_WEIGHT))
    return made


def _filled(text: str, rng: Random) -> str:
    """Return a text with one of each choice, and a line of each list that it names."""
    while True:
        found = re.search(r"\{([^{}]*)\}", text)
        if found is None:
            break
        text = text[: found.start()] + rng.choice(found[1].split("/")) + text[found.end() :]
    return re.sub(r"@(\w+)", lambda name: rng.choice(LISTS[name[1]]), text)


# -- triage -------------------------------------------------------------------------------------------


def _triage(line: str, rng: Random) -> list[Case]:
    level, complaint, suspected, said = (part.strip() for part in line.split(" | "))
    made = []
    for form in range(TRIAGE_FORMS):
        worse = rng.random() < 0.15
        signs = rng.randint(0, max(0, int(level) - 1)) if worse else int(level)
        text, with_signs = _vignette(form, complaint, suspected, said, signs, rng)
        found = _raised(int(level), signs) if with_signs else int(level)
        made.append(Case(text, found, line, TRIAGE_MIX[found]))
    return made


def _raised(level: int, signs: int) -> int:
    """Return the level of a complaint whose signs are those of another."""
    if signs >= level or signs > 1:
        return level
    if signs == 0:
        return 0 if level <= 2 else 1
    return 1 if level <= 2 else 2


def _vignette(
    form: int, complaint: str, suspected: str, said: str, signs: int, rng: Random
) -> tuple[str, bool]:
    """Return a text in one of the forms, and whether it tells vital signs."""
    sex = rng.choice((FEMALE, MALE))
    noun, pronoun, own = rng.choice(sex[:3]), sex[4], sex[5]
    age = rng.choice((rng.randint(18, 90), rng.randint(40, 85), rng.randint(2, 17)))
    came = rng.choice(
        (
            "walks in",
            "is brought by ambulance",
            "comes by private car",
            "arrives on foot",
            "is brought by relatives",
        )
    )
    if signs >= 3:
        came = rng.choice(("walks in", "comes by private car", "arrives on foot", "comes by bus"))
    spoken, told = _spoken(signs, rng), _noted(signs, rng)
    who = f"{age}-year-old {noun}"
    forms = (
        (f"{who} {came} with {complaint}. {told}", True),
        (f"{age}yo {sex[3]}, c/o {complaint}. {told}", True),
        (f'"{said}," says a {who} at the desk. {told}', True),
        (f"A {who} {came}, complaining of '{complaint}'. {spoken} Suspected diagnosis: {suspected}.", True),
        (
            f"Chief complaint: {complaint}\nAge/sex: {age} {sex[3]}\nVitals: {told}\nImpression: {suspected}",
            True,
        ),
        (f"Patient: {who}. Chief complaint {complaint}. {spoken} The physician thinks of {suspected}.", True),
        (f"{pronoun} says: {said}. {who}, {came}.", False),
        (f"{said}", False),
        (f"{said}. I am {age}.", False),
        (f"What triage level? {complaint}, {who}.", False),
        (f"Triage note: {complaint}; suspected {suspected}. {told}", True),
        (f"A {who} presents to the emergency department for {complaint}. {pronoun} {came}. {spoken}", True),
        (f"{complaint.capitalize()} in a {who}, {own} history is unremarkable. {suspected}.", False),
    )
    if form < len(forms):
        return forms[form]
    return _record(who, pronoun, complaint, suspected, signs, rng), True


def _record(who: str, pronoun: str, complaint: str, suspected: str, signs: int, rng: Random) -> str:
    """Return a triage record, put together of parts that each hospital words in its own way."""
    arrives, where, transport, injured = (
        rng.choice(LISTS[name]) for name in ("arrives", "departments", "transports", "injured")
    )
    arrival = rng.choice(
        (
            f"A {who} {arrives} the {where} {transport}",
            f"{who.capitalize()}, {transport},",
            f"This {who}, {injured}, {arrives} the {where}",
            f"Patient ({who})",
        )
    )
    reason = rng.choice(LISTS["reasons"]).format(complaint)
    aside = [text.format(pronoun) for text in rng.sample(LISTS["asides"], rng.randint(0, 3))]
    told = _spoken(signs, rng) if rng.random() < 0.6 else _noted(signs, rng)
    body = [*aside, told]
    rng.shuffle(body)
    end = [rng.choice(LISTS["impressions"]).format(suspected)] if rng.random() < 0.8 else []
    return " ".join([f"{arrival} {reason}.", *body, *end])


def _numbers(level: int, rng: Random) -> dict[str, float]:
    """Return vital signs as patients of a level have them."""
    normal: dict[str, float] = {
        "pulse": rng.randint(60, 92),
        "breaths": rng.randint(14, 19),
        "pressure": rng.randint(108, 152),
        "oxygen": rng.randint(96, 100),
        "heat": round(rng.uniform(36.1, 37.4), 1),
        "pain": rng.randint(*((0, 10), (4, 10), (2, 8), (1, 6), (0, 3))[level]),
        "mind": 0,
    }
    levels: dict[int, dict[str, float]] = {
        0: {
            "pulse": rng.choice((rng.randint(22, 42), rng.randint(132, 190))),
            "breaths": rng.choice((rng.randint(4, 8), rng.randint(30, 46))),
            "pressure": rng.choice((rng.randint(48, 82), rng.randint(55, 88), rng.randint(222, 250))),
            "oxygen": rng.randint(62, 88),
            "heat": rng.choice((round(rng.uniform(31.0, 34.8), 1), round(rng.uniform(39.2, 41.2), 1))),
            "mind": rng.choice((2, 3)),
        },
        1: {
            "pulse": rng.randint(112, 138),
            "breaths": rng.randint(23, 30),
            "pressure": rng.choice((rng.randint(86, 99), rng.randint(185, 218))),
            "oxygen": rng.randint(88, 93),
            "heat": round(rng.uniform(38.8, 40.2), 1),
            "mind": 1,
        },
        2: {
            "pulse": rng.randint(93, 112),
            "breaths": rng.randint(20, 22),
            "pressure": rng.choice((rng.randint(101, 110), rng.randint(155, 182))),
            "oxygen": rng.randint(94, 96),
            "heat": round(rng.uniform(37.8, 39.2), 1),
        },
        3: {
            "pulse": rng.randint(88, 98),
            "heat": round(rng.uniform(37.4, 38.3), 1),
            "pressure": rng.randint(138, 165),
        },
        4: {"pulse": rng.randint(80, 94), "pressure": rng.randint(130, 160)},
    }
    bad = levels[level]
    how_many = rng.randint(*((2, 4), (0, 2), (0, 1), (0, 1), (0, 1))[level])
    for name in rng.sample(sorted(bad), min(how_many, len(bad))):
        normal[name] = bad[name]
    return normal


MINDS = ("alert", "confused", "responds to voice", "unresponsive")
SPOKEN_MINDS = ("alert", "drowsy", "responding only to pain", "unresponsive")


def _noted(level: int, rng: Random) -> str:
    """Return vital signs as a nurse notes them."""
    n = _numbers(level, rng)
    heat = f"T {n['heat']}" if rng.random() < 0.7 else f"T {n['heat'] * 1.8 + 32:.0f}°F"
    low = int(n["pressure"] * rng.uniform(0.55, 0.68))
    parts = [
        f"BP {n['pressure']}/{low}",
        f"HR {n['pulse']}",
        f"RR {n['breaths']}",
        heat,
        f"SpO2 {n['oxygen']}%",
    ]
    if rng.random() < 0.35:
        rng.shuffle(parts)
        parts = parts[: rng.randint(2, 5)]
    if rng.random() < 0.6:
        parts.append(f"pain {n['pain']}/10")
    if n["mind"] or rng.random() < 0.4:
        parts.append(MINDS[int(n["mind"])])
    return rng.choice((", ", " ", "; ")).join(parts) + "."


def _spoken(level: int, rng: Random) -> str:
    """Return vital signs in sentences."""
    n = _numbers(level, rng)
    pain = f", pain level {n['pain']}" if rng.random() < 0.7 else ""
    pulse, breaths, heat, pressure = n["pulse"], n["breaths"], n["heat"], n["pressure"]
    mind = SPOKEN_MINDS[int(n["mind"])]
    sentences = (
        f"Temperature {heat} C, heart rate {pulse} bpm, respiratory rate {breaths},",
        f" blood pressure {pressure}/{int(pressure * 0.62)} mmHg{pain}. Mental state: {mind}.",
        f"The pulse is {pulse}, the systolic pressure {pressure} mmHg, respirations {breaths} a minute,",
        f" temperature {heat}°C{pain}. The patient is {mind}.",
        f"Vital signs: BP {pressure}/{int(pressure * 0.6)}, P {pulse}, R {breaths}, T {heat},",
        f" saturation {n['oxygen']} %{pain}.",
    )
    first = rng.choice((0, 2, 4))
    return sentences[first] + sentences[first + 1]


if __name__ == "__main__":
    for each in write_cases():
        sys.stdout.write(
            json.dumps({"prompt": each.text, "urgency": each.level, "source": each.source}) + "\n"
        )
