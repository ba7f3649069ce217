"""The GPU of Apple silicon, by `ioreg`, which tells its use without root. Its memory is the host's."""

import plistlib
import subprocess
from collections.abc import Callable
from typing import Any
from xml.parsers.expat import ExpatError

from tui.hardware.reading import Gpu, Host

_COMMAND = ("ioreg", "-r", "-a", "-d", "1", "-c", "IOAccelerator")
_TIMEOUT_S = 2.0


def read_apple(host: Host, run: Callable[[], bytes] | None = None) -> tuple[Gpu, ...]:
    """Return the GPU, or nothing where ioreg tells nothing. `run` returns ioreg's property list."""
    try:
        entries = plistlib.loads((run or _ioreg)())
    except (OSError, subprocess.SubprocessError, plistlib.InvalidFileException, ExpatError, ValueError):
        return ()
    return tuple(_gpu(index, entry, host) for index, entry in enumerate(entries) if isinstance(entry, dict))


def _gpu(index: int, entry: dict[str, Any], host: Host) -> Gpu:
    told = entry.get("PerformanceStatistics", {})
    use = told.get("Device Utilization %")
    held = told.get("In use system memory")
    return Gpu(
        index=index,
        name=str(entry.get("model", "Apple GPU")),
        utilisation=use / 100.0 if isinstance(use, int) else None,
        memory_used_bytes=held if isinstance(held, int) else None,
        memory_total_bytes=host.memory_total_bytes,
        unified=True,
    )


def _ioreg() -> bytes:
    return subprocess.run(_COMMAND, capture_output=True, check=True, timeout=_TIMEOUT_S).stdout
