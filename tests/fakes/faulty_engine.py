"""A replay engine that is told what to do wrong with the next requests."""

from collections import deque
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field

from clairvoyant_cli.demo.replay import Service
from clairvoyant_cli.demo.replay.dialects import RefusedError
from tests.fakes import replay_backend


class DiedError(Exception):
    """The engine was told to die in the middle of an answer."""


@dataclass(eq=False)
class FaultyEngine(replay_backend.Engine):
    """Refuses or breaks off, in turn, what it was told to."""

    faults: deque[RefusedError | int] = field(default_factory=deque)
    _fault_of: dict[Service, RefusedError | int] = field(default_factory=dict)

    def fail_next(self, status: int, message: str = "told to fail") -> None:
        """Answer the next request with this HTTP error."""
        self.faults.append(RefusedError(status, message))

    def die_next(self, after_tokens: int) -> None:
        """Break the connection of the next request after so many tokens."""
        self.faults.append(after_tokens)

    def arrive(
        self, route: str, prompt: str, text_chars: int, cap: int | None, said: str = ""
    ) -> replay_backend.Service:
        """Enter a request into the journal, and the next fault with it."""
        service = super().arrive(route, prompt, text_chars, cap, said)
        if self.faults:
            self._fault_of[service] = self.faults.popleft()
        return service

    async def prefill(self, service: Service) -> None:
        """Refuse the request if told so."""
        fault = self._fault_of.get(service)
        if isinstance(fault, RefusedError):
            raise fault
        await super().prefill(service)

    async def decode(self, service: Service) -> AsyncGenerator[list[str], None]:
        """Break off if told so."""
        fault, sent = self._fault_of.get(service), 0
        async with aclosing(super().decode(service)) as batches:
            async for words in batches:
                yield words
                sent += len(words)
                if isinstance(fault, int) and sent >= fault:
                    raise DiedError
