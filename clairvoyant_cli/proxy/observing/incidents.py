"""Follows what goes wrong with servers, and with the queue."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from clairvoyant_cli.proxy.observing.tally import begins_at
from clairvoyant_cli.proxy.queue.ended import NOWHERE, Ended, Outcome
from clairvoyant_cli.proxy.servers.pool import ServerPool
from profiles.records import Incident

APART_S = 300.0
"""What goes wrong with a server sooner than this after the last time belongs to the same incident."""

RECOVERED_S = 30.0
"""A server that has answered, and failed nothing for this long before, has recovered."""

KILLED = "the daemon was killed, or the machine lost power"


@dataclass(slots=True)
class Incidents:
    """Makes one record of all that goes wrong with a server at a time, and of refusals by the queue. `note`
    stores one, again whenever it has changed.
    """

    pool: ServerPool
    note: Callable[[Incident], None]
    known: dict[tuple[str, float], Incident] = field(
        default_factory=dict
    )  # of 24 hours, by server and beginning
    _last: dict[str, Incident] = field(default_factory=dict)  # of each server
    _changed: set[tuple[str, float]] = field(default_factory=set)
    _over: set[str] = field(default_factory=set)  # servers that have answered since

    def take_up(self, incidents: Iterable[Incident]) -> None:
        """Go on with what was stored, in order."""
        for each in incidents:
            self._last[each.server] = self.known[each.server, each.began_at] = each

    def ended(self, of: Ended) -> None:
        """Count a request that did not end well, unless that was its own or its client's doing. An answer
        ends the incident of its server.
        """
        at, cause = of.finished_at, of.remark
        if of.outcome is Outcome.COMPLETED:
            last = self._last.get(of.last.backend)
            if last is not None and (last.down or at - last.ended_at > RECOVERED_S):
                self._over.add(last.server)
        elif of.outcome is Outcome.UPSTREAM_ERROR and not 400 <= of.status < 500:
            self._trouble(of.last.backend or self._away(), at, cause or f"HTTP {of.status}", failed=1)
        elif of.outcome is Outcome.TIMEOUT or (of.outcome is Outcome.REJECTED and of.last is NOWHERE):
            self._trouble(of.last.backend or self._away(), at, cause, failed=1)

    def _away(self) -> str:
        """Return the name of a server that is away, "" if none is."""
        return next((each.name for each in self.pool if each.away), "")

    def look(self, now: float) -> None:
        """Follow which servers are away, and store what has changed. Call it every few seconds."""
        for server in self.pool:
            if server.away:
                self._trouble(server.name, now, server.status.detail, down=True)
        for key, incident in self.known.items():
            if key in self._changed:
                self.note(incident)
        self._changed.clear()
        since = begins_at(now)
        self.known = {key: each for key, each in self.known.items() if each.ended_at >= since}

    def killed(self, at: float, now: float, lost: int) -> None:
        """Record that a daemon was killed at a time and its requests were lost, until this one started."""
        self.known["clairvoyant", at] = Incident("clairvoyant", at, now, True, lost, KILLED)
        self._changed.add(("clairvoyant", at))

    def _trouble(self, name: str, at: float, cause: str, *, down: bool = False, failed: int = 0) -> None:
        last = self._last.get(name)
        if last is None or name in self._over or at - last.ended_at > APART_S:
            last = Incident(name, at, at, down, 0, cause)
            self._over.discard(name)
        # What a server answered last says more than why it cannot be reached.
        cause = cause if failed and cause else last.cause or cause
        failed += last.failed
        last = last._replace(ended_at=at, down=last.down or down, failed=failed, cause=cause)
        self._last[name] = self.known[name, last.began_at] = last
        self._changed.add((name, last.began_at))
