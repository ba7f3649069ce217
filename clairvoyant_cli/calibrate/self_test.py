"""Finds out in idle moments whether a server's answers can be cut and continued, and how fast it is.

Rule 1: a test runs only while no request of a client is here. When one comes, the test's request is closed.
Rule 2: no request of a test takes longer than `PIECE_S`.
Rule 3: a test costs no money, loads no model, runs on no battery, and evicts no conversation that takes long
to read again.
"""

import asyncio
import logging
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import inf
from secrets import randbits
from typing import Protocol

import msgspec
import psutil

from clairvoyant_cli import __version__
from clairvoyant_cli.addresses import is_loopback
from clairvoyant_cli.backends.adapter import Found
from clairvoyant_cli.backends.client import Client, Question
from clairvoyant_cli.calibrate.prove import Progress, Prover, progress_name, progress_of
from clairvoyant_cli.calibrate.questions import reading
from clairvoyant_cli.calibrate.server_speeds import survey
from clairvoyant_cli.errors import ClairvoyantError
from clairvoyant_cli.protocols.model_settings import changed_parts
from clairvoyant_cli.proxy.composition import Daemon
from clairvoyant_cli.proxy.queue.ended import Ended
from clairvoyant_cli.proxy.servers.server import Server
from clairvoyant_cli.proxy.tasks import repeat
from profiles.records import MIN_TRIALS, Host, Profile, Served, best_of, verdict_of

PIECE_S = 2.0
FOREVER_S = 1e9  # Ollama's `keep_alive: -1` is a date in some 290 years
IDLE_S = 2.0  # without requests before a test; agents send their next request sooner
LOOK_EVERY_S = 1.0
ATTEMPTS = 5  # failures in a row before a message is logged
AGAIN_S, LONGEST_S = 10.0, 3600.0  # until the next attempt; twice as long each time
SLOWER = 0.7  # factor on the answers' lengths after an attempt that failed: the server may be slower by now
LOADED_FOR_S = 60.0  # after its last answer, where the server does not list what is loaded

READ_S = 0.2  # how long reading the longest prompt may take: a server may finish its batch before it stops
LEAST_TOKENS, MAX_TOKENS = 32, 400  # of that prompt; a server that is slower is only asked a short one
ANSWER_TOKENS = 16

# A conversation that was used within `REST_S`, and takes longer than `REREAD_S` to read, is not evicted.
REST_S, REREAD_S = 1800.0, 0.5


class Storage(Protocol):
    """Where progress and profiles are kept, such as `profiles.ledger.Ledger`."""

    def load(self, name: str) -> bytes | None: ...
    def save(self, name: str, state: bytes) -> None: ...
    def keep(self, profile: Profile) -> None: ...


@dataclass(slots=True)
class Trying:
    """A test of one model."""

    client: Client
    progress: Progress
    served: Served = field(default_factory=lambda: Served("", ""))
    prover: Prover | None = None
    failed: int = 0  # attempts in a row
    again_s: float = 0.0  # when the next is due
    over: bool = False  # there is nothing left to test


@dataclass(slots=True)
class SelfTest:
    """Tests the servers of a daemon while it runs."""

    daemon: Daemon
    storage: Storage
    _tests: dict[tuple[str, ...], Trying] = field(default_factory=dict)
    _answered: dict[str, tuple[str, float]] = field(default_factory=dict)
    _piece: asyncio.Timeout | None = None
    _busy_s: float = -inf

    async def run(self) -> None:
        logging.getLogger("httpx").setLevel(logging.WARNING)  # it logs each request
        self.daemon.keepers.functions.append(self.ended)
        self.daemon.changed.functions.append(self.changed)
        try:
            await repeat("the self-test", self._visit_all, LOOK_EVERY_S)
        finally:
            for test in self._tests.values():
                await test.client.http.aclose()

    async def _visit_all(self) -> None:
        for server in list(self.daemon.pool):
            await self._visit(server)

    def _now(self) -> float:
        return self.daemon.journal.clock()

    def changed(self) -> None:
        """Stop at once when a request arrives."""
        if self.daemon.dispatcher.live:
            self._busy_s = self._now()
            if self._piece is not None and not self._piece.expired():
                self._piece.reschedule(0.0)

    def ended(self, of: Ended) -> None:
        self._busy_s = of.ended_s
        if of.totals.complete:
            self._answered[of.last.server_id] = of.model, of.ended_s

    @property
    def _is_idle(self) -> bool:
        daemon = self.daemon
        is_free = not daemon.dispatcher.live and daemon.operation.mode == "serving"
        return is_free and self._now() - self._busy_s >= IDLE_S

    async def _visit(self, server: Server) -> None:
        """Test the loaded models of a server while there are no requests."""
        # Answers cost no money if the server runs on this machine, or its operator allows tests.
        is_ours = is_loopback(server.upstream.host) and not server.key and server.adapter.name != "other"
        is_free = (is_ours or server.config.self_test) and server.stamps is None
        if not self._is_idle or not is_free:
            return
        server.self_test = ""
        for model in self._loaded(server):
            unknown = server.proofs and server.settings_of(model) is None  # it has not been looked at yet
            if unknown or server.continuation_of(model) is not None:
                continue
            test = await self._test_of(server, model)
            while not test.over:
                waits = self._obstacle(server, test)
                said = "" if test.prover is None else f": {test.prover.done} of {test.prover.wanted} tried"
                server.self_test = f"self-test{said}, {waits or 'goes on when idle'}"
                if waits or not self._is_idle or not await self._piece_of(server, model, test):
                    break
            if test.over:
                server.self_test = ""

    def _loaded(self, server: Server) -> list[str]:
        """Return the models that are loaded now, as far as that is known."""
        names = [model.name for model in server.status.models]
        if not (server.adapter.SWAPS_MODELS or server.adapter.ANSWERS_ANY_MODEL):
            model, at_s = self._answered.get(server.id, ("", -inf))
            names = [model] if model and self._now() - at_s < LOADED_FOR_S else []
        return [name for name in names if server.adapter.CONTINUES and not server.runs_elsewhere(name)]

    async def _test_of(self, server: Server, model: str) -> Trying:
        digest = next((each.digest for each in server.status.models if each.name == model), "")
        key = (server.id, model, server.status.version, digest)
        if (test := self._tests.get(key)) is None:
            found = Found(
                server.adapter, server.upstream.url, server.prefix, server.status.version, server.slots
            )
            api_key = None if server.key is None else server.key.decode()
            client = Client(found, model, api_key, self.daemon.journal.clock)
            client.piece_s = PIECE_S
            progress = progress_of(self.storage.load(progress_name(client)))
            test = self._tests[key] = Trying(client, progress)
            news = f"{server.name}: finding out in idle time whether answers of {model} can be preempted"
            self._say(f"{news}; --no-self-test turns it off")
        return test

    def _obstacle(self, server: Server, test: Trying) -> str:
        """Return why a test waits, "" if it does not."""
        if server.status.state != "up" or server.standing or server.leads_back:
            return "waits for the server"
        if self._now() < test.again_s:
            return "waits after an error"
        with suppress(OSError):  # a kernel or container without /sys/class/power_supply
            battery = psutil.sensors_battery()
            if battery is not None and not battery.power_plugged:
                return "waits for mains power"
        scheduler, now = self.daemon.dispatcher.scheduler, self._now()
        cache = scheduler.fleet.servers[server.id].cache
        for kept in () if cache.keeps_all else cache.contexts:
            session = scheduler.sessions.known.get(kept.session)
            if session and now - session.last_end_s < REST_S and server.speeds.read_s(kept.tokens) > REREAD_S:
                return "waits: it would evict a session's KV cache"
        return ""

    async def _piece_of(self, server: Server, model: str, test: Trying) -> bool:
        """Run one part of a test; return whether it was completed."""
        try:
            async with asyncio.timeout(None) as self._piece:
                await server.adapter.refresh(server.ask, server.status, server.local_port)
                if model not in self._loaded(server):
                    return False  # nothing loads a model, or wakes it
                if server.adapter.REPORTS_SLOTS and await server.adapter.busy_slots(server.ask):
                    return False  # another client is there
                unloads_in_s = await server.adapter.unloads_in_s(server.ask, model)
                if unloads_in_s < PIECE_S + 1.0:
                    return False
                if server.adapter.OPTIONS_RELOAD:  # not later than without the test
                    stays_s = -1 if unloads_in_s > FOREVER_S else int(unloads_in_s - PIECE_S)
                    test.client.extra = {"keep_alive": stays_s}
                if (
                    server.loaded is not None and server.adapter.OPTIONS_RELOAD
                ):  # other options would load the model again
                    context = next(
                        (each.context for each in server.status.models if each.name == model), None
                    )
                    if context is None or not server.loaded.is_plain(model):
                        return False
                    test.client.options = {"num_ctx": context}
                await self._next(server, test)
        except TimeoutError:
            return False  # a request came
        except ClairvoyantError as error:
            test.failed += 1
            test.again_s = self._now() + min(AGAIN_S * 2.0**test.failed, LONGEST_S)
            if test.prover is not None:
                test.prover.rate *= SLOWER
            if test.failed == ATTEMPTS:
                self._say(f"{server.name}: no self-test of {model}: {error}; run: clairvoyant calibrate")
            return False
        finally:
            self._piece = None
        test.failed = 0
        self.storage.save(progress_name(test.client), msgspec.json.encode(test.progress))
        if test.prover is not None and test.prover.is_complete:
            test.over = True
            await self._conclude(server, test, test.prover)
        return True

    async def _next(self, server: Server, test: Trying) -> None:
        """Measure the speeds first, then make one trial after another."""
        client, progress = test.client, test.progress
        if not progress.decode_tokens_per_s:
            first = f"{randbits(20)}: count from one to twenty, in words, one after the other."
            read = answer = await client.ask(Question("first", first, ANSWER_TOKENS))
            tokens = min(round(READ_S * (answer.prefill_tokens_per_s or 0.0)), MAX_TOKENS)
            if tokens > LEAST_TOKENS:
                read = await client.ask(reading(tokens, randbits(20)), ANSWER_TOKENS)
            progress.prefill_tokens_per_s = read.prefill_tokens_per_s
            progress.ttft_s = answer.ttft_s
            if answer.decode_tokens_per_s is None:
                raise ClairvoyantError("its answers are too short to tell its speed")
            progress.decode_tokens_per_s = answer.decode_tokens_per_s
            server.speeds.learn(read.tokens, read.told_decode_s, read.read_tokens, read.told_prefill_s)
        elif test.prover is None:
            prover = Prover(client, server.slots, progress.decode_tokens_per_s, progress)
            await prover.look()
            wanted = None if server.adapter.ANSWERS_ANY_MODEL else client.model  # it may be listed by another
            test.served = (await survey(client, wanted)).served
            test.prover = prover
            for way in (way for each in server.profiles for way in each.continuations):
                is_known = way.trials >= MIN_TRIALS or way.faulty
                if is_known and not changed_parts(way.fingerprint, progress.fingerprint):
                    test.over = True
        else:
            await test.prover.step()

    async def _conclude(self, server: Server, test: Trying, prover: Prover) -> None:
        """Store the result in the profile of the model, or in a new one."""
        found, progress, model = prover.continuations, test.progress, test.client.model
        if (best := best_of(found)) is None:
            tried = any(progress.trials.values())
            nothing = (
                "continued answers were other texts" if tried else "none was long enough to be continued"
            )
            why = "; ".join(prover.notes) or nothing
            self._say(f"{server.name}: answers of {model} are not preempted: {why}")
            return
        profile = next((each for each in server.profiles if each.served.model == model), None)
        if profile is None:
            profile = Profile(
                name=test.served.profile_name,
                measured_at=time.time(),
                host=Host(),
                served=test.served,
                plan="self-test",
                decode_tokens_per_s=progress.decode_tokens_per_s,
                prefill_tokens_per_s=progress.prefill_tokens_per_s,
                ttft_s=progress.ttft_s,
                slots=server.slots,
                measured_by=__version__,
            )
        await asyncio.to_thread(self.storage.keep, replace(profile, continuations=found))
        if self.daemon.state_saver is not None:  # the next answer may be cut
            await self.daemon.state_saver.take_over()
        self._say(f"{server.name}: answers of {model} can be preempted: {verdict_of(best)}")

    def _say(self, news: str) -> None:
        self.daemon.journal.event(logging.INFO, news)
