"""Which time it is, twice: by the wall clock, which people and NTP set, and by a clock that nobody sets.

Rule 1: what came first, and how long ago, the steady clock says; the wall clock only dates it.
"""

import platform
import secrets
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

READ_WITHIN_S = 0.01
"""Two clocks read further apart than this do not belong together: the machine may have slept in between."""

READINGS = 10


@dataclass(frozen=True, slots=True)
class Moment:
    """One moment by both clocks: epoch seconds, and seconds since the machine started.

    Steady seconds of different `boot`s cannot be compared.
    """

    wall_s: float
    steady_s: float
    boot: str

    @property
    def offset_s(self) -> float:
        """When the machine started, by the wall clock: this changes only when that clock is set."""
        return self.wall_s - self.steady_s


@dataclass(frozen=True, slots=True)
class Clocks:
    """A wall clock in epoch seconds, and a steady one that also counts while the machine sleeps.

    `boot` names what `steady` counts from: it is the same for all processes whose steady clocks agree.
    """

    wall: Callable[[], float]
    steady: Callable[[], float]
    boot: str

    def now(self) -> Moment:
        """Read both."""
        for _ in range(READINGS):
            before_s, wall_s, after_s = self.steady(), self.wall(), self.steady()
            if after_s - before_s < READ_WITHIN_S:
                break
        return Moment(wall_s, (before_s + after_s) / 2, self.boot)


@cache
def system_clocks() -> Clocks:
    """Return this machine's clocks."""
    if boot := _boot():
        return Clocks(time.time, _since_boot, boot)
    # What does not say when it started is known only as long as this process runs.
    begun_s = _since_boot()
    return Clocks(time.time, lambda: _since_boot() - begun_s, secrets.token_hex(8))


def _since_boot() -> float:
    if sys.platform == "linux":
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    if sys.platform == "darwin":
        # This counts sleep, which time.monotonic() does not.
        return time.clock_gettime(time.CLOCK_MONOTONIC)
    return time.monotonic()  # which on Windows counts sleep


def _boot() -> str:
    """Name this start of the machine, as far as its steady clock reaches; "" where nothing tells."""
    if platform.system() == "Darwin":
        return _told_by("sysctl", "-n", "kern.bootsessionuuid")
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        with suppress(OSError):
            # A container may have a steady clock of its own.
            boot += "/" + str(Path("/proc/self/ns/time").readlink())
        return boot
    return ""


def _told_by(*command: str) -> str:
    import subprocess

    with suppress(OSError, subprocess.SubprocessError):
        return subprocess.run(command, capture_output=True, text=True, timeout=5).stdout.strip()
    return ""
