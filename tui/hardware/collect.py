"""Reads CPU, memory and GPUs of this machine. Call it in a thread: a driver may be slow."""

import sys
from collections.abc import Callable
from dataclasses import replace

from tui.hardware.amd import read_amd
from tui.hardware.apple import read_apple
from tui.hardware.host import read_host
from tui.hardware.nvidia import Nvidia, NvidiaGone
from tui.hardware.reading import Gpu, Hardware, Host


class Machine:
    """Reads this machine each time it is called; never raises."""

    def __init__(
        self,
        nvidia: Nvidia | None = None,
        host: Callable[[], Host] = read_host,
        amd: Callable[[], tuple[Gpu, ...]] = read_amd,
        platform: str = sys.platform,
    ) -> None:
        self._nvidia = nvidia or Nvidia()
        self._host = host
        self._amd = amd
        self._platform = platform

    def __call__(self) -> Hardware:
        """Return a reading."""
        host = self._host()
        if self._platform == "darwin":
            gpus = read_apple(host)
            return Hardware(host, gpus, "" if gpus else "no GPU that tells its use")
        note = ""
        try:
            gpus = self._nvidia.read()
        except NvidiaGone as gone:
            gpus, note = (), str(gone)
        amd = self._amd()
        gpus += tuple(_renumbered(gpu, len(gpus)) for gpu in amd)
        return Hardware(host, gpus, note)


def _renumbered(gpu: Gpu, by: int) -> Gpu:
    return replace(gpu, index=gpu.index + by) if by else gpu
