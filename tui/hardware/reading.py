"""One reading of this machine, as plain records. A field the system does not tell is None. And readings of a
machine that is not there.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from math import sin
from typing import TypeVar

Told = TypeVar("Told")
_GIB = 2**30


def told(read: Callable[[], Told]) -> Told | None:
    """Return what a sensor tells, None after any error: drivers fail in ways that nobody lists."""
    try:
        return read()
    except Exception:
        return None


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process that holds memory on a GPU."""

    pid: int
    name: str
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Gpu:
    """One accelerator. `utilisation` is 0..1; `unified` means its memory is the host's; `throttled` says what
    slows its clock, "" if nothing does; `fault` says in one line why nothing more is known of it.
    """

    index: int
    name: str
    utilisation: float | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    processes: tuple[GpuProcess, ...] = ()
    unified: bool = False
    fault: str = ""
    clock_mhz: int | None = None
    clock_limit_mhz: int | None = None
    throttled: str = ""


@dataclass(frozen=True, slots=True)
class Host:
    """CPU and memory. `cpu` is 0..1 over all cores."""

    cpu: float | None = None
    cores: int | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Hardware:
    """Everything read at one moment, `at_s` by a monotonic clock. `note` says why there are no GPUs."""

    host: Host
    gpus: tuple[Gpu, ...] = ()
    note: str = ""
    at_s: float = 0.0


def simulated_machine(gpus: int) -> Callable[[], Hardware]:
    """Return a reader of a machine with none, one or two GPUs; each call is a moment later."""
    moments = count()

    def read() -> Hardware:
        moment = next(moments)
        host = Host(
            0.21 + 0.08 * sin(moment / 5.0), 16, int((21.3 + 0.2 * sin(moment / 9.0)) * _GIB), 64 * _GIB
        )
        if not gpus:
            return Hardware(host, note="no GPU: the NVIDIA driver is not installed", at_s=moment + 1.0)
        return Hardware(host, tuple(_gpu(index, moment) for index in range(gpus)), at_s=moment + 1.0)

    return read


def _gpu(index: int, moment: int) -> Gpu:
    use = min(1.0, max(0.0, 0.86 + 0.13 * sin(moment / 3.0 + 2 * index) - 0.5 * index))
    held = (12.1 + 0.3 * sin(moment / 7.0)) / (1 + index)
    return Gpu(
        index=index,
        name="GeForce RTX 4090" if index == 0 else "GeForce RTX 3090",
        utilisation=use,
        memory_used_bytes=int((held + 0.6) * _GIB),
        memory_total_bytes=24 * _GIB,
        temperature_c=48.0 + 26.0 * use,
        power_w=60.0 + 330.0 * use,
        power_limit_w=450.0 if index == 0 else 350.0,
        clock_mhz=round(2775 - 240 * max(0.0, use - 0.7)),
        clock_limit_mhz=3105,
        throttled="power limit" if use > 0.97 else "",
        processes=(GpuProcess(31_337 + index, "ollama runner", int(held * _GIB)),),
    )
