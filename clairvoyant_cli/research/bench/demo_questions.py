"""The demo's questions: what people ask a local model, and how long a small one's answers tend to be.

The lengths were set by judgement when the questions were written; the predictor does not see them.
"""

from dataclasses import dataclass
from random import Random

from predictor.record import LengthClass


@dataclass(frozen=True, slots=True)
class Question:
    """A prompt, a title that fits a narrow column, and the length of its answer in tokens.

    `known_class` is the class the question was written for, where that is not told by the length;
    `max_tokens` is the limit its request asks for, where the bench does not set the length.
    """

    title: str
    prompt: str
    tokens: int
    known_class: LengthClass | None = None
    max_tokens: int | None = None

    @property
    def length_class(self) -> LengthClass:
        """The class of the answer: the one known, or that of its length."""
        return self.known_class or LengthClass.of(self.tokens)


SHORT = (
    Question("Capital of Mongolia", "What is the capital of Mongolia?", 12),
    Question("Translate a greeting", "Translate 'good morning, my friends' to Italian.", 18),
    Question("17 * 23", "What is 17 * 23? Answer with the number only.", 5),
    Question("Fix this sentence", "Correct the grammar: 'She don't likes going at the beach.'", 24),
    Question("Boiling point at 3 km", "At what temperature does water boil at 3000 m altitude?", 60),
    Question("Spam or not?", "Is this e-mail spam? Answer yes or no: 'You won a free cruise, click here'", 4),
    Question("Reverse a list", "How do I reverse a list in Python? One line please.", 40),
    Question("Who wrote Middlemarch", "Who wrote Middlemarch, and in which year was it published?", 28),
    Question("Undo a git commit", "Which git command undoes the last commit but keeps my changes?", 55),
    Question("Synonyms of quick", "Give me three synonyms for 'quick'.", 20),
    Question(
        "Sentiment of review", "Classify the sentiment as positive or negative: 'The soup was cold.'", 6
    ),
    Question("Days in leap year", "How many days does a leap year have?", 15),
    Question("Title for a recipe", "Suggest a title for a blog post about lemon cake.", 14),
    Question("Define entropy", "Define entropy in one sentence.", 45),
    Question("Regex for a ZIP code", "Give me a regex for a five-digit ZIP code.", 35),
    Question("Convert 5 miles", "Convert 5 miles to kilometres.", 22),
)

LONG = (
    Question("Essay: printing", "Write a detailed essay about how the printing press changed Europe.", 1250),
    Question(
        "Story: the lighthouse", "Write a long short story about a lighthouse keeper who finds a map.", 1400
    ),
    Question(
        "Tutorial: REST API",
        "Write a step-by-step tutorial on building a REST API with Flask, with code.",
        1300,
    ),
    Question("Plan for a bakery", "Create a comprehensive business plan for a small organic bakery.", 1200),
    Question(
        "Two-week Japan trip",
        "Plan a two-week trip through Japan, day by day, with what to see and eat.",
        1150,
    ),
    Question(
        "Snake game, in code", "Implement a complete snake game in Python with pygame, with comments.", 1100
    ),
    Question("Report: green energy", "Write an in-depth report comparing solar, wind and hydro power.", 1200),
    Question(
        "Lessons on fractions",
        "Design a detailed five-day lesson plan to teach fractions to ten-year-olds.",
        1050,
    ),
    Question(
        "History of computing", "Give me a thorough history of computing from the abacus to today.", 1150
    ),
    Question(
        "Marathon training", "Make a 12-week marathon training plan for a beginner, week by week.", 1000
    ),
    Question(
        "Screenplay: heist", "Write the first scenes of a screenplay about an art heist, with dialogue.", 1350
    ),
    Question(
        "Explain TCP in depth", "Explain in depth how TCP works: handshake, windows, congestion control.", 950
    ),
    Question("Article: sleep", "Write a 1000-word article about why sleep matters, with headings.", 1300),
    Question(
        "Compare 5 databases",
        "Compare five databases in detail: features, strengths, weaknesses, uses.",
        1000,
    ),
    Question(
        "Fantasy world", "Invent a fantasy world: its geography, peoples, history, magic and conflicts.", 1300
    ),
    Question(
        "Essay: Roman roads",
        "Write an essay on the roads of the Roman Empire and what they made possible.",
        1100,
    ),
)


def draw(count: int, seed: int) -> list[Question]:
    """Return a mixed burst, half of it short and half long (an odd one is short), in random order."""
    rng = Random(seed)  # noqa: S311 - a show, not a secret
    longs = count // 2
    burst = rng.sample(SHORT, count - longs) + rng.sample(LONG, longs)
    rng.shuffle(burst)
    return burst


MOST = 2 * min(len(SHORT), len(LONG))
"""The largest burst that asks no question twice."""
