"""Asks the operator, in the log, whether anybody waits for a client that sends requests for hours."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from clairvoyant_cli.proxy.queue.ended import Ended
from clairvoyant_cli.state.actions import Verb, printed

ASKED_AFTER_S = 2 * 3600.0  # people pause within it
PAUSE_S = 60.0
MAX_CLIENTS = 1000


@dataclass(slots=True)
class _Sender:
    since_s: float
    last_s: float
    requests: int = 0


@dataclass(slots=True)
class SteadyClients:
    """Follows how long each client has sent unstreamed requests without a pause. Nothing depends on it: how
    a program sends does not tell whether a person waits.
    """

    say: Callable[[int, str], None]
    _senders: dict[str, _Sender] = field(default_factory=dict)

    def ended(self, of: Ended) -> None:
        if not of.was_queued:
            return
        sender = self._senders.pop(of.principal, None)
        if sender is None or of.stream or of.arrival_s - sender.last_s > PAUSE_S:
            sender = _Sender(of.arrival_s, of.ended_s)
        self._senders[of.principal] = sender  # the latest last
        while len(self._senders) > MAX_CLIENTS:
            del self._senders[next(iter(self._senders))]
        sender.last_s = max(sender.last_s, of.ended_s)
        sender.requests += 1
        if of.ended_s - sender.since_s >= ASKED_AFTER_S and of.interactive:
            hours, sender.since_s = (of.ended_s - sender.since_s) / 3600.0, float("inf")  # asked once
            self.say(
                logging.INFO,
                f"{of.principal} has sent {sender.requests:,} requests in {hours:.0f} h without a pause; "
                f"if nobody waits for them: {printed(Verb.BACKGROUND, of.principal)}",
            )

    def knows(self, client: str) -> bool:
        """Return whether a client has sent a request lately."""
        return client in self._senders
