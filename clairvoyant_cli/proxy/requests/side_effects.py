"""Decides whether a request may be repeated that a server has seen."""

import msgspec

from clairvoyant_cli.http.request import Request
from clairvoyant_cli.protocols.routes import Route, Shape, Work

KEPT_RUNNING = b"x-conversation-id"
"""With it llama.cpp goes on with a stream whose client has left, and keeps it to be read again."""


class Stored(msgspec.Struct):
    """Whether a server is asked to store its answer."""

    store: bool | None = None


STORED = msgspec.json.Decoder(Stored)


def has_no_side_effects(request: Request, route: Route) -> bool:
    """Whether a request may be repeated that a server has seen: not if the server stores the answer
    (`store`), or keeps generating without its client (llama.cpp).
    """
    if route.work not in (Work.GENERATE, Work.EMBED) or request.head.get(KEPT_RUNNING) is not None:
        return False
    if route.shape not in (Shape.RESPONSES, Shape.LMSTUDIO_CHAT):
        return True
    try:
        return STORED.decode(b"".join(request.arrived)).store is False
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
