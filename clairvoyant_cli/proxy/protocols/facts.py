"""What a request's body tells the scheduler. The body itself is forwarded byte for byte, whatever it is.

Rule 1: nothing here raises on a client's input. What cannot be understood is `None`: an unknown request,
which is queued as such and left to the backend to refuse in its own words.
Rule 2: no body keeps the event loop for longer than some milliseconds at a time, nor do many that come at
once. A long one is condensed a slice at a time first; of what is left, so much is looked at and no more.
Rule 3: what is kept of a request is bounded, but for its text, which goes when the request ends.
"""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

from clairvoyant_cli.http.body import Piece
from clairvoyant_cli.proxy.protocols.bodies import Body, Chat, OllamaBody, OllamaChat, OllamaGenerate, Options
from clairvoyant_cli.proxy.protocols.condense import Condenser
from clairvoyant_cli.proxy.protocols.routes import BackendKind, Route, Shape, Work
from clairvoyant_cli.proxy.protocols.texts import plain, short_name
from clairvoyant_cli.proxy.protocols.views import DIALECTS, ViewOf
from predictor.record import PromptView, Task

TINY_BYTES = 16 * 1024
"""A body up to this is decoded as it comes, which takes half a millisecond at most."""

SMALL_BYTES = 256 * 1024
"""A body up to this is decoded at once, which takes at most 7 ms (nothing but empty objects)."""

SLICE_BYTES = 64 * 1024
"""How much of a longer one is condensed at a time: at most 0.8 ms."""

SMALLEST_SLICE_BYTES = 8 * 1024

MOST_PIECES = 1024
"""A body in more pieces than this counts as long, and so many are joined at a time."""

RUNNER_OPTIONS = ("num_ctx", "num_batch", "num_gpu", "main_gpu", "use_mmap", "num_thread")
"""Options that make Ollama load the model anew when they change (server/sched.go, needsReload)."""

MAX_CHOICES = 1024
"""Answers to one request that are believed; OpenAI allows 128."""

SERVICE_TIERS = {"priority": -1, "flex": 1}


@dataclass(frozen=True, slots=True)
class RequestFacts:
    """What is known of a request. `bypass` says why it does not wait in the queue, "" if it does.

    `view` is None where the body could not be understood. `choices` multiplies the answer's cost.
    """

    model: str = ""
    stream: bool = False
    view: PromptView | None = None
    choices: int = 1
    prompt_tokens: float = 0.0
    affinity: str = ""
    priority: int = 0
    bypass: str = ""


async def read_facts(
    pieces: Sequence[Piece] | None, route: Route, kind: BackendKind, client: str = ""
) -> RequestFacts:
    """Read a request's body, in pieces as it came; None means that it was too long to be held.

    A long body is read a slice at a time, and the event loop turns in between.
    """
    if pieces is None or route.shape is Shape.OPAQUE:
        return facts_of(None, route, kind, client)
    size = sum(map(len, pieces)) if len(pieces) <= MOST_PIECES else SMALL_BYTES + 1
    if size > SMALL_BYTES:
        return facts_of(await _condensed(pieces), route, kind, client)
    if size > TINY_BYTES:
        await _reading.turn()
    return facts_of(pieces[0] if len(pieces) == 1 else b"".join(pieces), route, kind, client)


def facts_of(body: Piece | None, route: Route, kind: BackendKind, client: str = "") -> RequestFacts:
    """Read a short body, or one that has been condensed; None means that it was too long for either."""
    if body is None or route.shape is Shape.OPAQUE:
        return _unknown(route, client)
    decoder, view_of = DIALECTS[route.shape]
    try:
        return _read(decoder.decode(body), view_of, route, kind, client)
    except (msgspec.DecodeError, TypeError, ValueError, RecursionError, OverflowError):
        # No JSON, or something else than any client sends. The backend will say so better than we can.
        return _unknown(route, client)


def _unknown(route: Route, client: str) -> RequestFacts:
    # That it is an embedding, the route alone tells.
    embedding = PromptView("", task=Task.EMBEDDING, client=client) if route.work is Work.EMBED else None
    return RequestFacts(stream=route.streams, view=embedding)


class _Reading:
    """Sees to it that many bodies together take no longer turns of the loop than one does."""

    def __init__(self) -> None:
        self.bodies = 0
        self._decoding: asyncio.AbstractEventLoop | None = None

    def __enter__(self) -> None:
        self.bodies += 1

    def __exit__(self, *exc: object) -> None:
        self.bodies -= 1

    @property
    def slice_bytes(self) -> int:
        """How much of a body may be condensed at a time; the less, the more bodies there are."""
        return max(SMALLEST_SLICE_BYTES, SLICE_BYTES // self.bodies)

    async def turn(self) -> None:
        """Return in a turn of the loop in which no other body is decoded."""
        loop = asyncio.get_running_loop()
        while self._decoding is loop:  # noqa: ASYNC110 - an event would wake all in the same turn
            await asyncio.sleep(0)
        self._decoding = loop
        loop.call_soon(self._decoded)

    def _decoded(self) -> None:
        self._decoding = None


_reading = _Reading()


async def _condensed(pieces: Sequence[Piece]) -> bytes | None:
    condenser = Condenser()
    with _reading:
        for part in _slices(pieces):
            condenser.feed(part)
            if condenser.given_up:
                return None
            await asyncio.sleep(0)
    await _reading.turn()
    return condenser.condensed()


def _slices(pieces: Sequence[Piece]) -> Iterator[Piece]:
    """Cut long pieces, and join small ones."""
    small: list[Piece] = []
    size = 0
    for piece in pieces:
        limit = _reading.slice_bytes
        if size + len(piece) <= limit and len(small) < MOST_PIECES:
            small.append(piece)
            size += len(piece)
            continue
        if small:
            yield b"".join(small)
        at = 0
        while len(piece) - at > limit:
            yield piece[at : at + limit]
            at += limit
            limit = _reading.slice_bytes
        small = [piece[at:]]
        size = len(piece) - at
    yield b"".join(small)


def _read(body: Body, view_of: ViewOf, route: Route, kind: BackendKind, client: str) -> RequestFacts:
    model = short_name(body.model)
    if kind is BackendKind.OLLAMA and isinstance(body, Chat):
        body.max_completion_tokens = None  # Ollama has no such field and does not obey it
    view = view_of(body, model, client)
    characters = view.characters + len(view.system) + sum(turn.characters for turn in view.history)
    return RequestFacts(
        model=model,
        stream=route.streams if body.stream is None else bool(body.stream),
        view=view,
        choices=_choices(body),
        prompt_tokens=characters / 4,
        affinity=_affinity(body, model),
        priority=SERVICE_TIERS.get(plain(body.service_tier), 0),
        bypass=_bypass(body, view, kind, model),
    )


def _bypass(body: Body, view: PromptView, kind: BackendKind, model: str) -> str:
    if isinstance(body, OllamaChat | OllamaGenerate):
        wanted = body.messages if isinstance(body, OllamaChat) else body.prompt
        if not wanted and not view.images:
            return "unload" if body.keep_alive in (0, "0") else "load"
        if body.debug_render_only:
            return "render"
    if kind is BackendKind.OLLAMA and model.endswith((":cloud", "-cloud")):
        return "cloud"
    return ""


def _affinity(body: Body, model: str) -> str:
    options = body.options if isinstance(body, OllamaBody) else None
    if not isinstance(options, Options):
        return model
    wanted = ((name, getattr(options, name)) for name in RUNNER_OPTIONS)
    # Numbers and switches; Ollama refuses anything else.
    chosen = [
        f"{name}={value}" for name, value in wanted if isinstance(value, int | float) and _is_sane(value)
    ]
    return " ".join([model, *chosen])


def _is_sane(value: float) -> bool:
    return -(2**63) <= value < 2**63


def _choices(body: Body) -> int:
    wanted = (body.n, body.best_of, body.n_cmpl)
    return min(MAX_CHOICES, max([1, *(n for n in wanted if isinstance(n, int))]))
