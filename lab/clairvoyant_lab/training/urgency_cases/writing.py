"""Write the cases that the urgency model is trained on.

Phrases and forms are in the text files beside this module. A patient is a reason to come, findings as a level
has them, and details that do not matter for urgency; a form puts them into words. The shipped model was
trained on an earlier set of forms around the same phrases.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random

from clairvoyant_lab.training.dataset import Case
from clairvoyant_lab.training.urgency_cases.acuity import Findings, level_of

SEED = 20
PATIENTS = 30  # for each complaint and each level that it can have
TRIAGE_PATIENTS = 20  # for each line of `triage.txt`
BARE_SHARE = 0.15  # of the cases in forms without vital signs
REQUEST_FORMS = 12
REQUEST_WEIGHT = 2.5  # there are fewer of them than triage cases, and more of them in any traffic

TRIAGE_MIX = (0.35, 1.1, 1.65, 1.28, 0.6)
"""Weights of the patients of each level: the square root of how frequent they are in emergency departments,
about 2, 20, 45, 27 and 6 %, so that the rare levels still count."""


@dataclass(frozen=True, slots=True)
class Reason:
    """A reason to come at one level. `place` is where it hurts, `bare` the level of the name alone."""

    source: str
    place: str
    bare: int
    names: list[str]
    level: int
    details: list[str]
    diagnoses: list[str]


def read_lines(name: str) -> list[str]:
    """Return the lines of a text file beside this one, without comments and empty ones."""
    lines = (Path(__file__).parent / name).read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


LISTS: dict[str, list[str]] = {}
for _line in read_lines("lists.txt"):
    _name, _, _text = _line.partition(" | ")
    LISTS.setdefault(_name, []).append(_text.replace("\\n", "\n"))


def read_reasons() -> list[Reason]:
    """Return the complaints of `complaints_1.txt` and `complaints_2.txt`; their head explains the form."""
    reasons, names, source, place, bare = [], list[str](), "", "", "0"
    for line in read_lines("complaints_1.txt") + read_lines("complaints_2.txt"):
        kind, _, text = line.partition(" ")
        if kind == "@":
            source, place, bare = (part.strip() for part in text.split("|"))
        elif kind == "=":
            names = _several(text)
        else:
            details, _, diagnoses = text.partition(" ~ ")
            said = _several(details), _several(diagnoses)
            reasons.append(Reason(source, place, int(bare), names, int(kind), *said))
    return reasons


def read_triage() -> list[Reason]:
    """Return the reasons of `triage.txt`."""
    reasons = []
    for line in read_lines("triage.txt"):
        level, complaint, suspected, said = (part.strip() for part in line.split(" | "))
        reasons.append(Reason(line, "none", int(level), [complaint], int(level), [said], [suspected]))
    return reasons


def read_apart() -> list[Case]:
    """Return the cases that no model is trained on, each written by hand as a whole."""
    split = (line.split(" | ", 1) for line in read_lines("apart.txt"))
    return [Case(text, int(level), text) for level, text in split]


def read_day() -> list[Case]:
    """Return the patients of `day.txt`, each in several wordings; no model is trained on them."""
    minds = {"A": "fully conscious", "C": "disoriented", "V": "responsive to verbal stimuli"}
    minds |= {"P": "responsive to pain only", "U": "unconscious"}
    ways = {"walk": "on foot", "own car": "by private vehicle", "ambulance": "by emergency ambulance"}
    ways |= {"transfer": "from another hospital", "police": "with the police"}
    lines, cases = read_lines("day.txt"), []
    wordings = [line.removeprefix("~ ") for line in lines if line.startswith("~")]
    for line in (line for line in lines if not line.startswith("~")):
        level, who, came, injured, why, diagnosis, mind, pain, signs = line.split(" | ")
        fields = dict(zip(("bp", "pulse", "breaths", "heat", "oxygen"), signs.split(), strict=True))
        fields["upper"], fields["lower"] = fields["bp"].split("/")
        fields |= {"age": who[:-1], "noun": {"M": "man", "F": "woman"}[who[-1]], "way": ways[came]}
        fields |= {"injury": "an injury" if injured == "y" else "no injury", "why": why, "pain": pain}
        fields |= {"told": f"Pain rated {pain} of 10" if pain != "0" else "No pain", "mind": minds[mind]}
        cases += [Case(each.format(**fields, diagnosis=diagnosis), int(level), line) for each in wordings]
    return cases


def write_cases(seed: int = SEED) -> list[Case]:
    """Return all training cases; the same for the same seed."""
    rng = Random(seed)  # noqa: S311 - for variety, not for secrets
    cases = [patient(reason, rng) for reason in read_reasons() for _ in range(PATIENTS)]
    cases += [patient(reason, rng) for reason in read_triage() for _ in range(TRIAGE_PATIENTS)]
    cases += [request(line, rng) for line in read_lines("requests.txt") for _ in range(REQUEST_FORMS)]
    return list({case.text: case for case in reversed(cases)}.values())


def request(line: str, rng: Random) -> Case:
    """Return a request to a language model in one of its forms."""
    level, text = (part.strip() for part in line.split(" | ", 1))
    said = "".join(filled(each, {}, rng) for each in ("@opening", text, "@ending"))
    if rng.random() < 0.15:
        said = said.upper() if rng.random() < 0.3 else said + "!" * rng.randint(1, 4)
    return Case(said, int(level), line, REQUEST_WEIGHT)


def patient(reason: Reason, rng: Random) -> Case:
    """Return a patient in one of the forms; the level is that of the bare complaint where nothing is said."""
    detail = rng.choice(reason.details) if rng.random() < 0.68 else ""
    diagnosis = rng.choice(reason.diagnoses) if rng.random() < (0.55 if detail else 0.88) else ""
    level = reason.level if detail or diagnosis else reason.bare
    found = findings(reason, level, rng)
    bare = rng.random() < BARE_SHARE
    if not bare:
        level = level_of(level, found)
    fields = _fields(reason, detail, diagnosis, level, found, rng)
    text = filled("@bare" if bare else "@form", fields, rng)
    return Case(" ".join(re.split(" +", text)).strip(), level, reason.source, TRIAGE_MIX[level])


def filled(text: str, fields: Mapping[str, str], rng: Random) -> str:
    """Return a text with its choices, lists, fields and optional parts filled in, as in `lists.txt`."""
    while (found := re.search(r"\{([^{}]*)\}|@([a-zA-Z_]+)", text)) is not None:
        chosen = rng.choice(LISTS[found[2]] if found[2] else found[1].split("/"))
        text = text[: found.start()] + chosen + text[found.end() :]

    def optional(part: re.Match[str]) -> str:
        return part[1] if all(fields[name] for name in re.findall(r"\$([a-z]+)", part[1])) else ""

    return re.sub(r"\$([a-z]+)", lambda name: fields[name[1]], re.sub(r"\[([^\[\]]*)\]", optional, text))


def _fields(
    reason: Reason, detail: str, diagnosis: str, level: int, found: Findings, rng: Random
) -> dict[str, str]:
    complaint = rng.choice(reason.names)
    sex = rng.choice("MF") if reason.source != "pregnancy" else "F"
    noun = rng.choice(("man", "male", "gentleman") if sex == "M" else ("woman", "female", "lady"))
    years, months = f"{found.age:.0f}", f"{max(1, round(found.age * 12))}"
    with_help = rng.random() < (0.85, 0.5, 0.32, 0.12, 0.06)[level]
    came = rng.choice(LISTS["by_help" if with_help else "alone"])
    history = rng.sample(LISTS["history"], rng.choice((0, 0, 1, 1, 2, 3)))
    denied = rng.sample(LISTS["denials"], rng.choice((0, 0, 0, 1, 2, 2) if level else (0,)))
    mind = filled(f"@mind_{found.mind}", {}, rng)
    return {
        "complaint": complaint,
        "detail": detail,
        "why": ", ".join(filter(None, (complaint, detail))),
        "diagnosis": diagnosis,
        "suspicion": diagnosis or "pending",
        "onset": rng.choice(LISTS["long_onsets" if found.chronic else "onsets"]),
        "came": came,
        "way": came if came == "on foot" else f"by {came}",
        "history": ", ".join(history),
        "past": ", ".join(history) or "none",
        "denied": " or ".join(denied),
        "sex": sex,
        "noun": noun,
        "pronoun": "He" if sex == "M" else "She",
        "own": "his" if sex == "M" else "her",
        "age": f"{found.age:.1f}",
        "years": years if found.age >= 1 else f"{months} mo",
        "who": f"{years}-year-old {noun}" if found.age >= 2 else f"{months}-month-old {noun}",
        "bp": f"{found.systolic}/{found.diastolic}",
        "upper": str(found.systolic),
        "lower": str(found.diastolic),
        "pulse": str(found.pulse),
        "breaths": str(found.breaths),
        "heat": str(found.heat),
        "fahrenheit": f"{found.heat * 1.8 + 32:.1f}",
        "oxygen": str(found.oxygen) if found.oxygen < 94 or rng.random() < 0.65 else "",
        "pain": str(found.pain) if found.place != "none" and rng.random() < 0.8 else "",
        "mentality": mind,
        "mind": mind if found.mind != "A" or rng.random() < 0.6 else "",
        "open": "{",
        "close": "}",
    }


def findings(reason: Reason, level: int, rng: Random) -> Findings:
    """Return findings as patients of a level have them."""
    age = _age(reason.source, rng)
    signs = _calm(age, rng)
    # Most who are urgent are so by their complaint, and have signs like everybody's.
    bad = _bad(level, rng) if rng.random() < (0.85, 0.4, 0.1, 0.05, 0.03)[level] else {}
    signs.update(bad)
    altered = (reason.source == "altered mind" and level <= 1) or (len(bad) == 1 and rng.random() < 0.5)
    pain = 0
    if reason.place != "none" and rng.random() < 0.85:
        pain = rng.randint(*((0, 10), (3, 9), (2, 8), (1, 6), (0, 3))[level])
    feverish = ("fever", "cough and cold", "skin infection", "sick child")
    if reason.source in feverish and rng.random() < 0.5:
        signs["heat"] = rng.uniform(37.8, 39.3)
    return Findings(
        int(signs["pulse"]),
        int(signs["breaths"]),
        int(signs["systolic"]),
        int(signs["systolic"] * rng.uniform(0.5, 0.72)),
        int(signs["oxygen"]),
        round(signs["heat"], 1),
        rng.choice("PUU" if level == 0 else "VCC") if altered else "A",
        pain,
        reason.place,
        level >= 3 and rng.random() < 0.12,
        age,
    )


def _age(source: str, rng: Random) -> float:
    if source == "sick child":
        return rng.choice((0.04, 0.1, 0.5, 1.0, 1.5, 2.0, 3.0, 5.0))
    if source == "pregnancy":
        return float(rng.randint(18, 44))
    return float(rng.randint(*rng.choice(((16, 45), (40, 70), (60, 92), (1, 15), (30, 80)))))


def _calm(age: float, rng: Random) -> dict[str, float]:
    """Return vital signs of a patient who is not in danger: excited, in pain, or as usual."""
    young = max(0.0, 12.0 - age) / 12.0
    return {
        "pulse": min(max(rng.gauss(84 + 40 * young, 12), 50), 112 + 55 * young),
        "breaths": min(max(rng.gauss(18 + 10 * young, 1.6), 12), 22 + 16 * young),
        "systolic": min(max(rng.gauss(134 - 34 * young, 20), 96 - 16 * young), 198),
        "oxygen": rng.choice((95, 96, 97, 97, 98, 98, 98, 99, 99, 100, 100)),
        "heat": min(max(rng.gauss(36.7, 0.45), 35.6), 38.4),
    }


def _bad(level: int, rng: Random) -> dict[str, float]:
    """Return one to three vital signs in danger of life (level 0) or short of it."""
    ranges: dict[str, tuple[tuple[int, int], ...]] = {
        "pulse": ((20, 34), (135, 190)) if level == 0 else ((36, 42), (118, 150)),
        "breaths": ((3, 6), (36, 48)) if level == 0 else ((25, 34),),
        "systolic": ((45, 74),) if level == 0 else ((76, 89), (226, 245)),
        "oxygen": ((60, 85),) if level == 0 else ((86, 91),),
    }
    if level:
        ranges["heat"] = ((39, 40),)
    names = rng.sample(sorted(ranges), rng.choice((1, 1, 2, 2, 3)))
    return {name: rng.randint(*rng.choice(ranges[name])) for name in names}


def _several(text: str) -> list[str]:
    return [part.strip() for part in text.split(";")]
