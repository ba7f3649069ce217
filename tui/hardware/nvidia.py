"""Reads NVIDIA GPUs by NVML.

Any call may fail at any time and in any way: no driver, no permission, a field that this GPU lacks, a GPU
that has fallen off the bus, a name that is no UTF-8. A field that fails is None, a device that fails has a
`fault`. The library is imported and started on the first reading, in the caller's thread.
"""

from collections.abc import Callable
from functools import partial
from heapq import nlargest
from importlib import import_module
from types import ModuleType
from typing import Any

import psutil

from tui.hardware.reading import Gpu, GpuProcess, told

_RETRY_AFTER = 10
_MAX_PROCESSES = 4
_FATAL = ("NVML_ERROR_GPU_IS_LOST", "NVML_ERROR_UNKNOWN", "NVML_ERROR_RESET_REQUIRED")
_THROTTLED = ((0x60, "heat"), (0x80, "power supply"), (0x08, "hardware"), (0x04, "power limit"))
"""What slows the clock, by the bits of NVML; an idle GPU and a chosen clock are no such reasons."""

_MESSAGES = {
    "NVML_ERROR_LIBRARY_NOT_FOUND": "no GPU: no NVIDIA driver is installed",
    "NVML_ERROR_DRIVER_NOT_LOADED": "no GPU: the NVIDIA driver is not loaded",
    "NVML_ERROR_NO_PERMISSION": "no permission to ask the NVIDIA driver",
    "NVML_ERROR_GPU_IS_LOST": "has fallen off the bus: it needs a reset or a reboot",
    "NVML_ERROR_RESET_REQUIRED": "needs a reset before it works again",
    "NVML_ERROR_LIB_RM_VERSION_MISMATCH": "the NVIDIA driver was updated: reboot",
}


class NvidiaGone(Exception):  # noqa: N818 - a state more than an error
    """NVML is not available; the message says why."""


class Nvidia:
    """The NVIDIA GPUs of this machine."""

    def __init__(self, load: Callable[[], ModuleType] | None = None) -> None:
        """`load` returns the pynvml module; ImportError if there is none."""
        self._load = load or partial(import_module, "pynvml")
        self._nvml: Any = None
        self._gone = ""
        self._skip = 0
        self._faulty = 0  # readings with a fault of a GPU, one after another

    def read(self) -> tuple[Gpu, ...]:
        """Return every GPU; NvidiaGone if there is no library, driver or permission.

        After a failure only every tenth call asks the driver again: starting NVML is slow. If a GPU has a
        fault, NVML is started again for the next call and then for every tenth: after a suspend or a reset
        of the driver, all calls of the old session fail.
        """
        if self._skip:
            self._skip -= 1
            raise NvidiaGone(self._gone)
        try:
            nvml: Any = self._nvml or self._load()
        except ImportError:
            raise self._failed("no GPU: the nvidia-ml-py package is not installed") from None
        try:
            if self._nvml is None:
                nvml.nvmlInit()
                self._nvml = nvml
            gpus = tuple(self._gpu(nvml, index) for index in range(nvml.nvmlDeviceGetCount()))
        except Exception as error:
            raise self._failed(_message(nvml, error)) from error
        self._faulty = self._faulty + 1 if any(gpu.fault for gpu in gpus) else 0
        if self._faulty % _RETRY_AFTER == 1:
            self._stop()
        return gpus

    def _failed(self, why: str) -> NvidiaGone:
        self._stop()
        self._gone, self._skip = why, _RETRY_AFTER - 1
        return NvidiaGone(why)

    def _stop(self) -> None:
        nvml, self._nvml = self._nvml, None
        if nvml is not None:
            told(lambda: nvml.nvmlShutdown())

    def _gpu(self, nvml: Any, index: int) -> Gpu:
        name, of, is_mig = "GPU", None, False
        try:
            of = nvml.nvmlDeviceGetHandleByIndex(index)
            told_name = told(lambda: nvml.nvmlDeviceGetName(of)) or name
            name = told_name.decode(errors="replace") if isinstance(told_name, bytes) else str(told_name)
            name = name.removeprefix("NVIDIA ")
            if is_mig := bool(told(lambda: nvml.nvmlDeviceGetMigMode(of)[0])):
                name = f"MIG {name}"  # which tells no use of the whole
            nvml.nvmlDeviceGetPciInfo(of)
        except Exception as error:
            fatal = [getattr(nvml, each, None) for each in _FATAL]
            if of is None or getattr(error, "value", None) in fatal:
                return Gpu(index, name, fault=_message(nvml, error))
        memory, unified = _memory(nvml, of)
        slowed = told(lambda: int(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(of))) or 0
        return Gpu(
            index=index,
            name=name,
            utilisation=told(lambda: nvml.nvmlDeviceGetUtilizationRates(of).gpu / 100.0),
            memory_used_bytes=told(lambda: int(memory.used)),
            memory_total_bytes=told(lambda: int(memory.total)),
            temperature_c=told(lambda: float(nvml.nvmlDeviceGetTemperature(of, nvml.NVML_TEMPERATURE_GPU))),
            unified=unified and not is_mig,
            power_w=told(lambda: nvml.nvmlDeviceGetPowerUsage(of) / 1000.0),
            power_limit_w=told(lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(of) / 1000.0),
            processes=tuple(told(lambda: self._processes(nvml, of)) or ()),
            clock_mhz=told(lambda: int(nvml.nvmlDeviceGetClockInfo(of, nvml.NVML_CLOCK_SM))),
            clock_limit_mhz=told(lambda: int(nvml.nvmlDeviceGetMaxClockInfo(of, nvml.NVML_CLOCK_SM))),
            throttled=next((why for bits, why in _THROTTLED if slowed & bits), ""),
        )

    def _processes(self, nvml: Any, of: Any) -> list[GpuProcess]:
        compute = told(lambda: nvml.nvmlDeviceGetComputeRunningProcesses(of)) or []
        graphics = told(lambda: nvml.nvmlDeviceGetGraphicsRunningProcesses(of)) or []
        held = {each.pid: each.usedGpuMemory for each in (*compute, *graphics)}
        most = nlargest(_MAX_PROCESSES, held.items(), key=lambda each: each[1] or 0)
        return [GpuProcess(pid, process_name(pid), size and int(size)) for pid, size in most]


def _memory(nvml: Any, of: Any) -> tuple[Any, bool]:
    """Return a GPU's memory, None if it is not told, and whether it has none but the host's."""
    try:
        return nvml.nvmlDeviceGetMemoryInfo(of), False
    except Exception as error:
        return None, getattr(error, "value", None) == getattr(nvml, "NVML_ERROR_NOT_SUPPORTED", object())


def process_name(pid: int) -> str:
    """Return a process's name, or its number where the system keeps the name to itself."""
    return told(lambda: str(psutil.Process(pid).name())) or f"pid {pid}"


def _message(nvml: Any, error: Exception) -> str:
    value = getattr(error, "value", None)
    known = (text for name, text in _MESSAGES.items() if getattr(nvml, name, object()) == value)
    return next(known, f"NVML: {error}")
