"""The questions of a calibration: a hundred that are answered in a line or three, and as many in pages.

All are the project's own. Each of them is asked once in a run, so that no answer comes out of a cache; those
whose answers are cut are others, and asked again and again.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle
from random import Random, randrange

from predictor.record import SHORT_BELOW_TOKENS

SHORT_CAP = SHORT_BELOW_TOKENS - 1
LONG_CAP = 1024
"""A long answer may be Long (800 tokens and more) without one chatty model taking all night."""


@dataclass(frozen=True, slots=True)
class Question:
    """A prompt, the name under which its sample is kept, and the most tokens its answer may have."""

    name: str
    prompt: str
    cap: int


SHORT_FORMS = (
    ("define", "Define {} in one sentence."),
    ("why", "Why does {} matter to people? Answer in two sentences."),
    ("example", "Give one everyday example of {}, in a single short sentence."),
    ("who", "Which science or craft deals most with {}? Name it and say why, in one sentence."),
    ("child", "Explain {} to a six-year-old in at most three sentences."),
)
SHORT_SUBJECTS = (
    "friction",
    "inflation",
    "photosynthesis",
    "a lunar eclipse",
    "fermentation",
    "compound interest",
    "a prime number",
    "the water cycle",
    "magnetism",
    "a rhyme",
    "erosion",
    "a vaccine",
    "gravity",
    "an algorithm",
    "soil",
    "a metaphor",
    "electric current",
    "migration of birds",
    "a time zone",
    "yeast",
)
LONG_FORMS = (
    (
        "essay",
        "Write a detailed essay of at least 1200 words about {}, with an introduction and a conclusion.",
    ),
    ("tutorial", "Write a long, thorough tutorial about {} for a beginner, step by step, with examples."),
    ("history", "Tell the history of {} in depth, period by period, in at least ten long paragraphs."),
    (
        "plan",
        "Make a comprehensive twelve-week course about {}: for every week goals, lessons and exercises.",
    ),
    ("story", "Write a long short story, at least 1200 words, in which {} changes somebody's life."),
)
LONG_SUBJECTS = (
    "the railway",
    "bread baking",
    "map making",
    "wooden bridges",
    "bee keeping",
    "the printing press",
    "sailing ships",
    "vegetable gardens",
    "clocks",
    "glass making",
    "weather forecasts",
    "public libraries",
    "mountain rescue",
    "the piano",
    "drinking water",
    "sign language",
    "lighthouses",
    "weaving",
    "chess",
    "paper",
)

CUT_FORMS = (
    ("prose", "Explain {} to a curious adult."),
    ("list", "List ten facts about {}, each in one sentence."),
    ("code", "Write a small Python program about {}, with comments."),
    ("table", "Make a Markdown table about {} with four columns and six rows."),
    ("emoji", "Plan a day that is all about {}: one line for each hour, each with an emoji."),
)
CUT_SUBJECTS = ("rivers", "a bicycle", "the moon", "tea", "a lost dog", "prime numbers")
CUT_CAPS = (60, 80, 120)
"""Tokens of an answer that is cut: enough for two places, and as few as that."""


def short_questions(seed: int) -> list[Question]:
    """Return the hundred short questions in an order of this seed."""
    return _asked(SHORT_FORMS, SHORT_SUBJECTS, SHORT_CAP, seed)


def long_questions(seed: int) -> list[Question]:
    """Return the hundred long questions in an order of this seed."""
    return _asked(LONG_FORMS, LONG_SUBJECTS, LONG_CAP, seed)


def cut_questions(most: int) -> list[Question]:
    """Return questions whose answers, of up to `most` tokens, are cut and continued: each kind in turn. Each
    bears a number by chance, so that the server has not answered it in an earlier run.
    """
    asked = [(name, form, subject) for subject in CUT_SUBJECTS for name, form in CUT_FORMS]
    number = randrange(1000, 10_000)  # noqa: S311 - no secret
    return [
        Question(
            f"cut-{name}:{subject.replace(' ', '-')}",
            f"{form.format(subject)} (No. {number})",
            min(most, cap),
        )
        for (name, form, subject), cap in zip(asked, cycle(CUT_CAPS), strict=False)
    ]


def mixed(
    shorts: Sequence[Question], longs: Sequence[Question], *, count: int, shorts_per_long: int, seed: int
) -> list[Question]:
    """Return `count` questions, one of each block of them long, at a random place in its block.

    Evenly spread, so that two runs differ by the server and not by where the long ones fell. The lists
    are used round and round.
    """
    rng = Random(seed)  # noqa: S311 - an order, not a secret
    questions: list[Question] = []
    short = long = 0
    while len(questions) < count:
        block = [shorts[(short + i) % len(shorts)] for i in range(shorts_per_long)]
        block.insert(rng.randint(0, shorts_per_long), longs[long % len(longs)])
        short, long = short + shorts_per_long, long + 1
        questions += block
    return questions[:count]


def reading(tokens: int, number: int) -> Question:
    """Return a question whose prompt is about this many tokens long; another number, another beginning."""
    words = [f"{number}:"]
    rng = Random(number)  # noqa: S311 - an order, not a secret
    subjects = [*SHORT_SUBJECTS, *LONG_SUBJECTS]
    # English has about three words to four tokens.
    while len(words) < tokens * 3 / 4:
        words += f"Note {len(words)} is about {rng.choice(subjects)} and {rng.choice(subjects)}.".split()
    return Question(f"read-{tokens}", " ".join(words) + " Tell a long story with all of these notes.", 64)


def _asked(forms: Sequence[tuple[str, str]], subjects: Sequence[str], cap: int, seed: int) -> list[Question]:
    asked = [
        Question(f"{name}:{subject.replace(' ', '-')}", form.format(subject), cap)
        for name, form in forms
        for subject in subjects
    ]
    Random(seed).shuffle(asked)  # noqa: S311 - an order, not a secret
    return asked
