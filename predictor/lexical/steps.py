"""Describes the steps of agents to the correction: what came in, what was answered before, with which tools.

No model trained elsewhere ranks the steps of an agent it has not seen, but each agent's are learnt within a
hundred: numbers as they are, and in bins and in pairs as keys, since what they say is not linear.
"""

from math import log, log1p

from predictor.record import Step

NUMBER_VALUE = 0.5
STEP_KEY_VALUE = 0.5

ANSWERS = 5  # of the latest that are looked at
_CHARACTERS_A_TOKEN = 4
_MIDDLE = 4.5  # log tokens of a usual answer of an agent
_FIRST_STEPS = 6
NUMBERS = 16


def step_numbers(step: Step) -> list[float]:
    """Return `NUMBERS` numbers of about unit spread."""
    lengths = [log(count / _CHARACTERS_A_TOKEN + 10) - _MIDDLE for count in step.answers[:ANSWERS]]
    new = log1p(step.new_characters) / 3 - 2
    latest = lengths + [0.0] * (ANSWERS - len(lengths))
    known = lengths or [0.0]
    return [
        new,
        new * step.is_result,
        float(step.is_result),
        log1p(step.read_characters) / 3 - 3,
        log1p(step.answered) - 2,
        *latest,
        sum(known) / len(known),
        max(known),
        min(known),
        latest[0] ** 2 / 2,
        float(step.failed),
        float(not step.answered),
    ]


def step_keys(step: Step, whose: str) -> list[str]:
    """Return the keys of a step; `whose` names the model and the agent."""
    tool = f"{step.tools[0] if step.tools else ''}/{step.command}"
    before = step.tools[1] if len(step.tools) > 1 else ""
    last, earlier = ([*map(_bin, step.answers[:2]), -1, -1])[:2]
    new, said = _bin(step.new_characters), f"{step.is_result:d}"
    place = min(step.answered, _FIRST_STEPS)
    return [
        f"~whose {whose}",
        f"~whose {whose} {tool}",
        f"~tool {tool}",
        f"~tools {tool} {before}",
        f"~last {last}",
        f"~earlier {earlier}",
        f"~lasts {last // 2} {earlier // 2}",
        f"~new {said} {new}",
        f"~tool last {tool} {last}",
        f"~tool new {tool} {new}",
        f"~tool said {tool} {said} {step.failed:d}",
        f"~tool place {tool} {place}",
        f"~new last {said} {new // 2} {last // 2}",
        f"~place {place}",
    ]


def _bin(characters: int) -> int:
    return int(2 * log1p(characters / _CHARACTERS_A_TOKEN))
