"""What a painter may look at: one frozen record."""

from dataclasses import dataclass, field
from enum import StrEnum

from clairvoyant_cli.state.snapshot import Snapshot
from tui.hardware.reading import Hardware
from tui.history import History
from tui.styled_text import Tone

FLASH_S = 3.0
"""How long a promotion by tau stays lit in the header."""


class LinkState(StrEnum):
    """Whether the daemon is connected."""

    CONNECTING = "connecting"
    LIVE = "live"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class Link:
    """The connection to the daemon. `local`: it runs on this machine, whose GPU is shown."""

    state: LinkState
    where: str
    local: bool = True
    reason: str = ""
    retry_in_s: float | None = None
    lost_for_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ViewState:
    """What is drawn. `drift_s` is the time since the state arrived, by which ages grow. `past_s` is how long
    ago a state of the history was taken, None for the newest. `message` is shown for some seconds.
    """

    link: Link
    snapshot: Snapshot | None = None
    hardware: Hardware | None = None
    history: History = field(default_factory=History)
    drift_s: float = 0.0
    hardware_age_s: float = 0.0
    frozen: bool = False
    past_s: float | None = None
    readonly: bool = False
    prompts: bool = False
    ghost: bool = False
    badge: str = ""
    message: str = ""
    message_tone: Tone = "accent"
    price_kwh: float | None = None

    @property
    def now(self) -> float:
        """The daemon's clock, epoch seconds; 0 before the first state."""
        return self.snapshot.taken_at + self.drift_s if self.snapshot else 0.0

    @property
    def tau_lit(self) -> bool:
        """Whether tau has just promoted a request."""
        fired_at = self.history.tau_fired_at
        live = self.link.state is LinkState.LIVE
        return live and fired_at is not None and 0 <= self.now - fired_at < FLASH_S
