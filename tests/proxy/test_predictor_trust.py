"""With whom the predictor is not trusted."""

from dataclasses import dataclass, field

from clairvoyant_cli.proxy.queue.predictor_trust import PredictorTrust
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
    """Where events are read."""

    said: list[str] = field(default_factory=list)

    def say(self, level: int, text: str) -> None:
        self.said.append(text)

    def review(self, trust: PredictorTrust) -> None:
        trust.review(self.say)


def test_it_is_said_whose_requests_the_predictor_is_not_trusted_with() -> None:
    predictor, desk = Judged(), Desk()
    trust = PredictorTrust(predictor)
    desk.review(trust)
    assert desk.said == []
    predictor.distrusted = (Distrusted("eve", "llama3", 57, 0.49), Distrusted("a\nb", "", 40, None))
    desk.review(trust)
    desk.review(trust)
    assert len(desk.said) == 2
    eve, other = sorted(desk.said, reverse=True)
    assert "answers to eve (llama3) no better than chance (ranking accuracy 0.49 over 57)" in eve
    assert "answers to a?b no better" in other
    predictor.distrusted = predictor.distrusted[1:]
    desk.review(trust)
    assert desk.said[2:] == ["the predictor is trusted again for the requests of eve (llama3)"]


def test_a_predictor_that_keeps_no_count_is_followed() -> None:
    class Plain(Predictor):
        name = "plain"

        def predict(self, view: PromptView, opinion: object = None) -> Prediction:
            return Prediction(1, 0, 0, 0, 1, 1, self.name)

        def learn(self, prediction: Prediction, tokens: int) -> None:
            pass

    desk = Desk()
    desk.review(PredictorTrust(Plain()))
    assert desk.said == []
