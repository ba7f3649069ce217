"""The urgency level of an arriving request: by the operator's rules, its client, or the predictor."""

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clairvoyant_cli.http.heads import RequestHead
from clairvoyant_cli.protocols.request_parsing import ParsedRequest
from clairvoyant_cli.proxy.access.keys import URGENCY_HEADER, Access
from clairvoyant_cli.scheduler.urgency import LEVELS, Said
from predictor.record import Task, UrgencyPredictor

if TYPE_CHECKING:  # numpy comes with it
    from predictor.semantic.opinion import EncoderEstimate

log = logging.getLogger("clairvoyant")

Level = tuple[int | None, Said]  # a level, None if unset, and its source


@dataclass(slots=True)
class UrgencyLevels:
    """Sets urgency levels."""

    access: Access
    predictor: UrgencyPredictor | None = None

    def at_arrival(self, head: RequestHead, client: str, parsed: ParsedRequest) -> Level:
        clients = self.access.clients
        for rule in clients.urgency:
            if rule.fits(client, parsed.model, head):
                return rule.level, Said.RULE
        try:
            wish = _clamped(int(head.get(URGENCY_HEADER) or b""), (0, LEVELS - 1))
        except ValueError:  # none, or no number
            return self.predicted(client, parsed)
        return _clamped(wish, clients.rules_of(client).urgency), Said.CLIENT

    def predicted(
        self, client: str, parsed: ParsedRequest, opinion: "EncoderEstimate | None" = None
    ) -> Level:
        """Return the level predicted from the text, with the encoder's opinion if there is one."""
        view = parsed.view
        if self.predictor is None or view is None or view.task is Task.EMBEDDING or not view.prompt:
            return None, Said.NOBODY
        try:
            thought = self.predictor.level(view, opinion)
        except Exception:
            log.exception("the urgency predictor failed; the level of the request is unset")
            return None, Said.NOBODY
        return _clamped(thought, self.access.clients.rules_of(client).predicted_urgency), Said.PREDICTOR


def _clamped(level: int, levels: tuple[int, int]) -> int:
    return max(levels[0], min(level, levels[1]))
