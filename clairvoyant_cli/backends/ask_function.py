"""How a server is asked about itself."""

from typing import Any, Protocol

from clairvoyant_cli.protocols.probes import Answer

PROBE_TIMEOUT_S = 2.0


class Ask(Protocol):
    """Puts a question to one server: a GET of a path of its API, a POST if there is a body. Of a prober it
    never raises for what the server does.
    """

    async def __call__(
        self, path: str, timeout_s: float = PROBE_TIMEOUT_S, body: dict[str, Any] | None = None
    ) -> Answer:
        """Return what came of it within the time."""
        ...
