"""The last 24 hours, against a log that the test keeps itself: over midnight, an outage and a restart."""

import json
import random
import re
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from click.testing import CliRunner

from clairvoyant_cli.main import cli
from clairvoyant_cli.protocols.usage import Totals
from clairvoyant_cli.proxy.access.clients import ClientRules
from clairvoyant_cli.proxy.composition import Daemon
from clairvoyant_cli.proxy.observing.gain import midnight_before
from clairvoyant_cli.proxy.observing.incidents import Incidents
from clairvoyant_cli.proxy.observing.tally import last_day
from clairvoyant_cli.proxy.queue.ended import NOWHERE, Outcome
from clairvoyant_cli.proxy.queue.exchange import Exchange
from clairvoyant_cli.proxy.requests.serving_rules import Answered
from clairvoyant_cli.state.client import ControlClient
from clairvoyant_cli.state.last_day import STEP_S, STEPS, LastDay, Outage
from clairvoyant_cli.state.snapshot import Snapshot
from profiles.database import writing
from profiles.ledger import Ledger
from profiles.records import Begun, Incident, ServedRequest
from profiles.states import salt
from profiles.unfinished import note
from tests.fakes.daemon_parts import DaemonParts, daemon_parts
from tests.fakes.ended import ended
from tests.fakes.raw_http import chat
from tests.fakes.scripted_upstream import Conversation
from tests.fakes.serving import between, until

HOUR_S = 3600.0
MIDNIGHT = midnight_before(time.time())


@dataclass
class Truth:
    """A request as the test's own log has it."""

    arrived_at: float
    service_s: float
    began_at: float = 0.0
    ended_at: float = 0.0
    failed: bool = False


@dataclass
class Night:
    """A daemon with one slot, whose clock the test moves."""

    path: Path
    log: list[Truth] = field(default_factory=list)
    rng: random.Random = field(default_factory=lambda: random.Random(7))

    @contextmanager
    def daemon(self, now: float) -> Iterator[DaemonParts]:
        with closing(Ledger(self.path)) as ledger:
            daemon = daemon_parts("mac", capacity=1000, clients={"ann": ClientRules()})
            daemon.now[0] = now
            daemon.remember(ledger)
            yield daemon
            assert daemon.state_saver is not None
            daemon.state_saver.save()

    async def work(self, daemon: DaemonParts, until: float) -> None:
        """Have requests arrive and answered, until all have ended after a time; one at a time is served."""
        waiting: list[tuple[Exchange, Truth]] = []
        arrives_at = daemon.now[0]
        while waiting or arrives_at < until:
            running = next((each for each in waiting if each[0].attempt is not None), None)
            if running is not None and running[1].began_at + running[1].service_s <= arrives_at:
                exchange, truth = running
                truth.ended_at = daemon.now[0] = truth.began_at + truth.service_s
                assert exchange.attempt is not None
                exchange.attempt.totals = Totals(tokens=round(10 * truth.service_s), complete=True)
                daemon.after(exchange, Answered(200))
                waiting.remove(running)
            elif arrives_at < until:
                daemon.now[0] = arrives_at
                is_long = self.rng.random() < 0.3
                truth = Truth(arrives_at, self.rng.uniform(100, 140) if is_long else self.rng.uniform(5, 15))
                waiting.append((daemon.queued("0.9 long" if is_long else "0.1 short"), truth))
                self.log.append(truth)
                arrives_at += self.rng.expovariate(1 / 60)
                if arrives_at >= until:
                    arrives_at = float("inf")
            else:
                arrives_at = float("inf")
            for exchange, truth in waiting:
                if exchange.attempt is not None and not truth.began_at:
                    truth.began_at = daemon.now[0]

    def saved_s(self) -> float:
        """How much longer the answered requests would have waited in order of arrival, by a replay."""
        free_at, saved_s = 0.0, 0.0
        for each in (each for each in self.log if not each.failed):
            begins_at = max(each.arrived_at, free_at)
            free_at = begins_at + each.service_s
            saved_s += begins_at - each.began_at
        return saved_s


def overlap_s(since: float, until: float, step: float) -> float:
    return max(0.0, min(until, step + STEP_S) - max(since, step))


def assert_true(found: LastDay, log: list[Truth]) -> None:
    """Compare each step, and the sums, with a log."""
    for step in found.steps:
        of = [each for each in log if step.at <= each.ended_at < step.at + STEP_S]
        assert (step.requests, step.failed) == (len(of), sum(each.failed for each in of))
        lasts_s = min(STEP_S, max(found.taken_at - step.at, 1.0))
        busy_s = sum(overlap_s(each.began_at, each.ended_at, step.at) for each in log if each.began_at)
        waited_s = sum(overlap_s(each.arrived_at, each.began_at or each.ended_at, step.at) for each in log)
        assert step.busy == pytest.approx(busy_s / lasts_s, rel=0.05, abs=1e-6)
        assert step.waiting == pytest.approx(waited_s / lasts_s, rel=0.05, abs=1e-6)


async def test_a_night_over_midnight_an_outage_and_a_restart_is_as_the_log_says(tmp_path: Path) -> None:
    night = Night(tmp_path / "c.db")
    with night.daemon(MIDNIGHT - 2 * HOUR_S) as daemon:
        await night.work(daemon, MIDNIGHT - 0.5 * HOUR_S)
        for _ in range(25):  # the server fails them, then is away for a quarter of an hour
            daemon.now[0] += 8.0
            truth = Truth(daemon.now[0], 2.0, daemon.now[0], daemon.now[0] + 2.0, failed=True)
            exchange = daemon.queued("0.1 short")
            daemon.now[0] += 2.0
            exchange.remark = "CUDA error: out of memory"
            daemon.after(exchange, Answered(500))
            night.log.append(truth)
        failed_from, failed_until = night.log[-25].ended_at, night.log[-1].ended_at
        assert daemon.state_saver is not None
        daemon.becomes("mac", "down", "connection refused")
        for _ in range(90):
            daemon.now[0] += 10.0
            daemon.state_saver.incidents.look(daemon.now[0])
        down_until = daemon.now[0]
        daemon.becomes("mac", "up")
        await night.work(daemon, MIDNIGHT + 0.5 * HOUR_S)
        before = daemon.snapshot()
    with night.daemon(daemon.now[0] + 20.0) as daemon:
        after = daemon.snapshot()
        await night.work(daemon, MIDNIGHT + 2 * HOUR_S)
        found = daemon.last_day()
        gain = daemon.snapshot().gain
    assert found is not None
    assert failed_until < down_until
    assert_true(found, night.log)
    saved_s = sum(each.saved_s for each in found.steps)
    assert saved_s == pytest.approx(night.saved_s(), rel=0.05)
    assert gain.saved_yesterday_s + gain.saved_today_s == pytest.approx(saved_s, rel=0.01)
    assert gain.answers_yesterday == sum(each.ended_at < MIDNIGHT and not each.failed for each in night.log)
    (outage,) = found.outages
    assert outage == Outage("mac", failed_from, down_until, True, 25, "CUDA error: out of memory")
    began, over = (time.strftime("%H:%M", time.localtime(at)) for at in (failed_from, down_until))
    assert outage.sentence(found.taken_at) == f"{began}-{over} mac down, 25 failed: CUDA error: out of memory"

    # After the restart the figures of the hour and the day are those from before.
    assert (after.stats_paired, after.stats_fcfs) == (before.stats_paired, before.stats_fcfs)
    assert after.gain == before.gain
    assert after.stats == before.stats
    assert [(each.id, each.client, each.outcome) for each in after.recent] == [
        (each.id, each.client, each.outcome) for each in before.recent
    ]


def test_what_goes_wrong_with_a_server_within_five_minutes_is_one_incident() -> None:
    daemon, stored = daemon_parts("mac", "box"), dict[tuple[str, float], Incident]()

    def note(incident: Incident) -> None:
        stored[incident.server, incident.began_at] = incident

    incidents = Incidents(daemon.pool, note)

    def fails(at: float, **how: object) -> None:
        how = {"outcome": Outcome.UPSTREAM_ERROR, "status": 500} | how
        incidents.ended(ended(finished_at=at, **how))
        incidents.look(at)

    fails(1000.0, remark="")
    fails(1200.0, remark="a later word")
    fails(1200.0, status=404, remark="no such model")  # its own fault
    fails(2000.0, remark="gone")
    assert [*stored.values()] == [
        Incident("mac", 1000.0, 1200.0, False, 2, "a later word"),
        Incident("mac", 2000.0, 2000.0, False, 1, "gone"),
    ]


def test_an_answer_ends_an_incident_and_what_fails_after_it_is_another() -> None:
    daemon, stored = daemon_parts("mac"), dict[float, Incident]()
    incidents = Incidents(daemon.pool, lambda incident: stored.update({incident.began_at: incident}))
    failed = {"outcome": Outcome.UPSTREAM_ERROR, "status": 500}
    incidents.ended(ended(finished_at=1000.0, remark="gone", **failed))
    incidents.ended(ended(finished_at=1010.0))  # one of several fails
    incidents.ended(ended(finished_at=1020.0, remark="gone", **failed))
    incidents.ended(ended(finished_at=1060.0))
    incidents.ended(ended(finished_at=1070.0, remark="CUDA error", **failed))
    daemon.pool.first.status.state = "down"
    incidents.look(1080.0)
    daemon.pool.first.status.state = "up"
    incidents.ended(ended(finished_at=1090.0))
    incidents.ended(ended(finished_at=1100.0, remark="killed", **failed))
    incidents.look(1100.0)
    assert [*stored.values()] == [
        Incident("mac", 1000.0, 1020.0, False, 2, "gone"),
        Incident("mac", 1070.0, 1080.0, True, 1, "CUDA error"),
        Incident("mac", 1100.0, 1100.0, False, 1, "killed"),
    ]


def test_an_answer_that_took_too_long_is_trouble_with_its_server() -> None:
    daemon, stored = daemon_parts("mac"), list[Incident]()
    incidents = Incidents(daemon.pool, stored.append)
    incidents.ended(ended(finished_at=100.0, outcome=Outcome.TIMEOUT, status=504, remark="too long"))
    incidents.ended(
        ended(finished_at=110.0, outcome=Outcome.TIMEOUT, status=504, remark="late", last=NOWHERE)
    )
    incidents.look(110.0)
    assert stored == [
        Incident("mac", 100.0, 100.0, False, 1, "too long"),
        Incident("", 110.0, 110.0, False, 1, "late"),
    ]


def test_an_incident_that_was_stored_goes_on_after_a_restart() -> None:
    daemon, stored = daemon_parts("mac"), list[Incident]()
    incidents = Incidents(daemon.pool, stored.append)
    incidents.take_up([Incident("mac", 100.0, 200.0, True, 3, "gone")])
    daemon.pool.first.status.state = "down"
    incidents.look(260.0)
    assert stored == [Incident("mac", 100.0, 260.0, True, 3, "gone")]


def test_requests_that_nobody_could_take_count_as_refused_by_the_queue() -> None:
    outage = Outage("", MIDNIGHT, MIDNIGHT + 60.0, False, 12, "the queue is full")
    assert outage.sentence(MIDNIGHT + HOUR_S) == "00:00-00:01 12 refused: the queue is full"
    lasts = Outage("mac", MIDNIGHT, MIDNIGHT + 60.0, True)
    assert lasts.sentence(MIDNIGHT + 61.0) == "00:00-now mac down"


def test_a_long_answer_is_at_work_in_each_step_that_it_took() -> None:
    now = 1_000 * STEP_S
    row = ServedRequest(now - 100.0, "long", "p", 400.0, 1000.0, 5.0, 0.0, "completed")
    steps = last_day([row], [], now).steps
    assert len(steps) == STEPS
    assert sum(each.busy for each in steps) * STEP_S == pytest.approx(600.0)
    assert sum(each.waiting for each in steps) * STEP_S == pytest.approx(400.0)
    assert [each.requests for each in steps[-3:]] == [0, 1, 0]


async def ended_so_far(daemon: Daemon, number: int) -> Snapshot:
    return await until(daemon, lambda s: s.counters.upstream_error == number)


BODY = '{"error":"CUDA error: out of memory while decoding \\"my secret\\" for zebra"}'


async def test_the_words_of_a_server_that_fails_are_in_the_history_and_no_words_of_the_prompt(
    tmp_path: Path,
) -> None:
    path = tmp_path / "c.db"

    async def fails(it: Conversation) -> None:
        for _ in range(3):
            await it.request()
            it.send(
                b"HTTP/1.1 500 Internal Server Error\r\nContent-Type: application/json\r\n",
                b"Content-Length: %d\r\n\r\n%s" % (len(BODY), BODY.encode()),
            )

    with closing(Ledger(path)) as ledger:
        async with between(fails, persistence=ledger) as (daemon, client):
            for number in range(1, 4):
                answer = await client.ask(chat("0.1 a zebra with my secret"))
                assert answer.status == 500
                assert await ended_so_far(daemon, number)
            async with ControlClient(daemon.base_url) as control:
                found = await control.last_day()
    (outage,) = found.outages
    assert (outage.failed, outage.cause) == (3, "CUDA error: out of memory while decoding … for")
    assert sum(each.failed for each in found.steps) == 3

    shown = CliRunner().invoke(cli, ["history", "--last-night", "--db", str(path)])
    assert re.search(r"3 failed: CUDA error: out of memory while decoding", shown.output), shown.output
    assert "Last 24 hours: 3 requests, 3 of them failed" in shown.output
    told = json.loads(
        CliRunner().invoke(cli, ["history", "--last-night", "--json", "--db", str(path)]).output
    )
    assert [each["failed"] for each in told["outages"]] == [3]
    assert not re.search("zebra|secret", shown.output)
    bad = CliRunner().invoke(cli, ["history", "--last-night", "--since", "2h", "--db", str(path)])
    assert "do not go with --last-night" in bad.output


async def test_a_daemon_that_was_killed_is_an_incident_with_the_requests_that_it_had(tmp_path: Path) -> None:
    path = tmp_path / "c.db"
    with writing(path) as connection:
        for number in range(2):
            begun = Begun(f"abc-{number}", MIDNIGHT + number, "ann", "p", "m", "/api/chat")
            note(connection, "1 5.0", salt(connection), begun)
    with Night(path).daemon(MIDNIGHT + 60.0) as daemon:
        found = daemon.last_day()
    assert found is not None
    (outage,) = found.outages
    assert (outage.server, outage.began_at, outage.ended_at) == (
        "clairvoyant",
        MIDNIGHT + 1.0,
        MIDNIGHT + 60.0,
    )
    assert (outage.down, outage.failed) == (True, 2)
    assert "2 failed: the daemon was killed, or the machine lost power" in outage.sentence(MIDNIGHT + HOUR_S)
