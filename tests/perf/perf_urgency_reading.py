"""How long the level of a text takes by its words: `python -m tests.perf.perf_urgency_reading`.

The event loop stands still meanwhile. Of records, and of texts made to keep the search for vital signs busy;
thread time, so that a busy machine does not count.
"""

from statistics import median
from time import thread_time_ns

from clairvoyant_lab.training.urgency_cases.writing import read_day

from predictor.loading import MODELS, URGENCY
from predictor.record import PromptView
from predictor.urgency.model import UrgencyModel

ROUNDS = 9
RECORDS = 200
CHARACTERS = 6000
PIECES = (
    "1 ", "99 ", "12/13 ", "9/10 ", "99% ", "99 for ", "10 - ", "pain ", "rated ", "sat ", "bp ", "bp 1 ",
    "temperature and ", "heart rate was about the ", "responds to ", "no pain ", "1 year ", "a", " ",
)  # fmt: skip


def took_us(model: UrgencyModel, text: str) -> float:
    """Return the median microseconds of the level of a text."""
    taken = []
    for _ in range(ROUNDS):
        begun_ns = thread_time_ns()
        model.level(PromptView(text))
        taken.append((thread_time_ns() - begun_ns) / 1000)
    return median(taken)


def main() -> None:
    """Measure and print."""
    model = UrgencyModel(MODELS / URGENCY, "")
    records = sorted(took_us(model, case.text) for case in read_day()[:RECORDS])
    print(f"records: median {median(records):.0f} us, longest {records[-1]:.0f} us")
    hostile = {piece: took_us(model, (piece * CHARACTERS)[:CHARACTERS]) for piece in PIECES}
    worst = max(hostile, key=lambda piece: hostile[piece])
    print(f"{CHARACTERS} characters made for it: longest {hostile[worst]:.0f} us, of {worst!r}")


if __name__ == "__main__":
    main()
