"""Arrival order while the predictor does no better than chance; its own order again once it does."""

from dataclasses import dataclass, field

import pytest

from clairvoyant_cli.proxy.fallback import Fallback
from clairvoyant_cli.scheduler.coverage import MIN_JUDGED, Coverage
from predictor.record import Prediction, PromptView, Quality


@dataclass
class Judged:
    """A predictor whose quality the test decides."""

    trusted: bool = True
    name: str = "judged"

    def predict(self, view: PromptView) -> Prediction:
        return Prediction(1, 0, 0, 0, 1, 1, self.name)

    def learn(self, prediction: Prediction, tokens: int) -> None:
        pass

    def quality(self) -> Quality:
        return Quality(200, 0.49, 0.9, self.trusted)


@dataclass
class Desk:
    """Where the policy is chosen and events are read."""

    policy: str = "bounded"
    said: list[str] = field(default_factory=list)

    def choose(self, name: str) -> None:
        self.policy = name

    def say(self, level: int, text: str) -> None:
        self.said.append(text)

    def review(self, fallback: Fallback) -> None:
        fallback.review(self.policy, self.choose, self.say)


def test_arrival_order_while_the_predictor_is_lost_and_back() -> None:
    predictor, desk = Judged(), Desk()
    fallback = Fallback(predictor)
    desk.review(fallback)
    assert (desk.policy, desk.said) == ("bounded", [])
    predictor.trusted = False
    desk.review(fallback)
    desk.review(fallback)
    assert desk.policy == "fcfs"
    assert len(desk.said) == 1
    assert "0.49" in desk.said[0]
    predictor.trusted = True
    desk.review(fallback)
    assert desk.policy == "bounded"
    assert len(desk.said) == 2


def test_the_operators_choice_holds() -> None:
    predictor, desk = Judged(trusted=False), Desk()
    fallback = Fallback(predictor)
    desk.review(fallback)
    desk.policy = "fair"
    fallback.chosen_by_operator()
    desk.review(fallback)
    assert desk.policy == "fair"
    predictor.trusted = True
    desk.review(fallback)
    assert desk.policy == "fair"


@pytest.mark.parametrize("policy", ["fcfs", "fair", "fair-srpt", "urgency"])
def test_what_rests_on_more_than_lengths_is_left_alone(policy: str) -> None:
    desk = Desk(policy)
    fallback = Fallback(Judged(trusted=False))
    desk.review(fallback)
    assert (desk.policy, fallback.displaced) == (policy, None)


def test_a_predictor_that_keeps_no_count_is_trusted() -> None:
    class Plain:
        name = "plain"

        def predict(self, view: PromptView) -> Prediction:
            return Prediction(1, 0, 0, 0, 1, 1, self.name)

        def learn(self, prediction: Prediction, tokens: int) -> None:
            pass

    desk = Desk()
    desk.review(Fallback(Plain()))
    assert desk.policy == "bounded"


def test_quartz_goes_by_arrival_while_its_quantiles_do_not_hold() -> None:
    coverage, desk = Coverage(), Desk("quartz")
    fallback = Fallback(Judged(), coverage)
    for _ in range(MIN_JUDGED):
        coverage.learn("short", 1.0, 2.0)
    desk.review(fallback)
    assert desk.policy == "fcfs"
    assert "100% of the answers took longer" in desk.said[0]
    for _ in range(2 * MIN_JUDGED):
        coverage.learn("short", 1.0, 0.5)
    desk.review(fallback)
    assert desk.policy == "quartz"


def test_other_policies_go_by_no_quantiles() -> None:
    coverage, desk = Coverage(), Desk()
    for _ in range(MIN_JUDGED):
        coverage.learn("short", 1.0, 2.0)
    desk.review(Fallback(Judged(), coverage))
    assert desk.policy == "bounded"
