"""Parses request bodies for the scheduler. The body itself is forwarded byte for byte.

Rule 1: nothing here raises on client input. A body that cannot be parsed is queued as unknown, and the server
refuses it in its own words.
Rule 2: no body, nor many at once, blocks the event loop for more than some milliseconds. Of one that would
take longer only the model, whether it streams, and its size are read.
Rule 3: what is kept of a request is bounded, except for its text, which is dropped when the request ends.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

import msgspec

from clairvoyant_cli.http.limits import READING
from clairvoyant_cli.http.request import Piece, Request
from clairvoyant_cli.protocols import sound
from clairvoyant_cli.protocols.conversation import NO_CONVERSATION, Conversation, ConversationReader
from clairvoyant_cli.protocols.lenient_json import (
    ABSENT,
    OBJECT,
    Object,
    entries,
    is_given,
    is_object,
    is_plain,
    object_in,
    object_of,
    scalar,
    text,
    whole_number,
)
from clairvoyant_cli.protocols.long_bodies import LongBody
from clairvoyant_cli.protocols.media import LEAST_BYTES, Payloads
from clairvoyant_cli.protocols.outer_members import MAX_PIECES, OuterMembers, read_members, slices
from clairvoyant_cli.protocols.prompt_views import view_of
from clairvoyant_cli.protocols.request_bodies import KEPT_RUNNING, short_name
from clairvoyant_cli.protocols.routes import OLLAMA_SHAPES, Family, Route, Shape, Work
from predictor.record import PromptView, Task

SMALL_BYTES = 256 * 1024  # a body up to this is decoded at once, which takes 3 ms at most
RUNNER_OPTIONS = ("num_ctx", "num_batch", "num_gpu", "main_gpu", "use_mmap", "num_thread")
"""Options whose change makes Ollama reload the model (server/sched.go, needsReload)."""

LONGEST_ID = 256
CHOICES = {"n", "best_of", "n_cmpl"}  # fields that ask for several answers
EFFECTS = {"background", "integrations", "mcp_servers"}  # what a server does besides answering
SPECIAL = frozenset(CHOICES | EFFECTS).union(
    "web_search_options store tools service_tier priority previous_response_id".split()
)
"""Fields that tell more of a request than what it says. Most requests have none of them."""

STORING = (Shape.RESPONSES, Shape.LMSTUDIO_CHAT)
"""Whose answers a server stores unless it is asked not to. A later request may name such an answer,
which only its server has.
"""
MAX_CHOICES = 1024  # answers to one request that are believed; OpenAI allows 128
DECIDING = frozenset({"model", "messages", "prompt", "images", "keep_alive", "_debug_render_only"})
"""Fields that decide whether a request waits: what seems to be empty may ask for an essay."""

_OPENING = re.compile(rb'[ \t\r\n]*\{(?=[ \t\r\n]*")')
OPENING_BYTES = 256  # of a body, within which its first field must begin
MOST_TOOLS = 1024  # of which each is looked at
OF_CLIENTS = ("", "function", "custom", "local_shell", "apply_patch")
"""Types of tools that clients run. All others, such as `mcp`, are run by the server, maybe with effects."""

IMAGE_SIZE = re.compile(rb'"size"[\s:]*"([1-9][0-9]{1,4})x([1-9][0-9]{1,4})"')
IMAGE_COUNT = re.compile(rb'"n"[\s:]*([1-9][0-9]?)\b')

SERVICE_TIERS = {"priority": -1, "flex": 1}


class ServerTraits(Protocol):
    """What a server makes of a request in its own way."""

    OBEYS_COMPLETION_CAP: ClassVar[bool]  # whether `max_completion_tokens` bounds a chat's answer


@dataclass(slots=True)
class ParsedRequest:
    """What is known of a request."""

    model: str = ""
    client: str = ""
    stream: bool = False
    stream_unclear: bool = False  # "true", 1: vLLM takes it for true, llama.cpp for false
    view: PromptView | None = None  # None if the body could not be parsed
    choices: int = 1  # multiplies the answer's cost
    prompt_tokens: float = 0.0
    affinity: str = ""
    priority: int = 0
    bypass: str = ""  # why it does not wait in the queue, "" if it does
    opening: int = 0  # bytes before the body's first field, 0 if unknown
    ranks_itself: bool | None = None  # it sets the engine's priority field; None if unknown
    # Of a body that was not decoded, as far as it had come.
    members: OuterMembers | None = field(default=None, compare=False)
    follows: str = ""  # the stored response that it goes on from
    amount_kind: str = ""  # what `amount` counts, where the time of an answer is learned from that alone
    amount: float = 0.0
    only_answers: bool = False  # what a server does for it has no other effects than its answer
    conversation: Conversation = NO_CONVERSATION
    stabilised: str = ""  # what was done so that its prompt begins as the one before

    @property
    def modalities(self) -> frozenset[str]:
        """What its prompt has besides text: image, audio, video, file."""
        return frozenset(medium.kind for medium in self.conversation.media)


async def parse_request(
    pieces: Sequence[Piece],
    route: Route,
    traits: ServerTraits,
    client: str = "",
    *,
    whole: bool = True,
    ends: bool = True,
) -> ParsedRequest:
    """Parse a request's body, in pieces as it came. Of one that is not `whole`, only the model and whether it
    streams are looked for; `ends`: the pieces are all of it.
    """
    if route.shape is Shape.OPAQUE:
        parsed = _unknown(route, client)
        parsed.client = client
        parsed.amount_kind, parsed.amount = _amount(pieces, route.name) if ends else ("", 0.0)
        return parsed
    body: bytes | None = None
    payloads, size = Payloads(), sum(map(len, pieces))
    if whole and len(pieces) <= MAX_PIECES and size <= SMALL_BYTES:
        body = b"".join(pieces)
        if size >= LEAST_BYTES:  # a shorter body has no payload that is left out
            body = payloads.feed(body) + payloads.end()
    elif whole:
        long = await _read_slices(pieces)
        body, payloads = long.text(), long.payloads
        size -= payloads.left_out
    await READING.next()
    held = None if body is None else object_of(body)
    reader: ConversationReader | None = None
    if body is None or held is None:
        parsed = _unknown(route, client)
    else:
        parsed = parse_body(body, route, traits, client, held)
        if parsed.view is not None and route.work is Work.GENERATE:
            reader = ConversationReader(held, parsed.model, payloads)
    goes_on = reader is not None and reader.read_slice()
    while goes_on and reader is not None:
        await READING.next()
        goes_on = reader.read_slice()
    if reader is not None and body is not None:
        parsed.conversation = reader.conversation(body)
    if body is None and whole:
        parsed.prompt_tokens = size / 4  # how much of it is text is not known
    if parsed.ranks_itself is None:
        parsed.members = OuterMembers()
        await read_members(pieces, parsed.members)
        if body is None:
            parsed.model = parsed.members.model
            parsed.stream = parsed.members.found.get("stream", str(parsed.stream)).casefold() == "true"
    parsed.client, parsed.opening = client, opening_of(pieces)
    return parsed


def parse_body(
    raw: Piece, route: Route, traits: ServerTraits, client: str = "", held: Object | None = None
) -> ParsedRequest:
    """Parse a body, which is `held` if it was decoded before."""
    try:
        body = Object(OBJECT.decode(raw)) if held is None else held
        if "max_completion_tokens" in body and route.shape is Shape.CHAT and not traits.OBEYS_COMPLETION_CAP:
            del body["max_completion_tokens"]
        model = short_name(body["model"])
        view = view_of(route.shape, body)
        view.model, view.client = model, client
        is_ollama = route.shape in OLLAMA_SHAPES
        bypass = _bypass(body, route.shape, view) if is_ollama else ""
        if bypass and not is_plain(raw, DECIDING):
            return _unknown(route, client)
        stream = scalar(body["stream"])
        characters = len(view.prompt) + view.cut + len(view.system)
        for turn in view.history:
            characters += len(turn.text) + turn.cut
        parsed = ParsedRequest(
            model=model,
            stream=is_given(body["stream"]) if stream is not None else route.streams,
            stream_unclear=not isinstance(stream, bool | None),
            view=view,
            prompt_tokens=characters / 4,
            affinity=_affinity(body, model) if route.family is Family.OLLAMA else model,
            bypass=bypass,
            ranks_itself=False,
            only_answers=route.shape not in STORING,
        )
        return parsed if SPECIAL.isdisjoint(body) else _with_special(parsed, body, route.shape)
    except (msgspec.DecodeError, TypeError, ValueError, RecursionError, OverflowError):
        # No JSON, or something else than any client sends. The backend will say so better than we can.
        return _unknown(route, client)


def _with_special(parsed: ParsedRequest, body: Object, shape: Shape) -> ParsedRequest:
    choices = [whole_number(body[name], 2**63) or 1 for name in CHOICES & body.keys()]
    parsed.choices = min(MAX_CHOICES, max([1, *choices]))
    parsed.prompt_tokens += 0 if body["tools"] is ABSENT else len(body["tools"]) / 4  # they are read, too
    parsed.priority = SERVICE_TIERS.get(text(body["service_tier"]), 0)
    parsed.ranks_itself = body["priority"] is not ABSENT
    parsed.follows = text(body["previous_response_id"])[:LONGEST_ID]
    parsed.only_answers = _only_answers(body, shape)
    return parsed


def _unknown(route: Route, client: str) -> ParsedRequest:
    # That it is an embedding, the route alone tells.
    embedding = PromptView("", task=Task.EMBEDDING, client=client) if route.work is Work.EMBED else None
    return ParsedRequest(stream=route.streams, view=embedding)


def _amount(pieces: Sequence[Piece], path: str) -> tuple[str, float]:
    """Return how much a request for sound or images asks for, and what is counted: pixels, seconds, or bytes
    of its body.
    """
    if "/images/" not in path:
        counted, amount = sound.length_of(pieces)
        return f"{path} {counted}", amount
    start = sound.start_of(pieces)
    pixels, count = IMAGE_SIZE.search(start), IMAGE_COUNT.search(start)
    images = 1.0 if count is None else float(count[1])
    if pixels is None:
        return f"{path} images", images
    return f"{path} pixels", images * int(pixels[1]) * int(pixels[2])


async def _read_slices(pieces: Sequence[Piece]) -> LongBody:
    long = LongBody()
    for part in slices(pieces):
        await READING.next()
        long.feed(bytes(part))
        if not long.is_readable:
            break
    return long


def has_no_side_effects(request: Request, parsed: ParsedRequest) -> bool:
    """Whether a request may be repeated that a server has seen."""
    return parsed.only_answers and request.head.get(KEPT_RUNNING) is None


def _only_answers(body: Object, shape: Shape) -> bool:
    """Whether a server neither stores the answer, nor generates without its client, nor runs tools itself."""
    if any(is_given(body[name]) for name in EFFECTS & body.keys()):
        return False
    if is_object(body["web_search_options"]):  # an empty one asks for a search, too
        return False
    if scalar(body["store"]) not in ((False,) if shape in STORING else (False, None)):
        return False
    if body["tools"] is ABSENT:
        return True
    tools = entries(body["tools"]) or ()
    return len(tools) <= MOST_TOOLS and all(text(object_in(tool)["type"]) in OF_CLIENTS for tool in tools)


def _bypass(body: Object, shape: Shape, view: PromptView) -> str:
    """Return what a request asks Ollama for besides an answer, "" if nothing."""
    wanted = body["messages"] if shape is Shape.OLLAMA_CHAT else body["prompt"]
    if not is_given(wanted) and not view.images:
        return "unload" if scalar(body["keep_alive"]) in (0, "0") else "load"
    return "render" if is_given(body["_debug_render_only"]) else ""


def _affinity(body: Object, model: str) -> str:
    options = object_in(body["options"])
    wanted = ((name, scalar(options[name])) for name in RUNNER_OPTIONS)
    # Numbers and switches; Ollama refuses anything else.
    sane = ((name, value) for name, value in wanted if isinstance(value, int | float))
    chosen = [f"{name}={value}" for name, value in sane if -(2**63) <= value < 2**63]
    return " ".join([model, *chosen])


def opening_of(pieces: Sequence[Piece]) -> int:
    """Return the number of bytes before a body's first field; 0 if there is none or it is too far."""
    beginning = b""
    for piece in pieces:
        beginning += piece[: OPENING_BYTES - len(beginning)]
        if len(beginning) == OPENING_BYTES:
            break
    found = _OPENING.match(beginning)
    return 0 if found is None else found.end()
