"""Reads CPU, memory and GPUs of this machine. Call it in a thread: a driver may be slow.

AMD GPUs are read from sysfs, that of Apple silicon by `ioreg`; neither needs root. A field that cannot be
read is None.
"""

import plistlib
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil

from tui.hardware.nvidia import Nvidia, NvidiaGone
from tui.hardware.reading import Gpu, Hardware, Host, told

DRM = Path("/sys/class/drm")
_AMD = "0x1002"
_IOREG = ("ioreg", "-r", "-a", "-d", "1", "-c", "IOAccelerator")
_IOREG_TIMEOUT_S = 2.0


def read_host() -> Host:
    """Return what psutil tells; a field it cannot read stays None."""
    memory: Any = told(psutil.virtual_memory)
    return Host(
        cpu=told(lambda: psutil.cpu_percent(interval=None) / 100.0),
        cores=psutil.cpu_count(),
        memory_used_bytes=told(lambda: int(memory.total - memory.available)),
        memory_total_bytes=told(lambda: int(memory.total)),
    )


def read_amd(drm: Path = DRM) -> tuple[Gpu, ...]:
    """Return every AMD card; one that does not tell a field has None there."""
    cards = sorted(drm.glob("card[0-9]*/device"), key=lambda path: path.parent.name)
    amd = [device for device in cards if _text(device / "vendor") == _AMD and "-" not in device.parent.name]
    return tuple(_amd_gpu(index, device) for index, device in enumerate(amd))


def _amd_gpu(index: int, device: Path) -> Gpu:
    sensors = next(iter(sorted((device / "hwmon").glob("hwmon*"))), device)
    power_w = _number(sensors / "power1_average", 1e-6)
    return Gpu(
        index=index,
        name=_text(device / "product_name") or "AMD GPU",
        utilisation=_number(device / "gpu_busy_percent", 0.01),
        memory_used_bytes=told(lambda: int(_text(device / "mem_info_vram_used"))),
        memory_total_bytes=told(lambda: int(_text(device / "mem_info_vram_total"))),
        temperature_c=_number(sensors / "temp1_input", 0.001),
        power_w=_number(sensors / "power1_input", 1e-6) if power_w is None else power_w,
        power_limit_w=_number(sensors / "power1_cap", 1e-6),
    )


def _text(path: Path) -> str:
    return told(lambda: path.read_text(encoding="utf-8", errors="replace").strip()) or ""


def _number(path: Path, unit: float) -> float | None:
    return told(lambda: int(_text(path)) * unit)


def read_apple(host: Host, run: Callable[[], bytes] | None = None) -> tuple[Gpu, ...]:
    """Return the GPU, or nothing where ioreg tells nothing. `run` returns ioreg's property list."""
    entries = told(lambda: [{**each} for each in plistlib.loads((run or _ioreg)())]) or ()
    return tuple(_apple_gpu(index, entry, host) for index, entry in enumerate(entries))


def _ioreg() -> bytes:
    return subprocess.run(_IOREG, capture_output=True, check=True, timeout=_IOREG_TIMEOUT_S).stdout


def _apple_gpu(index: int, entry: dict[str, Any], host: Host) -> Gpu:
    stats = entry.get("PerformanceStatistics", {})
    return Gpu(
        index=index,
        name=str(entry.get("model", "Apple GPU")),
        utilisation=told(lambda: stats["Device Utilization %"] / 100.0),
        memory_used_bytes=told(lambda: int(stats["In use system memory"])),
        memory_total_bytes=host.memory_total_bytes,
        unified=True,
    )


def _of_host(gpu: Gpu, host: Host) -> Gpu:
    """Return a GPU that shares the host's memory (DGX Spark, Jetson), with what the system tells of that."""
    used, total = host.memory_used_bytes, host.memory_total_bytes
    return replace(gpu, memory_used_bytes=used, memory_total_bytes=total)


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
        host = told(self._host) or Host()
        if self._platform == "darwin":
            gpus = told(lambda: read_apple(host)) or ()
            return Hardware(host, gpus, "" if gpus else "no GPU that tells its use", time.monotonic())
        note = ""
        try:
            gpus = tuple(_of_host(gpu, host) if gpu.unified else gpu for gpu in self._nvidia.read())
        except NvidiaGone as gone:
            gpus, note = (), str(gone)
        gpus += tuple(replace(gpu, index=gpu.index + len(gpus)) for gpu in told(self._amd) or ())
        return Hardware(host, gpus, note, time.monotonic())
