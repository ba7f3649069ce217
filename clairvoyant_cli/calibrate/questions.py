"""The questions of a calibration: a hundred with short answers, and as many with long ones.

Each is asked once in a run, so that no answer comes out of a cache.
"""

from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from random import Random

from clairvoyant_cli.backends.client import Question
from predictor.record import SHORT_BELOW_TOKENS

READING_TOKENS = 64
SHORT_CAP = SHORT_BELOW_TOKENS - 1
LONG_CAP = 1024  # a long answer may be Long (800 tokens and more) without one chatty model taking all night


def _read() -> tuple[dict[str, list[tuple[str, str]]], dict[str, list[str]]]:
    """Return the forms (name, prompt) and the subjects of each kind of question in `questions.txt`."""
    forms: dict[str, list[tuple[str, str]]] = {}
    subjects: dict[str, list[str]] = {}
    for line in (Path(__file__).parent / "questions.txt").read_text(encoding="utf-8").splitlines():
        what, *fields = line.split(" | ")
        kind, _, part = what.partition(" ")
        if part == "form":
            forms.setdefault(kind, []).append((fields[0], fields[1]))
        elif part == "subjects":
            subjects.setdefault(kind, []).extend(fields[0].split(", "))
    return forms, subjects


FORMS, SUBJECTS = _read()


def short_questions(seed: int) -> list[Question]:
    return _shuffled("short", SHORT_CAP, seed)


def long_questions(seed: int) -> list[Question]:
    return _shuffled("long", LONG_CAP, seed)


def _shuffled(kind: str, cap: int, seed: int) -> list[Question]:
    asked = [
        Question(f"{name}:{subject.replace(' ', '-')}", form.format(subject), cap)
        for name, form in FORMS[kind]
        for subject in SUBJECTS[kind]
    ]
    Random(seed).shuffle(asked)  # noqa: S311 - an order, not a secret
    return asked


def mixed(
    shorts: Sequence[Question], longs: Sequence[Question], *, count: int, shorts_per_long: int, seed: int
) -> list[Question]:
    """Return `count` questions, one of each block long, at a random place in its block; the lists repeat."""
    rng = Random(seed)  # noqa: S311 - an order, not a secret
    short, long = cycle(shorts), cycle(longs)
    questions: list[Question] = []
    while len(questions) < count:
        block = [next(short) for _ in range(shorts_per_long)]
        block.insert(rng.randint(0, shorts_per_long), next(long))
        questions += block
    return questions[:count]


def reading(tokens: int, number: int) -> Question:
    """Return a question whose prompt is about this many tokens long; another number, another beginning."""
    words = [f"{number}:"]
    rng = Random(number)  # noqa: S311 - an order, not a secret
    subjects = SUBJECTS["short"] + SUBJECTS["long"]
    # English has about three words to four tokens.
    while len(words) < tokens * 3 / 4:
        words += f"Note {len(words)} is about {rng.choice(subjects)} and {rng.choice(subjects)}.".split()
    return Question(
        f"read-{tokens}", " ".join(words) + " Tell a long story with all of these notes.", READING_TOKENS
    )
