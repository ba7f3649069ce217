"""One LLM server: what was found of it, and how it is now."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from clairvoyant_cli.backends.speeds import Speeds
from clairvoyant_cli.http.upstream import Upstream
from tui.snapshot import LoadedModel

if TYPE_CHECKING:
    from clairvoyant_cli.backends.adapter import Adapter

LOADING = "loading its model"
NOT_UNDERSTOOD = "its answers are not understood"
"""Another server than it was taken for, or a new version: it answers, so requests may go on."""


@dataclass(frozen=True, slots=True)
class Found:
    """What answers at a URL; `slots` is None where it is not known how many answers it gives at once."""

    adapter: "Adapter"
    url: str
    prefix: str = ""
    version: str = ""
    slots: int | None = None


@dataclass(slots=True)
class Backend:
    """One LLM server and what is known of it. `state`: up, loading, down, unknown."""

    name: str
    adapter: "Adapter"
    upstream: Upstream
    prefix: str = ""
    slots: int = 1
    slots_fixed: bool = False
    state: str = "unknown"
    version: str = ""
    detail: str = ""
    models: tuple[LoadedModel, ...] = ()
    remote_models: frozenset[str] = frozenset()
    swaps: int = 0
    speeds: Speeds = field(default_factory=Speeds)
    seen: bool = False

    def __repr__(self) -> str:
        return f"<Backend {self.adapter.name} {self.upstream.url} {self.state}, {self.slots} slots>"

    @property
    def away(self) -> bool:
        """Whether it was there and is not now, or loads its model: what waits had better wait on."""
        return self.seen and self.state in ("down", "loading")
