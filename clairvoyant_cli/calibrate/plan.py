"""How much is measured, by how much time there is."""

from dataclasses import dataclass

SHORTS_PER_LONG = 4
"""Four short questions to one long: what M1 numbers of the paper need for its 40 s (see `IN_FLIGHT`)."""

IN_FLIGHT = 5
"""Requests in flight for each slot while mu_short is measured.

Sent all at once, a hundred questions measure the size of the burst: mu_short grows with it, and tau = 3 x
mu_short then exceeds the burst it should guard in. Held at five a slot, mu_short is a property of the
server. With the paper's service times on an M1 (2 s and 30 s, Table 1) it gives about the 40 s that the
paper reports there (section 3.4); 0 sends everything at once, as the paper's script does.
"""


@dataclass(frozen=True, slots=True)
class Plan:
    """`shorts` is the number of short questions in the queue that count; `singles` are asked one at a
    time, a fifth of them long; `bands` are prompt lengths in tokens. `budget_s` bounds all of that, None
    does not. Then answers of up to `cut_tokens` are cut and continued, `trials` times, for `cut_s` at most.
    A server that sends nothing of any answer for `silence_s` is given up; long prompts take a while to read.
    """

    name: str
    shorts: int
    singles: int
    bands: tuple[int, ...]
    in_flight: int = IN_FLIGHT
    reload: bool = False
    budget_s: float | None = None
    trials: int = 24
    cut_tokens: int = 120
    cut_s: float | None = None
    silence_s: float = 600.0


QUICK = Plan(
    "quick",
    shorts=40,
    singles=5,
    bands=(400,),
    budget_s=90.0,
    trials=12,
    cut_tokens=60,
    cut_s=20.0,
    silence_s=30.0,
)
STANDARD = Plan("standard", shorts=100, singles=25, bands=(400, 1600))
FULL = Plan("full", shorts=200, singles=60, bands=(400, 1600, 6000), reload=True)
PLANS = {plan.name: plan for plan in (QUICK, STANDARD, FULL)}
