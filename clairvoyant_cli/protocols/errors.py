"""The proxy's own refusals, in the words and shapes that each dialect's clients understand."""

from dataclasses import dataclass

from clairvoyant_cli.http.fields import Header
from clairvoyant_cli.http.heads import ResponseHead, reason_of
from clairvoyant_cli.protocols.routes import Family

OLLAMA_BUSY = "server busy, please try again.  maximum pending requests exceeded"
"""Ollama's own words, both spaces included (server/sched.go, ErrMaxQueue): clients match on them."""

OPENAI_TYPES = {400: "invalid_request_error", 401: "authentication_error", 429: "rate_limit_error"}
LLAMACPP_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    500: "server_error",
}
ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    529: "overloaded_error",
}


MAX_RETRY_AFTER_S = 60.0
"""The longest `Retry-After` of a queue: for a longer one, OpenAI's and Anthropic's SDKs try again at once, or
never.
"""


@dataclass(frozen=True, slots=True)
class Refusal:
    """An error answer of the proxy's own; `kind` names it in metrics."""

    status: int
    message: str
    retry_after_s: float | None = None
    busy: bool = False  # the queue is full
    final: bool = False  # it would come again
    kind: str = "other"
    body: bytes = b""  # the server's own, in place of one that says `message`

    @property
    def is_final(self) -> bool:
        """Whether SDKs do not send the request again after it."""
        return self.final or (400 <= self.status < 500 and self.status not in (408, 409, 425, 429))

    @property
    def reason(self) -> str:
        """Its message as people see it in `top` and the history."""
        return self.message.removeprefix("clairvoyant: ")


def response(refusal: Refusal, content_type: bytes, body: bytes) -> tuple[ResponseHead, bytes]:
    headers: list[Header] = []
    if refusal.retry_after_s is not None:
        headers.append((b"Retry-After", b"%d" % max(1, round(refusal.retry_after_s))))
    if refusal.final:
        headers.append((b"X-Should-Retry", b"false"))  # which OpenAI's and Anthropic's SDKs follow
    headers.append((b"Content-Type", content_type + b"; charset=utf-8"))
    return ResponseHead(refusal.status, reason_of(refusal.status), headers), body


def error_object(refusal: Refusal, family: Family) -> dict[str, object]:
    status = refusal.status
    if family is Family.OLLAMA:
        return {"error": OLLAMA_BUSY if refusal.busy else refusal.message}
    if family is Family.ANTHROPIC:
        error = {"type": ANTHROPIC_TYPES.get(status, "api_error"), "message": refusal.message}
        return {"type": "error", "error": error}
    if family is Family.LLAMACPP:
        error_type = LLAMACPP_TYPES.get(status, "unavailable_error")
        return {"error": {"code": status, "message": refusal.message, "type": error_type}}
    error_type = OPENAI_TYPES.get(status, "api_error")
    return {"error": {"message": refusal.message, "type": error_type, "param": None, "code": None}}
