"""Why people come to an emergency department: complaints, what is said of each, and the level of that."""

from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
FILES = ("complaints_1.txt", "complaints_2.txt")


@dataclass(frozen=True, slots=True)
class Finding:
    """What makes a complaint one of `level`: in the words of who asks, and as what is suspected."""

    level: int
    details: tuple[str, ...]
    diagnoses: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Complaint:
    """A reason to come. `place` is where it hurts: central, peripheral, or none; `bare` its level when
    nothing more is said.
    """

    name: str
    place: str
    bare: int
    names: tuple[str, ...]
    findings: tuple[Finding, ...]


def read_lines(name: str) -> list[str]:
    """Return the lines of a text file beside this one that say something."""
    lines = (HERE / name).read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def read_lists() -> dict[str, list[str]]:
    """Return the lists of `lists.txt` by name."""
    lists: dict[str, list[str]] = {}
    for line in read_lines("lists.txt"):
        name, _, text = line.partition(" | ")
        lists.setdefault(name, []).append(text)
    return lists


def read_complaints() -> tuple[Complaint, ...]:
    """Return all complaints of `complaints_1.txt` and `complaints_2.txt`; their head says the form."""
    found: list[Complaint] = []
    for line in (line for file in FILES for line in read_lines(file)):
        kind, _, text = line.partition(" ")
        if kind == "@":
            name, place, bare = (part.strip() for part in text.split("|"))
            found.append(Complaint(name, place, int(bare), (), ()))
            continue
        last = found.pop()
        if kind == "=":
            found.append(Complaint(last.name, last.place, last.bare, _several(text), last.findings))
            continue
        details, _, diagnoses = text.partition(" ~ ")
        finding = Finding(int(kind), _several(details), _several(diagnoses))
        found.append(Complaint(last.name, last.place, last.bare, last.names, (*last.findings, finding)))
    return tuple(found)


def _several(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(";"))
