"""A machine whose clocks a test drives: time passes, it sleeps, it is set, it starts again."""

from profiles.clocks import Clocks

NOON = 1_790_000_000.0 // 86_400 * 86_400 + 43_200
HOUR, DAY = 3600.0, 86_400.0
YEAR = 365 * DAY


class ScriptedClocks:
    """Three clocks: the wall's, the steady one, and that of an event loop, which does not count sleep."""

    def __init__(self, wall_s: float = NOON, steady_s: float = 1000.0, boot: str = "boot-1") -> None:
        self.wall_s = wall_s
        self.steady_s = steady_s
        self.loop_s = steady_s
        self.boot = boot

    @property
    def clocks(self) -> Clocks:
        """The clocks of this start of the machine."""
        return Clocks(lambda: self.wall_s, lambda: self.steady_s, self.boot)

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        self.sleep(seconds)
        self.loop_s += seconds

    def sleep(self, seconds: float) -> None:
        """Suspend the machine for so long."""
        self.wall_s += seconds
        self.steady_s += seconds

    def set_by(self, seconds: float) -> None:
        """Set the wall clock forward, or back."""
        self.wall_s += seconds

    def reboot(self, off_s: float = 60.0) -> None:
        """Switch the machine off for so long, and on again."""
        number = int(self.boot.partition("-")[2]) + 1
        self.wall_s += off_s
        self.steady_s = self.loop_s = 0.0
        self.boot = f"boot-{number}"
