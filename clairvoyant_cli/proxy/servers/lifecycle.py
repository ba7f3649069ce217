"""How servers join the pool, change state, drain and leave, and how the queue follows.

Rule 1: a server that is down or loading its model gets no requests; they wait for whichever is up first.
Rule 2: waiting requests are refused only once every server that can serve them has been away for longer than
the outage grace.
Rule 3: a server that drains, leaves or rests after failures gets only what no other server can serve.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from clairvoyant_cli.addresses import Address
from clairvoyant_cli.backends.prober import Ask
from clairvoyant_cli.config import BackendConfig, ServeConfig, name_for
from clairvoyant_cli.errors import ClairvoyantError
from clairvoyant_cli.protocols.printable import plural
from clairvoyant_cli.proxy.journal import Journal
from clairvoyant_cli.proxy.queue.dispatcher import Dispatcher, Spawn
from clairvoyant_cli.proxy.queue.exchange import Exchange, OutageError, Outcome, RequestEnd
from clairvoyant_cli.proxy.servers.find_servers import find_server
from clairvoyant_cli.proxy.servers.loaded_models import ModelResidency
from clairvoyant_cli.proxy.servers.matching import able_for, has_given_up, names
from clairvoyant_cli.proxy.servers.pool import ServerPool
from clairvoyant_cli.proxy.servers.server import Server
from clairvoyant_cli.proxy.servers.server_watch import ServerWatch
from clairvoyant_cli.scheduler.job import Job

OVERFLOW = b"Context size has been exceeded"  # llama.cpp's error to all slots (server-context.cpp)


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
        if self.pool.get(wanted.name or "") is not None:
            raise ClairvoyantError(f"a backend is called {wanted.name} already; give this one another name")
        server = await find_server(self.config, wanted, self.own, key=key, several=True)
        for each in self.pool:
            if each.name == server.name or each.place == server.place:
                await server.close()
                raise ClairvoyantError(f"{server.base_url} is there already, as {each.name}")
        self.adopt(server)
        self.joined(server)
        self.start(server)
        for each in self.pool:
            each.watch.look_now()  # with several servers it matters which models each has
        self.changed(server)
        return server

    def adopt(self, server: Server) -> None:
        """Add a server to the pool and open its slots."""
        server.watch = ServerWatch(
            server,
            server.prober,
            partial(self.changed, server),
            at_work=lambda: bool(self.dispatcher.attempts_on(server.name)),
            on_trial=partial(self.try_one, server),
            in_company=lambda: len(self.pool) > 1,
            look_closer=partial(self.see_settings, server),
            clock=self.journal.clock,
        )
        server.outage.grace_s = self.config.outage_grace
        server.outage.give_up = partial(self.outlasted, server)
        server.health.changed = self.share_out
        self.pool.servers[server.name] = server
        self._enter(server)

    def _enter(self, server: Server) -> None:
        """Make a server known to the scheduler."""
        scheduler = self.dispatcher.scheduler
        self._note_whether_it_swaps(server)
        scheduler.set_slots(server.name, server.room, weight=server.weight)
        scheduler.set_speed(server.name, server.speeds)

    def _name_by_kind(self, server: Server) -> bool:
        """Rename the only server if its name was guessed and it is of another kind; return whether it was."""
        scheduler, guessed = self.dispatcher.scheduler, server.name
        if not server.named_by_kind or guessed == server.adapter.name or len(self.pool) > 1:
            return False
        if self.dispatcher.attempts_on(guessed):  # `see_settings` comes back to it
            return False
        server.name, server.residents = server.adapter.name, None
        self.pool.servers = {server.name: server}
        self._watching[server.name] = self._watching.pop(guessed)
        scheduler.fleet.remove(guessed)
        scheduler.residency.fixed.discard(guessed)
        self._enter(server)
        self.joined(server)  # its profiles are those of its kind
        return True

    def start(self, server: Server) -> None:
        self._watching[server.name] = self.spawn(server.watch.run())
        server.upstream.keep_spare(self.spawn)

    def expect(self) -> None:
        """Have requests wait for the servers, which are just starting, as for ones that were up before."""
        for server in self.pool:
            server.seen = True
            server.watch.look_now()
            self.changed(server)

    def changed(self, server: Server) -> None:
        """Have the queue follow a change of a server's state, slots or models."""
        self._name_by_kind(server)
        if not server.away and (server.outage.lasts or server.outage.over):
            server.health.came_back()
        server.outage.note(away=server.away)
        self._match_waiting()
        self._open_slots()
        why = f" ({server.detail})" if server.detail else ""
        rest = f", {plural(server.room, 'slot')}" if server.state == "up" else ""
        news = f"{server.name} is {server.state}{why}{rest}"
        if news != server.news:  # models come and go far more often, and have a panel of their own
            server.news = news
            if server.state != "unknown":
                self.journal.event(logging.INFO, news)
        if server.residents is None and server.adapter.SWAPS_MODELS:  # it has just been recognised
            self._note_whether_it_swaps(server)
        if server.residents is not None:
            server.residents.listed((model.name for model in server.models), self._on(server))
        self.dispatcher.moved()

    def _on(self, server: Server) -> Iterator[Exchange]:
        for each in self.dispatcher.live.values():
            if each.attempt is not None and each.attempt.worker == server.name:
                yield each

    def _note_whether_it_swaps(self, server: Server) -> None:
        fixed = self.dispatcher.scheduler.residency.fixed
        if server.adapter.SWAPS_MODELS:
            fixed.discard(server.name)
            server.residents = ModelResidency(self.dispatcher.scheduler, server.name)
        else:
            fixed.add(server.name)

    def _match_waiting(self) -> None:
        """Tell the scheduler which servers can serve each request."""
        live = self.dispatcher.live

        def able(job: Job) -> frozenset[str]:
            return names(self.pool, able_for(self.pool, live[job.id]))

        if live:
            self.dispatcher.scheduler.set_able(able, self.journal.clock())

    def _open_slots(self) -> None:
        """Set the slots of each server. Health limits a server only while others take requests too."""
        # A server that is down, but was never up, is sent requests only while no other ever was.
        any_seen = any(server.seen for server in self.pool)
        takes_work = {
            server.name: not server.away and (server.state != "down" or not any_seen) for server in self.pool
        }
        others_can = sum(takes_work.values()) > 1
        for server in self.pool:
            slots = server.room if takes_work[server.name] else 0
            apart = server.draining
            if others_can:
                apart = apart or server.health.rests
                slots = min(slots, server.health.slots)
            self.dispatcher.scheduler.set_slots(
                server.name, slots, apart=apart, weight=server.weight, at_once=server.at_once
            )
            self.dispatcher.scheduler.fleet.stations[server.name].shared_tokens = server.shared_tokens

    def share_out(self) -> None:
        """Recompute the slots of all servers, and dispatch waiting requests."""
        self._open_slots()
        self.dispatcher.moved()

    async def see_settings(self, server: Server, ask: Ask | None = None) -> None:
        """Ask for a server's settings, and log once when proofs of exact continuation no longer hold."""
        if server.residents is not None:
            server.residents.loaded_with(server.models, self._on(server))
        if ask is None or not server.adapter.SETTINGS_WAKE or self.dispatcher.attempts_on(server.name):
            await server.see_settings(ask)  # a model that sleeps is left asleep until a request comes
        unproved = "; ".join(server.changes_since_proof())
        if unproved and unproved != server.unproved:
            news = f"{server.name}: {unproved}, so no answer is cut; prove it again: clairvoyant calibrate"
            self.journal.event(logging.WARNING, news)
        server.unproved = unproved
        if self._name_by_kind(server):  # it was busy when it was recognised
            self._match_waiting()

    def ended(self, exchange: Exchange, end: RequestEnd) -> None:
        """Count a success or failure towards the health of the server that answered; learn from an overflow
        of its KV cache that its slots share it.
        """
        if exchange.attempt is not None:
            server, usage = self.pool.server_of(exchange), exchange.attempt.usage
            refused = 400 <= end.status < 500  # the request's fault, not the server's
            failed = end.outcome is Outcome.UPSTREAM_ERROR and not refused
            overflow = failed and usage is not None and usage.holds(OVERFLOW)
            if overflow and not server.shares_cache and len(self.dispatcher.attempts_on(server.name)) > 1:
                server.shares_cache = True
                self._open_slots()
                news = f"the KV cache that its slots share overflowed ({server.shared_tokens:,.0f} tokens)"
                news += "; requests that do not fit together run one after the other from now on"
                self.journal.event(logging.WARNING, f"{server.name}: {news}")
            if failed:
                server.health.failed()
            elif end.outcome in (Outcome.COMPLETED, Outcome.UPSTREAM_ERROR):
                server.health.answered()

    def outlasted(self, server: Server) -> None:
        """Refuse the requests that wait for a server which is away for longer than the outage grace."""
        live = self.dispatcher.live.values()
        lost = [each for each in live if each.attempt is None and has_given_up(self.pool, each)]
        for exchange in lost:
            self.dispatcher.send_away(exchange, OutageError())
        refused = f"{plural(len(lost), 'request')} refused" if lost else "new requests are refused"
        news = f"{server.name} is still {server.state}: {refused}"
        self.journal.event(logging.WARNING, news)

    def try_one(self, server: Server) -> None:
        """Send one waiting request to a server that says it is loading, to see whether it serves by now."""
        self.dispatcher.scheduler.set_slots(server.name, 1, apart=server.draining)
        self.dispatcher.pump()
        self._open_slots()

    def drain(self, name: str) -> None:
        """Send a server only what no other can serve; KeyError if there is none of that name."""
        self.pool[name].draining = True
        self.share_out()

    def bring_up(self, name: str) -> None:
        """Send a server requests again, whatever it did before; KeyError if there is none of that name."""
        server = self.pool[name]
        server.draining = server.leaving = False
        server.health.forget()
        server.watch.look_now()
        self.share_out()

    def remove(self, name: str) -> None:
        """Remove a server once it is idle; KeyError for an unknown name, ValueError if no other stays."""
        server = self.pool[name]
        if not any(each is not server and not each.leaving for each in self.pool):
            raise ValueError(name)
        server.draining = server.leaving = True
        self.share_out()

    def remove_idle(self) -> None:
        """Remove leaving servers that have nothing left. Suspended answers of one that is away are lost."""
        for server in [each for each in self.pool if each.leaving]:
            if self.dispatcher.attempts_on(server.name):
                continue
            live = self.dispatcher.live.values()
            waiting = [each for each in live if able_for(self.pool, each) == [server]]
            if server.away or server.state == "down":
                for exchange in [each for each in waiting if each.is_suspended]:
                    self.dispatcher.send_away(exchange, OutageError())
            elif waiting:
                continue
            self._forget(server)

    def _forget(self, server: Server) -> None:
        del self.pool.servers[server.name]
        self.dispatcher.scheduler.fleet.remove(server.name)
        server.outage.note(away=False)
        server.health.forget()
        self._match_waiting()
        self._open_slots()
        self.journal.event(logging.INFO, f"{server.name} removed")
        watching = self._watching.pop(server.name, None)
        if watching is not None:
            watching.cancel()
        self.spawn(server.close())
        self.dispatcher.moved()
