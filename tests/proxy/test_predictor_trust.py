"""With whom the predictor is not trusted, and arrival order while upper bounds do not hold."""

from dataclasses import dataclass, field

from clairvoyant_cli.proxy.queue.predictor_trust import PredictorTrust
from clairvoyant_cli.scheduler.quantile_coverage import MIN_JUDGED, Coverage
from predictor.record import Distrusted, Prediction, Predictor, PromptView, Quality


@dataclass
class Judged(Predictor):
    """A predictor whose quality the test decides."""

    distrusted: tuple[Distrusted, ...] = ()
    name: str = "judged"

    def predict(self, view: PromptView, opinion: object = None) -> Prediction:
        return Prediction(1, 0, 0, 0, 1, 1, self.name)

    def learn(self, prediction: Prediction, tokens: int) -> None:
        pass

    def quality(self) -> Quality:
        return Quality(200, 0.49, 0.9, distrusted=self.distrusted)


@dataclass
class Desk:
    """Where the policy is chosen and events are read."""

    policy: str = "bounded"
    said: list[str] = field(default_factory=list)

    def choose(self, name: str) -> None:
        self.policy = name

    def say(self, level: int, text: str) -> None:
        self.said.append(text)

    def review(self, fallback: PredictorTrust) -> None:
        fallback.review(self.policy, self.choose, self.say)


def test_it_is_said_whose_requests_the_predictor_is_not_trusted_with_and_the_policy_stays() -> None:
    predictor, desk = Judged(), Desk()
    fallback = PredictorTrust(predictor)
    desk.review(fallback)
    assert desk.said == []
    predictor.distrusted = (Distrusted("eve", "llama3", 57, 0.49), Distrusted("a\nb", "", 40, None))
    desk.review(fallback)
    desk.review(fallback)
    assert (desk.policy, fallback.displaced, len(desk.said)) == ("bounded", None, 2)
    eve, other = sorted(desk.said, reverse=True)
    assert "answers to eve (llama3) no better than chance (ranking accuracy 0.49 over 57)" in eve
    assert "answers to a?b no better" in other
    predictor.distrusted = predictor.distrusted[1:]
    desk.review(fallback)
    assert desk.said[2:] == ["the predictor is trusted again for the requests of eve (llama3)"]


def test_the_operators_choice_holds() -> None:
    coverage, desk = Coverage(), Desk("quartz")
    fallback = PredictorTrust(Judged(), coverage)
    for _ in range(MIN_JUDGED):
        coverage.learn("short", 1.0, 2.0)
    desk.review(fallback)
    assert desk.policy == "fcfs"
    desk.policy = "fair"
    fallback.chosen_by_operator()
    desk.review(fallback)
    assert desk.policy == "fair"
    for _ in range(2 * MIN_JUDGED):
        coverage.learn("short", 1.0, 0.5)
    desk.review(fallback)
    assert desk.policy == "fair"


def test_a_predictor_that_keeps_no_count_is_followed() -> None:
    class Plain(Predictor):
        name = "plain"

        def predict(self, view: PromptView, opinion: object = None) -> Prediction:
            return Prediction(1, 0, 0, 0, 1, 1, self.name)

        def learn(self, prediction: Prediction, tokens: int) -> None:
            pass

    desk = Desk()
    desk.review(PredictorTrust(Plain()))
    assert (desk.policy, desk.said) == ("bounded", [])


def test_quartz_goes_by_arrival_while_its_quantiles_do_not_hold() -> None:
    coverage, desk = Coverage(), Desk("quartz")
    fallback = PredictorTrust(Judged(), coverage)
    for _ in range(MIN_JUDGED):
        coverage.learn("short", 1.0, 2.0)
    desk.review(fallback)
    assert desk.policy == "fcfs"
    assert "100% of the answers exceeded" in desk.said[0]
    for _ in range(2 * MIN_JUDGED):
        coverage.learn("short", 1.0, 0.5)
    desk.review(fallback)
    assert desk.policy == "quartz"


def test_other_policies_go_by_no_quantiles() -> None:
    coverage, desk = Coverage(), Desk()
    for _ in range(MIN_JUDGED):
        coverage.learn("short", 1.0, 2.0)
    desk.review(PredictorTrust(Judged(), coverage))
    assert desk.policy == "bounded"
