"""The proxy inside the test's own event loop, and predictors that say what the test wants to hear."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from clairvoyant_lab.asgi_server import serve_app

from clairvoyant_cli.config import ServeConfig
from clairvoyant_cli.proxy.access.programs import Programs
from clairvoyant_cli.proxy.composition import Daemon
from clairvoyant_cli.proxy.daemon import running_daemon
from clairvoyant_cli.proxy.learning.persistence import Persistence
from clairvoyant_cli.proxy.servers.server import Server
from clairvoyant_cli.state.snapshot import Snapshot
from predictor.record import Prediction, Predictor, PromptView, UrgencyPredictor
from predictor.semantic.opinion import EncoderEstimate
from profiles.records import Profile
from tests.fakes.raw_http import Message, RawClient, chat, raw_client
from tests.fakes.replay_backend import Engine, Replay, tabled
from tests.fakes.scripted_upstream import Script, scripted

TICK_S = 0.01


@dataclass
class ByFirstWord(Predictor):
    """Predicts P(Long) from a number that opens the prompt (`0.9 tell me ...`); 0.5 where there is none.

    `seen` and `learned` keep what it was asked and told.
    """

    name: str = "first-word"
    seen: list[PromptView] = field(default_factory=list)
    learned: list[int] = field(default_factory=list)

    def predict(self, view: PromptView, opinion: EncoderEstimate | None = None) -> Prediction:
        self.seen.append(view)
        try:
            p_long = min(1.0, max(0.0, float(view.prompt.split(maxsplit=1)[0])))
        except (IndexError, ValueError):
            p_long = 0.5
        tokens = 50 + 1000 * p_long
        return Prediction(1 - p_long, 0.0, p_long, p_long, tokens, 2 * tokens, self.name, memo="note")

    def learn(self, prediction: Prediction, tokens: int) -> None:
        self.learned.append(tokens)


async def believe(server: Server, profile: Profile) -> None:
    """Have a server go by a profile, as if what it says of going on were measured of what serves now."""
    served = profile.served
    settings = await server.adapter.settings(server.ask, served.model, server.status.version)
    assert settings is not None
    proofs = tuple(replace(each, fingerprint=settings.fingerprint) for each in profile.continuations)
    server.profiles = (replace(profile, continuations=proofs),)
    await server.see_settings()


@asynccontextmanager
async def serving(
    backend: str | None,
    predictor: Predictor | None = None,
    *,
    faults_expected: bool = False,
    announced: bool = False,
    clock: Callable[[], float] = time.monotonic,
    self_test: Callable[[Daemon], Coroutine[Any, Any, None]] | None = None,
    persistence: Persistence | None = None,
    urgency_predictor: UrgencyPredictor | None = None,
    programs: Programs | None = None,
    replace: bool = False,
    body_budget_bytes: int | None = None,
    **settings: Any,
) -> AsyncIterator[Daemon]:
    """Run the proxy before `backend` on a free port; an internal error in it fails the test."""
    config = ServeConfig(backend=backend, **({"listen": "127.0.0.1:0"} | settings))
    with _internal_errors() as errors:
        async with running_daemon(
            config,
            predictor or ByFirstWord(),
            persistence=persistence,
            announced=announced,
            clock=clock,
            urgency=urgency_predictor,
            self_test=self_test,
            programs=programs,
            replace=replace,
        ) as daemon:
            if body_budget_bytes is not None:
                daemon.connections.body_budget_bytes = body_budget_bytes
            yield daemon
    if not faults_expected:
        assert not errors, errors


@asynccontextmanager
async def replaying(
    backend: Replay | Engine | None = None, predictor: Predictor | None = None, **settings: Any
) -> AsyncIterator[Daemon]:
    """Run the proxy before a replay backend, or one with this engine."""
    app = (backend if isinstance(backend, Replay) else Replay(backend)).app
    async with serve_app(app) as url, serving(url, predictor, **settings) as daemon:
        yield daemon


@asynccontextmanager
async def occupied(*headers: str, **settings: Any) -> AsyncIterator[tuple[Daemon, Engine]]:
    """A daemon whose one slot is taken by an answer that does not move, to a client with these headers."""
    engine = Engine(answer_tokens=tabled({"endless": 100_000, "short": 3}))
    engine.freeze()
    async with replaying(engine, **settings) as daemon, raw_client(daemon.base_url) as holder:
        holder.send(chat("endless", *headers))
        await engine.wait_until(lambda c: c.started == 1)
        yield daemon, engine


def secret(path: Path, text: str) -> str:
    """Write a file that only its owner can read; return its path as a setting."""
    path.write_text(text)
    path.chmod(0o600)
    return str(path)


@asynccontextmanager
async def between(
    script: Script,
    predictor: Predictor | None = None,
    *,
    raw: bool = False,
    read_ahead_bytes: int = 2**24,
    **settings: Any,
) -> AsyncIterator[tuple[Daemon, RawClient]]:
    """Run the proxy between a scripted upstream and a client that has connected."""
    async with (
        scripted(script, raw=raw, read_ahead_bytes=read_ahead_bytes) as upstream,
        serving(upstream.base_url, predictor, **settings) as daemon,
        raw_client(daemon.base_url) as client,
    ):
        yield daemon, client


class _internal_errors(logging.Handler):  # noqa: N801 - reads as a phrase where it is used
    """Collects what the daemon and the event loop report as their own faults."""

    LOGGERS = ("clairvoyant", "asyncio")

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(self.format(record))

    def __enter__(self) -> list[str]:
        for name in self.LOGGERS:
            logging.getLogger(name).addHandler(self)
        return self.found

    def __exit__(self, *exc: object) -> None:
        for name in self.LOGGERS:
            logging.getLogger(name).removeHandler(self)


async def ask(daemon: Daemon, request: bytes) -> Message:
    """Send a request over a connection of its own; return the answer."""
    async with raw_client(daemon.base_url) as client:
        return await client.ask(request)


@asynccontextmanager
async def asked(daemon: Daemon, *requests: bytes) -> AsyncIterator[list[RawClient]]:
    """Clients that have asked, a request each, and are all in the queue or beyond, in this order."""
    async with AsyncExitStack() as stack:
        opened = [await stack.enter_async_context(raw_client(daemon.base_url)) for _ in requests]
        before = daemon.snapshot().counters.submitted
        for count, (client, request) in enumerate(zip(opened, requests, strict=True), before + 1):
            client.send(request)
            await until(daemon, lambda s, n=count: s.counters.submitted >= n)  # type: ignore[misc]
        yield opened


async def until(daemon: Daemon, holds: Callable[[Snapshot], bool], timeout_s: float = 15.0) -> Snapshot:
    """Return the first state in which `holds`; TimeoutError with the last state if none comes."""
    try:
        async with asyncio.timeout(timeout_s):
            while not holds(state := daemon.snapshot()):
                # What a dashboard waits for, too; phases change without notice, hence the tick.
                with suppress(TimeoutError):
                    await asyncio.wait_for(daemon.control.next_change().wait(), TICK_S)
            return state
    except TimeoutError:
        shown = (state.counters, state.running, state.queue)
        raise TimeoutError(f"the daemon did not get there in {timeout_s} s: {shown}") from None
