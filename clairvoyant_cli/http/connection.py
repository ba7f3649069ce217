"""What a request, and whoever answers it, may do with the connection that it came on."""

from collections.abc import Callable
from typing import Protocol

from clairvoyant_cli.http.fields import Header
from clairvoyant_cli.http.heads import ResponseHead
from clairvoyant_cli.http.limits import ConnectionTable


class Throttle(Protocol):
    """Whatever feeds a connection and can be asked to wait."""

    def pause(self) -> None:
        """Stop feeding."""

    def resume(self) -> None:
        """Feed again."""


class ClientConnection(Throttle, Protocol):
    """A client, as the request it sent sees it; as a throttle it feeds the request's body onward."""

    peer: str
    table: ConnectionTable

    @property
    def gone(self) -> bool:
        """Whether the client has left; what is done for it is about to be cancelled."""
        ...

    @property
    def head_sent(self) -> bool:
        """Whether the answer to the present request has begun."""
        ...

    def pause_reading(self) -> None:
        """Leave what the client sends in the socket, and what has been received unread."""

    def resume_reading(self) -> None:
        """Read again."""

    def waits_in_queue(self) -> None:
        """What the client asked for may take long: from now on, above all, its leaving must be noticed."""

    def fed_by(self, throttle: Throttle | None) -> None:
        """Name what feeds the client from now on; it waits at once if the last answer is still on its way."""

    def send_informational(self, head: ResponseHead) -> None:
        """Pass on a 1xx answer."""

    def send_head(self, head: ResponseHead, *extra: Header) -> None:
        """Begin the answer. The body's framing follows the head's, as far as the client can read it."""

    def send_body(self, data: bytes) -> None:
        """Send a piece of the answer's body."""

    def send_end(self, trailers: list[Header]) -> None:
        """End the answer's body as its framing demands."""

    def respond(self, head: ResponseHead, body: bytes, *extra: Header) -> None:
        """Send a whole answer of our own."""

    def tunnel(self, receive: Callable[[bytes], None]) -> None:
        """From now on, what the client sends goes to `receive` as it is (after 101 Switching Protocols)."""

    def write(self, data: bytes) -> None:
        """Put bytes on the wire; nothing happens once the client is gone."""

    def cork(self) -> None:
        """Hold back what is written, to send it as one piece: packets cost both ends more than bytes."""

    def uncork(self) -> None:
        """Send what was held back."""

    def cut(self) -> None:
        """End an answer that cannot be finished, so that its client sees that it was not."""
