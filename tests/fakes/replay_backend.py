"""The replay backend with a journal, counts to wait for, answers that are held back, and faults to order."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import asdict, dataclass, field
from enum import StrEnum

from clairvoyant_lab import replay
from clairvoyant_lab.replay import DEFAULT_MODEL, Speed, digest, heavy_tailed, tabled
from clairvoyant_lab.replay.dialects import RefusedError

__all__ = [
    "DEFAULT_MODEL",
    "Engine",
    "Outcome",
    "Replay",
    "Service",
    "Speed",
    "digest",
    "heavy_tailed",
    "tabled",
]


class Outcome(StrEnum):
    """The state of a request."""

    WAITING = "waiting"
    RUNNING = "running"
    COMPLETED = "completed"
    CANCELLED = "cancelled"
    FAILED = "failed"


@dataclass(slots=True, eq=False)
class Service(replay.Service):
    """One request in the journal; times are seconds on the event loop's clock.

    `start_order` counts from 0 in the order of taking slots. `fault`: what it is refused with, or the tokens
    after which it breaks off.
    """

    route: str = ""
    arrived_s: float = 0.0
    start_order: int | None = None
    fault: RefusedError | int | None = None
    started_s: float | None = None
    ended_s: float | None = None
    outcome: Outcome = Outcome.WAITING


@dataclass(slots=True)
class Counts:
    """The numbers of requests that have ever reached a state."""

    arrived: int = 0
    started: int = 0
    first_token: int = 0
    completed: int = 0
    cancelled: int = 0
    failed: int = 0

    @property
    def ended(self) -> int:
        return self.completed + self.cancelled + self.failed


class DiedError(Exception):
    """The engine was told to die in the middle of an answer."""


@dataclass(eq=False, repr=False)
class Engine(replay.Engine):
    """A replay engine that keeps a journal of what it served."""

    journal: list[Service] = field(default_factory=list)
    counts: Counts = field(default_factory=Counts)
    faults: deque[RefusedError | int] = field(default_factory=deque)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._changed = asyncio.Event()

    def __repr__(self) -> str:
        return f"<Engine {len(self.waiting)} waiting, {len(self.running)} running, {self.counts}>"

    @property
    def waiting(self) -> list[Service]:
        """The requests without a slot, in order of arrival."""
        return [s for s in self.journal if s.outcome is Outcome.WAITING]

    @property
    def running(self) -> list[Service]:
        return [s for s in self.journal if s.outcome is Outcome.RUNNING]

    @property
    def started(self) -> list[Service]:
        return sorted(
            (s for s in self.journal if s.start_order is not None), key=lambda s: s.start_order or 0
        )

    async def wait_until(self, reached: Callable[[Counts], bool], timeout_s: float = 10.0) -> None:
        """Wait until `reached(self.counts)`; TimeoutError with the state if that takes too long."""
        try:
            async with asyncio.timeout(timeout_s):
                while not reached(self.counts):
                    await self._changed.wait()
        except TimeoutError:
            raise TimeoutError(f"the replay backend did not reach it in {timeout_s} s: {self!r}") from None

    def freeze(self) -> None:
        """Stop sending tokens until `thaw`; slots stay occupied."""
        self._flowing.clear()

    def thaw(self) -> None:
        self._flowing.set()

    def fail_next(self, status: int, message: str = "told to fail") -> None:
        self.faults.append(RefusedError(status, message))

    def die_next(self, after_tokens: int) -> None:
        self.faults.append(after_tokens)

    def arrive(self, route: str, prompt: str, text_chars: int, cap: int | None, said: str = "") -> Service:
        planned = asdict(super().arrive(route, prompt, text_chars, cap, said))
        service = Service(**planned, route=route, arrived_s=asyncio.get_running_loop().time())
        service.fault = self.faults.popleft() if self.faults else None
        self.journal.append(service)
        self.counts.arrived += 1
        self._tell()
        return service

    @asynccontextmanager
    async def slot(self, service: replay.Service, text: str = "") -> AsyncIterator[None]:
        assert isinstance(service, Service)
        try:
            async with super().slot(service, text):
                service.outcome = Outcome.RUNNING
                service.start_order = self.counts.started
                service.started_s = asyncio.get_running_loop().time()
                self.counts.started += 1
                self._tell()
                yield
            service.outcome = Outcome.COMPLETED
            self.counts.completed += 1
        except asyncio.CancelledError:
            service.outcome = Outcome.CANCELLED
            self.counts.cancelled += 1
            raise
        except BaseException:
            service.outcome = Outcome.FAILED
            self.counts.failed += 1
            raise
        finally:
            service.ended_s = asyncio.get_running_loop().time()
            self._tell()

    async def prefill(self, service: replay.Service) -> None:
        """Wait for the prefill, and until the engine thaws; refuse the request if told so."""
        assert isinstance(service, Service)
        if isinstance(service.fault, RefusedError):
            raise service.fault
        await super().prefill(service)
        await self._flowing.wait()

    async def decode(self, service: replay.Service) -> AsyncGenerator[list[str], None]:
        """Yield the tokens, none while the engine is frozen; break off if told so."""
        assert isinstance(service, Service)
        sent = 0
        async with aclosing(super().decode(service)) as batches:
            async for words in batches:
                clock = asyncio.get_running_loop().time
                since_s = clock()
                await self._flowing.wait()
                service.begun_s += clock() - since_s
                yield words
                sent += len(words)
                if isinstance(service.fault, int) and sent >= service.fault:
                    raise DiedError

    def _sent(self, service: replay.Service, tokens: int) -> None:
        self.counts.first_token += service.tokens == 0
        super()._sent(service, tokens)
        self._tell()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


class Replay(replay.Replay):
    """The backend with such an engine."""

    engine: Engine
    engine_type = Engine
