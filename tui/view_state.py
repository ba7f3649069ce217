"""What a painter may look at: one frozen record."""

from dataclasses import dataclass, field

from clairvoyant_cli.state.snapshot import EMPTY, Snapshot
from tui.hardware.reading import Hardware
from tui.history import History
from tui.styled_text import Tone

SILENT_S = 2.0  # a daemon sends a state at least once a second
FLASH_S = 3.0  # how long a promotion by tau stays lit in the header


@dataclass(frozen=True, slots=True)
class ViewState:
    """What is drawn."""

    where: str  # the daemon's address
    snapshot: Snapshot | None = None  # None before the first
    hardware: Hardware | None = None
    history: History = field(default_factory=History)
    drift_s: float = 0.0  # since the state arrived, by which ages grow, until `SILENT_S`
    silent_s: float = 0.0  # the age of a state from then on
    hardware_age_s: float = 0.0
    lag_s: float = 0.0  # how long the terminal took to show the frame before
    local: bool = True  # the daemon runs on this machine, whose GPU is shown
    lost: str = ""  # why the daemon cannot be reached
    lost_for_s: float = 0.0
    frozen: bool = False
    past_s: float | None = None  # how long ago a state of the history was taken
    readonly: bool = False
    prompts: bool = False
    few_colours: bool = False  # the terminal has sixteen at most
    badge: str = ""
    message: str = ""  # shown for some seconds
    message_tone: Tone = "accent"
    offers: frozenset[str] = frozenset()  # what keys find chosen (`Key.on`), and "held" if that is held

    @property
    def forbids(self) -> str:
        """Why nothing can be asked of the daemon now; "" if it can."""
        if self.readonly:
            return "read-only"
        if self.past_s is not None:
            return "this is the past"
        return "" if self.live else "no daemon"

    @property
    def live(self) -> bool:
        return self.snapshot is not None and not self.lost

    @property
    def state(self) -> Snapshot:
        """The state; an empty one before the first."""
        return self.snapshot or EMPTY

    @property
    def now(self) -> float:
        """The daemon's clock, epoch seconds; 0 before the first state."""
        return self.state.taken_at + self.drift_s

    @property
    def tau_lit(self) -> bool:
        """Whether tau has just promoted a request."""
        recent = self.state.tau.recent
        return self.live and bool(recent) and 0 <= self.now - recent[-1] < FLASH_S
