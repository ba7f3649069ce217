"""Sums up the last 24 hours from the history, and follows what goes wrong with servers."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from clairvoyant_cli.proxy.observing.slot_time import divided
from clairvoyant_cli.proxy.queue.ended import NOWHERE, Ended, Outcome
from clairvoyant_cli.proxy.servers.pool import ServerPool
from clairvoyant_cli.state.last_day import STEP_S, STEPS, DayStep, LastDay, Outage
from profiles.records import Incident, ServedRequest

UNTROUBLED = ("completed", "client_cancelled", "operator_cancelled")
APART_S = 300.0
"""What goes wrong with a server sooner than this after the last time belongs to the same incident."""

RECOVERED_S = 30.0
"""A server that has answered, and failed nothing for this long before, has recovered."""

KILLED = "the daemon was killed, or the machine lost power"


def begins_at(now: float) -> float:
    """Return when the first step of the last day begins."""
    return (now // STEP_S - STEPS + 1) * STEP_S


def last_day(served: Iterable[ServedRequest], incidents: Iterable[Incident], now: float) -> LastDay:
    """Return the steps until `now`, epoch seconds, from the requests that ended in them."""
    first = round(begins_at(now) / STEP_S)
    ended, failed, saved_s, busy_s, waited_s = ([0.0] * STEPS for _ in range(5))
    for row in served:
        step = int(row.finished_at // STEP_S) - first
        if not 0 <= step < STEPS:
            continue
        ended[step] += 1
        failed[step] += row.outcome not in UNTROUBLED
        saved_s[step] += row.saved_s or 0.0
        arrived_at = row.finished_at - row.sojourn_s
        began_at = arrived_at + row.waited_s
        for sums, since, until in ((waited_s, arrived_at, began_at), (busy_s, began_at, row.finished_at)):
            for number, passed_s in divided(since, until, STEP_S, STEPS):
                if number >= first:
                    sums[number - first] += passed_s
    at = [(first + step) * STEP_S for step in range(STEPS)]
    lasts_s = [min(max(now - each, 1.0), STEP_S) for each in at]
    return LastDay(
        now,
        tuple(
            DayStep(at[n], int(ended[n]), int(failed[n]), busy_s[n] / s, waited_s[n] / s, saved_s[n])
            for n, s in enumerate(lasts_s)
        ),
        tuple(Outage(*each) for each in incidents),
    )


@dataclass(slots=True)
class Incidents:
    """Makes one record of all that goes wrong with a server at a time, and of refusals by the queue. `note`
    stores one, again whenever it has changed.
    """

    pool: ServerPool
    note: Callable[[Incident], None]
    _last: dict[str, Incident] = field(default_factory=dict)  # of each server
    _changed: dict[tuple[str, float], Incident] = field(default_factory=dict)  # by server and beginning
    _over: set[str] = field(default_factory=set)  # servers that have answered since

    def take_up(self, incidents: Iterable[Incident]) -> None:
        """Go on with what was stored, in order."""
        self._last |= {each.server: each for each in incidents}

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
        elif of.outcome in (Outcome.REJECTED, Outcome.TIMEOUT) and of.last is NOWHERE:
            self._trouble(self._away(), at, cause, failed=1)

    def _away(self) -> str:
        """Return the name of a server that is away, "" if none is."""
        return next((each.name for each in self.pool if each.away), "")

    def look(self, now: float) -> None:
        """Follow which servers are away, and store what has changed. Call it every few seconds."""
        for server in self.pool:
            if server.away:
                self._trouble(server.name, now, server.status.detail, down=True)
        for incident in self._changed.values():
            self.note(incident)
        self._changed.clear()

    def killed(self, at: float, now: float, lost: int) -> None:
        """Record that a daemon was killed at a time and its requests were lost, until this one started."""
        self.note(Incident("clairvoyant", at, now, True, lost, KILLED))

    def _trouble(self, name: str, at: float, cause: str, *, down: bool = False, failed: int = 0) -> None:
        last = self._last.get(name)
        if last is None or name in self._over or at - last.ended_at > APART_S:
            last = Incident(name, at, at, down, 0, cause)
            self._over.discard(name)
        # What a server answered last says more than why it cannot be reached.
        cause = cause if failed and cause else last.cause or cause
        failed += last.failed
        last = last._replace(ended_at=at, down=last.down or down, failed=failed, cause=cause)
        self._last[name] = last
        self._changed[name, last.began_at] = last
