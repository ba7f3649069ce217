"""Patients of one day, in other words than any training case: how much is read, and how much is wording."""

from predictor.research.training.urgency_cases.complaints import read_lines
from predictor.research.training.urgency_data import Case

NOUNS = {"M": "man", "F": "woman"}
MINDS = {
    "A": "fully conscious",
    "C": "disoriented",
    "V": "responsive to verbal stimuli",
    "P": "responsive to pain only",
    "U": "unconscious",
}
WAYS = {
    "walk": "on foot",
    "own car": "by private vehicle",
    "ambulance": "by emergency ambulance",
    "transfer": "from another hospital",
    "police": "with the police",
}


def read_day() -> list[Case]:
    """Return each patient of `day.txt` in each of its wordings."""
    lines = read_lines("day.txt")
    wordings = [line.removeprefix("~ ") for line in lines if line.startswith("~")]
    return [
        Case(wording.format(**record), int(record["level"]), record["line"])
        for record in map(_record, (line for line in lines if not line.startswith("~")))
        for wording in wordings
    ]


def _record(line: str) -> dict[str, str]:
    level, who, came, injured, why, diagnosis, mind, pain, signs = line.split(" | ")
    pressure, pulse, breaths, heat, oxygen = signs.split()
    upper, lower = pressure.split("/")
    return {
        "line": line, "level": level, "age": who[:-1], "noun": NOUNS[who[-1]], "way": WAYS[came],
        "injury": "an injury" if injured == "y" else "no injury", "why": why, "diagnosis": diagnosis,
        "mind": MINDS[mind], "pain": pain, "told": f"Pain rated {pain} of 10" if pain != "0" else "No pain",
        "upper": upper, "lower": lower, "pulse": pulse, "breaths": breaths, "heat": heat, "oxygen": oxygen,
    }  # fmt: skip
