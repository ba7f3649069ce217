"""Reads requests with known answers, from files of JSON lines and from the history, as `serve` reads them."""

from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from sqlite3 import Connection

import msgspec
import numpy as np

from clairvoyant_cli.backends.adapters import adapter_of
from clairvoyant_cli.commands.setup import opened_database
from clairvoyant_cli.errors import ClairvoyantError
from clairvoyant_cli.protocols.chores import chore_of
from clairvoyant_cli.protocols.lenient_json import OBJECT
from clairvoyant_cli.protocols.long_bodies import LongBody
from clairvoyant_cli.protocols.request_parsing import SMALL_BYTES, ParsedRequest, parse_body
from clairvoyant_cli.protocols.routes import ROUTES, Work, plainly_spelled
from clairvoyant_lab.training.dataset import Dataset, read_dataset
from clairvoyant_lab.training.text_lines import MOST_CHARACTERS
from predictor.errors import ModelError
from predictor.record import PromptView
from profiles.history import Span, each
from profiles.records import Finished

ENDPOINTS: tuple[tuple[str, str, frozenset[str]], ...] = (
    ("/api/chat", "messages", frozenset(("options", "keep_alive", "think", "format"))),
    ("/v1/messages", "messages", frozenset(("system", "stop_sequences", "thinking"))),
    ("/v1/chat/completions", "messages", frozenset()),
    ("/api/v1/chat", "input", frozenset(("system_prompt", "integrations"))),
    ("/v1/responses", "input", frozenset()),
    ("/infill", "input_suffix", frozenset()),
    ("/completion", "prompt", frozenset(("n_predict",))),
    ("/v1/completions", "prompt", frozenset(("max_tokens",))),
    ("/api/generate", "prompt", frozenset()),
)
"""Endpoints with a field that their bodies have, and fields that only theirs have: the first that fits."""


class Line(msgspec.Struct):
    """The fields of a line that describe a request."""

    body: msgspec.Raw = msgspec.Raw()
    endpoint: str = ""
    client: str = ""
    backend: str = ""


LINE = msgspec.json.Decoder(Line)
TEXT = msgspec.json.Decoder(str)


def read_files(paths: Iterable[Path]) -> list[Dataset]:
    """Read files of requests; ModelError for one that cannot be used."""
    return [read_dataset(path, view_of_line) for path in paths]


def read_recorded(db_file: Path | None) -> Dataset:
    """Read the requests in the history; ClairvoyantError if none is recorded."""
    with opened_database(db_file) as connection:
        recorded = recorded_requests(connection, MOST_CHARACTERS)
    if not recorded:
        raise ClairvoyantError("no requests are recorded; run: clairvoyant serve --record-prompts")
    views = [view_of((row.body or "").encode(), row.endpoint, row.client, row.backend) for row in recorded]
    return Dataset("history", views, [""], np.array([[row.tokens] for row in recorded], np.float64))


def recorded_requests(connection: Connection, characters: int) -> list[Finished]:
    """Return the newest answered requests with a body, of `characters` at most, in order."""
    found = deque[Finished]()
    for row in each(connection, Span()):
        if row.body is not None and row.tokens is not None and row.outcome == "completed":
            found.append(row)
            characters -= len(row.body)
            while characters < 0:
                characters += len(found.popleft().body or "")
    return list(found)


def view_of_line(line: str) -> PromptView:
    """Return what `serve` sees of the request in a line; ModelError if it is none."""
    try:
        fields = LINE.decode(line)
        body = bytes(fields.body)
        if body in (b"", b"null"):  # beside `messages`, the line itself is the body
            body = line.encode()
        elif body.startswith(b'"'):
            body = TEXT.decode(body).encode()
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise ModelError(f"the request cannot be read: {error}") from None
    return view_of(body, fields.endpoint, fields.client, fields.backend)


def view_of(body: bytes, endpoint: str, client: str, backend: str) -> PromptView:
    """Return what `serve` sees of a body sent to an endpoint; ModelError if it would predict nothing.

    The endpoint may be "". `backend` is the name of the server's kind, for fields that not all of them obey.
    """
    route = ROUTES.get(plainly_spelled(endpoint or _endpoint_of(body)))
    if route is None or route.work is not Work.GENERATE:
        raise ModelError(f"endpoint {endpoint!r} generates no answer; give one such as /v1/chat/completions")
    read: bytes | None = body
    if len(body) > SMALL_BYTES:
        long = LongBody()
        long.feed(body)
        read = long.text()
    parsed = ParsedRequest() if read is None else parse_body(read, route, adapter_of(backend), client)
    view = parsed.view
    if view is None or parsed.bypass:
        raise ModelError(f"the body asks for no answer from {route.name}; check `body` and `endpoint`")
    return replace(view, chore=chore_of(None, view))


def _endpoint_of(body: bytes) -> str:
    try:
        names = OBJECT.decode(body).keys()
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        raise ModelError("`body` is not a JSON object") from None
    for endpoint, needed, own in ENDPOINTS:
        if needed in names and (not own or own & names):
            return endpoint
    raise ModelError("the API cannot be recognised by the fields of `body`; give its `endpoint`")
