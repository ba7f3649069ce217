"""How many answers a server gives at once: asked of nobody, seen on the wire."""

from collections.abc import Sequence
from itertools import pairwise

from clairvoyant_cli.calibrate.client import Answer, Client
from clairvoyant_cli.calibrate.first_failure import together
from clairvoyant_cli.calibrate.questions import Question

FIRST_PROBE = 6
LARGEST_PROBE = 96
PROBE_S = 0.4
"""How long a probing answer should take: long against the jitter of a busy machine."""

LONGEST_PROBE_TOKENS = 800

HELD = 0.25
"""Share of the time for which so many answers must have come at once; a late packet overlaps for less."""


async def probe_slots(client: Client, questions: Sequence[Question], tokens_per_s: float | None) -> int:
    """Send more and more long answers at once until they no longer all run together; return how many do."""
    cap = max(16, min(LONGEST_PROBE_TOKENS, round(PROBE_S * (tokens_per_s or 50.0))))
    probe = FIRST_PROBE
    while True:
        batch = [questions[i % len(questions)] for i in range(probe)]
        found = at_once(await together(client.ask(question, cap) for question in batch))
        if found < probe or probe >= LARGEST_PROBE:
            return found
        probe *= 4


def at_once(answers: Sequence[Answer]) -> int:
    """Return how many answers were being written at the same time, for a fair share of it; at least 1."""
    edges: list[tuple[float, int]] = []
    for answer in answers:
        if answer.first_s and answer.last_s > answer.first_s:
            edges += [(answer.first_s, 1), (answer.last_s, -1)]
    edges.sort()
    held_s: dict[int, float] = {}
    running = 0
    for (at_s, step), (until_s, _) in pairwise(edges):
        running += step
        held_s[running] = held_s.get(running, 0.0) + until_s - at_s
    busy_s = sum(seconds for running, seconds in held_s.items() if running)
    enough_s = 0.0
    for running in sorted(held_s, reverse=True):
        enough_s += held_s[running]
        if running and enough_s >= HELD * busy_s:
            return running
    return 1
