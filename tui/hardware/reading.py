"""One reading of this machine, as plain records. A field the system does not tell is None."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

Told = TypeVar("Told")


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
