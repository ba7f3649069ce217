"""Arrival order while upper bounds do not hold."""

from dataclasses import dataclass, field

from clairvoyant_cli.proxy.queue.arrival_fallback import ArrivalFallback
from clairvoyant_cli.scheduler.quantile_coverage import MIN_JUDGED, Coverage


@dataclass
class Desk:
    """Where the policy is chosen and events are read."""

    policy: str = "bounded"
    said: list[str] = field(default_factory=list)

    def choose(self, name: str) -> None:
        self.policy = name

    def say(self, level: int, text: str) -> None:
        self.said.append(text)

    def review(self, fallback: ArrivalFallback) -> None:
        fallback.review(self.policy, self.choose, self.say)


def displaced() -> tuple[Coverage, Desk, ArrivalFallback]:
    """Return a desk whose policy gave way to arrival order."""
    coverage, desk = Coverage(), Desk("quartz")
    fallback = ArrivalFallback(coverage)
    for _ in range(MIN_JUDGED):
        coverage.learn("short", 1.0, 2.0)
    desk.review(fallback)
    assert desk.policy == "fcfs"
    return coverage, desk, fallback


def test_the_operators_choice_holds() -> None:
    coverage, desk, fallback = displaced()
    desk.policy = "fair"
    fallback.chosen_by_operator()
    desk.review(fallback)
    assert desk.policy == "fair"
    for _ in range(2 * MIN_JUDGED):
        coverage.learn("short", 1.0, 0.5)
    desk.review(fallback)
    assert desk.policy == "fair"


def test_quartz_goes_by_arrival_while_its_quantiles_do_not_hold() -> None:
    coverage, desk, fallback = displaced()
    assert "100% of the answers exceeded" in desk.said[0]
    for _ in range(2 * MIN_JUDGED):
        coverage.learn("short", 1.0, 0.5)
    desk.review(fallback)
    assert desk.policy == "quartz"


def test_other_policies_go_by_no_quantiles() -> None:
    coverage, desk = Coverage(), Desk()
    for _ in range(MIN_JUDGED):
        coverage.learn("short", 1.0, 2.0)
    desk.review(ArrivalFallback(coverage))
    assert desk.policy == "bounded"
