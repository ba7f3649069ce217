"""Reports clients whose answers the predictor cannot rank. Their requests all get the same prediction
(`predictor.trust`), which is still judged, so that trust can return.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from clairvoyant_cli.protocols.printable import NAME_CHARS, printable
from predictor.record import Distrusted, Predictor


def whose(distrusted: Distrusted) -> str:
    """Name a client, and the model that it asked for if it named one."""
    model = f" ({distrusted.model})" if distrusted.model else ""
    return printable(distrusted.client + model, 2 * NAME_CHARS)


@dataclass(slots=True)
class PredictorTrust:
    """Watches a predictor's quality."""

    predictor: Predictor
    _distrusted: frozenset[str] = field(default_factory=frozenset)

    def review(self, say: Callable[[int, str], None]) -> None:
        """Report changes of trust."""
        distrusted = {whose(each): each for each in self.predictor.quality().distrusted}
        for name in distrusted.keys() - self._distrusted:
            accuracy = distrusted[name].ranking_accuracy
            ranked = "unknown" if accuracy is None else f"{accuracy:.2f}"
            say(
                logging.WARNING,
                f"the predictor ranks the answers to {name} no better than chance (ranking accuracy {ranked} "
                f"over {distrusted[name].judged}): its requests get equal predictions until it does",
            )
        for name in self._distrusted - distrusted.keys():
            say(logging.INFO, f"the predictor is trusted again for the requests of {name}")
        self._distrusted = frozenset(distrusted)
