"""The fields of heads that browsers need, for the heads that the proxy makes itself.

A page reads an answer only if its head allows the page's origin (Fetch, CORS protocol). Early heads and
refusals take these fields from an earlier answer to the same origin; before there is one, they allow the
origin, which was accepted when the request was.
"""

from clairvoyant_cli.http.fields import Header
from clairvoyant_cli.http.heads import RequestHead, ResponseHead

ALLOW_ORIGIN = b"access-control-allow-origin"
ALLOW_CREDENTIALS = b"access-control-allow-credentials"
ASKED_METHOD = b"access-control-request-method"
ASKED_HEADERS = b"access-control-request-headers"
OF_ORIGIN = (ALLOW_ORIGIN, ALLOW_CREDENTIALS, b"access-control-expose-headers", b"vary")
OF_STREAM = (b"cache-control", b"x-accel-buffering")
EARLY: dict[bytes, Header] = {
    b"cache-control": (b"Cache-Control", b"no-cache"),
    b"x-accel-buffering": (b"X-Accel-Buffering", b"no"),  # nginx would hold the heartbeats back
}
MOST_ORIGINS = 256
LONGEST_BYTES = 1024  # of a value that is remembered


def is_preflight(head: RequestHead) -> bool:
    """Whether a browser asks if a page may send a request; it carries no credentials and has no effect."""
    return (
        head.method == b"OPTIONS"
        and not head.has_body
        and head.get(b"origin") is not None
        and head.get(ASKED_METHOD) is not None
    )


class PageFields:
    """What servers answered to each origin; requests without an Origin have a record of their own."""

    def __init__(self) -> None:
        self._lent: dict[bytes, dict[bytes, Header]] = {}

    def learn(self, asked: RequestHead, answer: ResponseHead) -> None:
        """Remember what a server's answer says to the origin that it was asked from."""
        origin = asked.get(b"origin") or b""
        allowed = answer.get(ALLOW_ORIGIN) is not None
        wanted: tuple[bytes, ...] = OF_ORIGIN if asked.method != b"POST" else (*OF_ORIGIN, *OF_STREAM)
        if asked.method == b"OPTIONS":
            wanted = OF_ORIGIN[:2]  # the answer to a preflight has fewer fields
        elif not (allowed or 200 <= answer.status < 300):
            return  # many servers leave the fields out of errors
        lent = self._lent.pop(origin, {})
        for name in wanted:
            value = answer.get(name)
            if value is not None and len(value) <= LONGEST_BYTES:
                lent[name] = (name.title(), value)
            elif name in OF_ORIGIN:
                lent.pop(name, None)
        self._lent[origin] = lent
        if len(self._lent) > MOST_ORIGINS:
            del self._lent[next(iter(self._lent))]

    def of_refusal(self, asked: RequestHead) -> tuple[Header, ...]:
        """Return what lets a page read a refusal and its `Retry-After`; it tells nothing of the server's."""
        origin = asked.get(b"origin")
        if origin is None:
            return ()
        credentials = self._lent.get(origin, {}).get(ALLOW_CREDENTIALS)
        return (
            *_allowing(origin).values(),
            (b"Access-Control-Expose-Headers", b"Retry-After"),
            *(() if credentials is None else (credentials,)),
        )

    def of_early_head(self, asked: RequestHead) -> tuple[Header, ...]:
        """Return the fields of an early head: those of an earlier answer, or what lets the page read it."""
        origin = asked.get(b"origin")
        unknown = {} if origin is None else _allowing(origin)
        return tuple((EARLY | self._lent.get(origin or b"", unknown)).values())


def _allowing(origin: bytes) -> dict[bytes, Header]:
    return {ALLOW_ORIGIN: (b"Access-Control-Allow-Origin", origin), b"vary": (b"Vary", b"Origin")}


def preflight_answer(asked: RequestHead) -> ResponseHead:
    """Return the answer to a preflight of a request that will be refused, so that the page can read why."""
    fields = [
        (b"Access-Control-Allow-Origin", asked.get(b"origin") or b""),
        (b"Access-Control-Allow-Methods", asked.get(ASKED_METHOD) or b""),
        (b"Vary", b"Origin, Access-Control-Request-Method, Access-Control-Request-Headers"),
    ]
    if (wanted := asked.get(ASKED_HEADERS)) is not None:
        fields.append((b"Access-Control-Allow-Headers", wanted))
    return ResponseHead(204, b"No Content", fields)
