"""Asks the operator, in the log, whether anybody waits for a client that sends requests for hours."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from clairvoyant_cli.proxy.queue.exchange import Exchange, RequestEnd
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
    clock: Callable[[], float]
    _senders: dict[str, _Sender] = field(default_factory=dict)

    def admitted(self, exchange: Exchange) -> None:
        job, now = exchange.job, self.clock()
        before = self._senders.pop(job.client, None)
        goes_on = before is not None and now - before.last_s <= PAUSE_S and not exchange.asked.parsed.stream
        sender = before if before is not None and goes_on else _Sender(now, now)
        self._senders[job.client] = sender  # the latest last
        while len(self._senders) > MAX_CLIENTS:
            del self._senders[next(iter(self._senders))]
        sender.last_s = now
        sender.requests += 1
        if now - sender.since_s >= ASKED_AFTER_S and job.interactive:
            hours, sender.since_s = (now - sender.since_s) / 3600.0, float("inf")  # asked once
            self.say(
                logging.INFO,
                f"{job.client} has sent {sender.requests:,} requests in {hours:.0f} h without a pause; "
                f"if nobody waits for them: {printed(Verb.BACKGROUND, job.client)}",
            )

    def ended(self, exchange: Exchange, end: RequestEnd) -> None:
        if not exchange.was_queued:
            return
        sender = self._senders.setdefault(exchange.job.client, _Sender(end.at_s, end.at_s))
        sender.last_s = max(sender.last_s, end.at_s)

    def knows(self, client: str) -> bool:
        """Return whether a client has sent a request lately."""
        return client in self._senders
