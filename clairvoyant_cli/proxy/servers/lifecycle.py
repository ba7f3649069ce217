"""How servers join the pool, change state, drain and leave, and how the queue follows.

Rule 1: a server that is down or loading its model gets no requests; they wait for whichever is up first.
Rule 2: waiting requests are refused only once every server that can serve them has been away for longer than
the outage grace.
Rule 3: a server that drains, leaves or rests after failures gets only what no other server can serve.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf

from clairvoyant_cli.addresses import Address
from clairvoyant_cli.backends.prober import TIMED_OUT, Ask, AskingOnce, engine_load
from clairvoyant_cli.config import BackendConfig, ServeConfig, name_for
from clairvoyant_cli.errors import ClairvoyantError
from clairvoyant_cli.http.upstream import UpstreamError
from clairvoyant_cli.protocols.model_settings import changed_parts
from clairvoyant_cli.protocols.printable import plural
from clairvoyant_cli.proxy.journal import Journal
from clairvoyant_cli.proxy.queue.dispatcher import Dispatcher, Spawn
from clairvoyant_cli.proxy.queue.ended import Outcome
from clairvoyant_cli.proxy.queue.exchange import Exchange, OutageError, Phase, RequestEnd
from clairvoyant_cli.proxy.servers.engine_queue import order_at
from clairvoyant_cli.proxy.servers.find_servers import find_server, recognise_again
from clairvoyant_cli.proxy.servers.loaded_models import LoadedModels
from clairvoyant_cli.proxy.servers.pool import ServerPool
from clairvoyant_cli.proxy.servers.server import Server
from clairvoyant_cli.proxy.servers.silence import overdue
from clairvoyant_cli.proxy.tasks import repeat
from clairvoyant_cli.scheduler.job import Job

UP_EVERY_S = 5.0
ENGINE_EVERY_S = 1.0  # for an engine with its own queue, while it has requests
DOWN_EVERY_S = 1.0
# A server that is away is asked every second, and less often the longer it is: its return is noticed within
# a tenth of its absence.
AWAY_SHARE = 0.1
MAX_DOWN_EVERY_S = 15.0
LEADS_BACK = "its address leads back to this proxy; give --backend the LLM server itself"
# The error to all slots of llama.cpp (server-context.cpp), and so of LM Studio.
OVERFLOW = b"Context size has been exceeded"


@dataclass(slots=True)
class ServerLifecycle:
    """Lets servers join and leave a pool, and keeps the scheduler's slots in step with their states.

    `joined` is called with each server that joins while the pool runs. The proxy listens on its `own`
    addresses.
    """

    config: ServeConfig
    pool: ServerPool
    dispatcher: Dispatcher
    journal: Journal
    spawn: Spawn
    own: Sequence[Address]
    joined: Callable[[Server], None]
    _watching: "dict[str, asyncio.Task[None]]" = field(default_factory=dict)

    async def add(self, wanted: BackendConfig, key: str | None = None) -> Server:
        """Let a server join while the pool runs; ClairvoyantError if it cannot, or is in the pool already."""
        wanted = replace(wanted, name=wanted.name or name_for(wanted.url or ""))
        if any(each.name == wanted.name for each in self.pool):
            raise ClairvoyantError(f"a backend is called {wanted.name} already; give this one another name")
        server = await find_server(self.config, wanted, self.own, key=key, several=True)
        for each in self.pool:
            if each.name == server.name or each.place == server.place:
                await server.close()
                raise ClairvoyantError(f"{server.id} is there already, as {each.name}")
        self.adopt(server)
        self.joined(server)
        self.start(server)
        for each in self.pool:
            each.probe_due.set()  # with several servers it matters which models each has
        self.changed(server)
        return server

    def adopt(self, server: Server) -> None:
        """Add a server to the pool and open its slots."""
        server.changed, server.health.changed = self.changed, self.share_out
        server.health.grace_s = self.config.outage_grace
        server.health.give_up = partial(self.outlasted, server)
        self.pool.join(server)
        scheduler = self.dispatcher.scheduler
        self._follow_swapping(server)
        scheduler.fleet.set_slots(server.id, server.room, weight=server.config.weight)
        scheduler.fleet.servers[server.id].speed = server.speeds

    def start(self, server: Server) -> None:
        server.up_s = self.journal.clock()
        look = partial(self._probe_and_wait, server)
        self._watching[server.id] = self.spawn(repeat(f"watching {server.name}", look))

    async def _probe_and_wait(self, server: Server) -> None:
        """Update a server's status, and return when the next look is due."""
        server.probe_due.clear()
        await self._probe(server)
        server.announce()
        self._check_overdue(server)
        if server.status.state == "loading":
            self.try_one(server)
        now = self.journal.clock()
        pause_s = max(DOWN_EVERY_S, min(AWAY_SHARE * (now - server.up_s), MAX_DOWN_EVERY_S))
        if server.status.state == "up":
            server.up_s = now
            works = server.stamps is not None and self.dispatcher.attempts_on(server.id)
            pause_s = ENGINE_EVERY_S if works or server.health.hung else UP_EVERY_S
        with suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await server.probe_due.wait()

    def _check_overdue(self, server: Server) -> None:
        """Note which requests of a server are overdue, and have those tried elsewhere that can be."""
        now, known = self.journal.clock(), server.silences
        swaps = self.dispatcher.scheduler.fleet.residency.swaps
        attempts = self.dispatcher.attempts_on(server.id)
        running = [attempt for attempt in attempts if attempt.phase is not Phase.RELEASING]
        job_ids = [attempt.run.job.id for attempt in running]
        loads = None if server.loaded is None else any(swaps(server.id, job_id, "") for job_id in job_ids)
        queues = server.stamps is not None
        late = overdue(running, known, server.speeds, now, loads=loads, queues=queues)
        for job_id, attempt in zip(job_ids, running, strict=True):
            if attempt.overdue_s is not None and (attempt.heard_s or 0.0) > attempt.overdue_s:
                attempt.overdue_s = None  # it has been heard again, not only another request
            if job_id not in late:
                continue
            if attempt.overdue_s is None:
                attempt.overdue_s = now
                silent_s = now - (attempt.heard_s or now)
                news = f"{server.name} has sent nothing of {job_id} for {silent_s:.0f} s"
                self.journal.event(logging.WARNING, f"{news}, far longer than expected")
                if known.heard_s <= (attempt.heard_s or 0.0):  # it answers nobody
                    server.health.hangs(now)
                    self.share_out()
            if attempt.give_up is not None and self.pool.elsewhere(self.dispatcher.live[job_id]):
                attempt.give_up(UpstreamError("no answer came in time"))
        if server.health.hung and known.heard_s > server.health.hung_s:
            self.journal.event(logging.INFO, f"{server.name} answers again")
            server.health.forget()
            self.share_out()

    async def _probe(self, server: Server) -> None:
        was_up, server.probe_came_back = server.status.state == "up", False
        ask = AskingOnce(server.ask)
        await recognise_again(server, ask)
        status = server.status
        await server.adapter.refresh(ask, status, server.local_port)
        metrics = None if server.stamps is None else server.stamps.metrics
        if metrics is not None and status.state == "up":
            host, url = server.upstream.host, server.config.metrics_url
            status.learn_load(await engine_load(metrics, ask, server.prober, host, url))
        if status.detail == TIMED_OUT and was_up and self.dispatcher.attempts_on(server.id):
            status.state = "up"  # its only thread is busy with a request
        server.leads_back = server.probe_came_back
        if server.leads_back:
            status.state, status.detail = "down", LEADS_BACK
        if status.state == "up":
            if len(self.pool) > 1:
                await server.adapter.list_models(ask, status)
            await self.see_settings(server, ask)
        status.seen = status.seen or status.state in ("up", "loading")

    def expect(self) -> None:
        """Have requests wait for the servers, which are just starting, as for ones that were up before."""
        for server in self.pool:
            server.status.seen = True
            server.probe_due.set()
            self.changed(server)

    def changed(self, server: Server) -> None:
        """Have the queue follow a change of a server's state, slots or models."""
        if server.config.name is None and server.name != server.adapter.name and len(self.pool) == 1:
            server.name = server.adapter.name  # the name was guessed, and it is of another kind
            self.joined(server)  # its profiles are those of its kind
        server.health.set_away(away=server.away)
        self._match_waiting()
        self._open_slots()
        status = server.status
        why = f" ({status.detail})" if status.detail else ""
        rest = f", {plural(server.most, 'slot')}" if status.state == "up" else ""
        news = f"{server.name} is {status.state}{why}{rest}"
        # Models come and go far more often, and have a panel of their own.
        if server.is_news("state", news) and status.state != "unknown":
            self.journal.event(logging.INFO, news)
        if (order := order_at(server)) and server.is_news("order", order):
            self.journal.event(logging.INFO, order)
        if (server.loaded is None) is server.adapter.SWAPS_MODELS:  # it has just been recognised
            self._follow_swapping(server)
        if server.loaded is not None:
            names = (model.name for model in status.models)
            server.loaded.listed(names, self.dispatcher.attempts_on(server.id))
        self.dispatcher.moved()

    def _follow_swapping(self, server: Server) -> None:
        fixed = self.dispatcher.scheduler.fleet.residency.fixed
        if server.adapter.SWAPS_MODELS:
            fixed.discard(server.id)
            server.loaded = LoadedModels(self.dispatcher.scheduler, server.id, server.known_as)
        else:
            fixed.add(server.id)
            server.loaded = None

    def _match_waiting(self) -> None:
        """Tell the scheduler which servers can serve each request."""
        live = self.dispatcher.live

        def able(job: Job) -> frozenset[str]:
            return self.pool.ids(self.pool.able_for(live[job.id]))

        if live:
            self.dispatcher.scheduler.set_able(able, self.journal.clock())

    def _open_slots(self) -> None:
        """Set the slots of each server. Health limits a server only while others take requests too."""
        # A server that is down, but was never up, is sent requests only while no other ever was.
        any_seen = any(server.status.seen for server in self.pool)
        takes_work = {
            server.id: not server.away and (server.status.state != "down" or not any_seen)
            for server in self.pool
        }
        others_can = sum(takes_work.values()) > 1
        for server in self.pool:
            slots = server.room if takes_work[server.id] else 0
            last_resort = bool(server.health.withdrawn)
            if others_can:
                last_resort = last_resort or server.health.rests
            if others_can or server.health.hung:
                slots = min(slots, server.health.slots)
            self.dispatcher.scheduler.fleet.set_slots(
                server.id, slots, last_resort=last_resort, weight=server.config.weight, at_once=server.at_once
            )
            there = self.dispatcher.scheduler.fleet.servers[server.id]
            there.lent, status = server.lent * takes_work[server.id], server.status
            there.model_slots, there.shared_tokens = status.model_slots, inf
            if status.shares_cache and server.slots > 1:  # what the contexts of all may have together
                context = status.models[0].context if status.models else None
                there.shared_tokens = context or status.overflowed_at or inf
            self.dispatcher.scheduler.fleet.residency.set_room(server.id, status.most_models)

    def share_out(self) -> None:
        """Recompute the slots of all servers, and dispatch waiting requests."""
        self._open_slots()
        self.dispatcher.moved()

    async def see_settings(self, server: Server, ask: Ask | None = None) -> None:
        """Ask for a server's settings, and log once when proofs of exact continuation no longer hold."""
        if server.loaded is not None and server.adapter.OPTIONS_RELOAD:
            server.loaded.loaded_with(server.status.models, self.dispatcher.attempts_on(server.id))
        if ask is None or not server.adapter.SETTINGS_WAKE or self.dispatcher.attempts_on(server.id):
            await server.see_settings(ask)  # a model that sleeps is left asleep until a request comes
        changes = []
        for model, proof in server.proofs.items():
            settings = server.settings_of(model)
            if settings is None or server.continuation_of(model) is not None:
                continue
            other = " and ".join(changed_parts(proof.fingerprint, settings.fingerprint))
            news = f"{model} is not what was measured (another {other})"
            unknown = f"the settings with which {model} was measured are not known"
            changes.append(news if proof.fingerprint else unknown)
        unproved = f"{server.name}: {'; '.join(changes)}, so no answer is preempted"
        if server.is_news("proof", changes) and changes:
            news = f"{unproved}; prove it again: clairvoyant calibrate"
            self.journal.event(logging.WARNING, news)

    def settle(self, exchange: Exchange, end: RequestEnd) -> None:
        """Count a success or failure towards the health of the server that answered; learn from an overflow
        of its KV cache that its slots share it.
        """
        attempt = exchange.attempt
        if attempt is None or end.outcome not in (Outcome.COMPLETED, Outcome.UPSTREAM_ERROR):
            return
        server = self.pool.server_of(exchange)
        failed = end.outcome is Outcome.UPSTREAM_ERROR
        if failed and attempt.usage is not None and attempt.usage.holds(OVERFLOW):
            beside = self.dispatcher.attempts_on(server.id)
            if not server.status.shares_cache and len(beside) > 1:
                server.status.shares_cache = True
                server.status.overflowed_at = sum(e.run.job.prompt_tokens + e.tokens for e in beside)
                self._open_slots()
                size = self.dispatcher.scheduler.fleet.servers[server.id].shared_tokens
                news = f"the KV cache that its slots share overflowed ({size:,.0f} tokens)"
                news += "; requests that do not fit together run one after the other from now on"
                self.journal.event(logging.WARNING, f"{server.name}: {news}")
        if not failed or 400 <= end.status < 500:  # which is the request's fault, not the server's
            server.health.failures = 0
        elif server.health.failed():
            self._open_slots()

    def outlasted(self, server: Server) -> None:
        """Refuse the requests that wait for a server which is away for longer than the outage grace."""
        live = self.dispatcher.live.values()
        lost = [each for each in live if each.attempt is None and self.pool.has_given_up(each)]
        for exchange in lost:
            self.dispatcher.send_away(exchange, OutageError())
        refused = f"{plural(len(lost), 'request')} refused" if lost else "new requests are refused"
        news = f"{server.name} is still {server.status.state}: {refused}"
        self.journal.event(logging.WARNING, news)

    def try_one(self, server: Server) -> None:
        """Send one waiting request to a server that says it is loading, to see whether it serves by now."""
        self.dispatcher.scheduler.fleet.set_slots(server.id, 1, last_resort=bool(server.health.withdrawn))
        self.dispatcher.pump()
        self._open_slots()

    def withdraw(self, server: Server, how: str) -> None:
        """Send a server only what no other can serve; if it is "leaving", remove it once it is idle."""
        server.health.withdrawn = how
        self.share_out()

    def bring_up(self, server: Server) -> None:
        """Send a server requests again, whatever it did before."""
        server.health.withdrawn = ""
        server.health.forget()
        server.probe_due.set()
        self.share_out()

    def remove_idle(self) -> None:
        """Remove leaving servers that have nothing left. Suspended answers of one that is away are lost."""
        for server in self.pool.copy():
            if server.health.withdrawn != "leaving" or self.dispatcher.attempts_on(server.id):
                continue
            live = self.dispatcher.live.values()
            waiting = [each for each in live if self.pool.able_for(each) == [server]]
            if server.away or server.status.state == "down":
                for exchange in [each for each in waiting if each.is_suspended]:
                    self.dispatcher.send_away(exchange, OutageError())
            elif waiting:
                continue
            self._forget(server)

    def _forget(self, server: Server) -> None:
        self.pool.leave(server)
        self.dispatcher.scheduler.fleet.remove(server.id)
        server.health.set_away(away=False)
        server.health.forget()
        self._match_waiting()
        self._open_slots()
        self.journal.event(logging.INFO, f"{server.name} removed")
        watching = self._watching.pop(server.id, None)
        if watching is not None:
            watching.cancel()
        self.spawn(server.close())
        self.dispatcher.moved()
