"""NVIDIA GPUs by NVML.

Rule 1: any call may fail at any time: no driver, no permission, a field this GPU lacks, a GPU that has
fallen off the bus. A field that fails is None; a device that fails has a `fault`; the rest lives on.
Rule 2: the library is imported and started on the first reading, in the caller's thread.
"""

from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any, TypeVar

from tui.hardware.host import process_name
from tui.hardware.reading import Gpu, GpuProcess

T = TypeVar("T")
_RETRY_AFTER = 10
_MAX_PROCESSES = 4


class NvidiaGone(Exception):  # noqa: N818 - it is a state of the world more than an error
    """There is no NVML to ask; the message says why, in one line."""


class Nvidia:
    """The NVIDIA GPUs of this machine."""

    def __init__(self, load: Callable[[], ModuleType] | None = None) -> None:
        """`load` returns the pynvml module; ImportError where there is none."""
        self._load = load or _import
        self._nvml: Any = None
        self._gone = ""
        self._skip = 0

    def read(self) -> tuple[Gpu, ...]:
        """Return every GPU; NvidiaGone if there is no library, driver or permission.

        After a failure the driver is asked again every tenth time only: starting NVML is slow.
        """
        if self._skip:
            self._skip -= 1
            raise NvidiaGone(self._gone)
        try:
            nvml = self._started()
            handles = [self._handle(nvml, index) for index in range(nvml.nvmlDeviceGetCount())]
        except NvidiaGone as gone:
            self._forget(str(gone))
            raise
        except self._nvml.NVMLError as error:
            self._forget(_words(self._nvml, error))
            raise NvidiaGone(self._gone) from error
        return tuple(self._gpu(nvml, index, handle) for index, handle in enumerate(handles))

    def close(self) -> None:
        """Let the driver go."""
        if self._nvml is not None:
            self._try(self._nvml, self._nvml.nvmlShutdown)
            self._nvml = None

    def _started(self) -> Any:
        if self._nvml is not None:
            return self._nvml
        try:
            nvml: Any = self._load()
        except ImportError as error:
            raise NvidiaGone("no GPU: the nvidia-ml-py package is not installed") from error
        try:
            nvml.nvmlInit()
        except nvml.NVMLError as error:
            raise NvidiaGone(_words(nvml, error)) from error
        self._nvml = nvml
        return nvml

    def _forget(self, why: str) -> None:
        self.close()
        self._gone = why
        self._skip = _RETRY_AFTER - 1

    def _handle(self, nvml: Any, index: int) -> Any:
        """Return a device's handle, or the error that came in its place."""
        try:
            return nvml.nvmlDeviceGetHandleByIndex(index)
        except nvml.NVMLError as error:
            return error

    def _gpu(self, nvml: Any, index: int, handle: Any) -> Gpu:
        if isinstance(handle, nvml.NVMLError):
            return Gpu(index, "GPU", fault=_words(nvml, handle))
        name = self._try(nvml, lambda: nvml.nvmlDeviceGetName(handle))
        name = name.decode(errors="replace") if isinstance(name, bytes) else name or "GPU"
        name = name.removeprefix("NVIDIA ")
        lost = self._lost(nvml, handle)
        if lost:
            return Gpu(index, name, fault=lost)
        memory = self._try(nvml, lambda: nvml.nvmlDeviceGetMemoryInfo(handle))
        rates = self._try(nvml, lambda: nvml.nvmlDeviceGetUtilizationRates(handle))
        power = self._try(nvml, lambda: nvml.nvmlDeviceGetPowerUsage(handle))
        limit = self._try(nvml, lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle))
        heat = self._try(nvml, lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))
        return Gpu(
            index=index,
            name=name,
            utilisation=rates.gpu / 100.0 if rates else None,
            memory_used_bytes=int(memory.used) if memory else None,
            memory_total_bytes=int(memory.total) if memory else None,
            temperature_c=float(heat) if heat is not None else None,
            power_w=power / 1000.0 if power is not None else None,
            power_limit_w=limit / 1000.0 if limit is not None else None,
            processes=self._processes(nvml, handle),
        )

    def _lost(self, nvml: Any, handle: Any) -> str:
        """Say why a device does not answer any more; nothing if it does."""
        try:
            nvml.nvmlDeviceGetPciInfo(handle)
        except nvml.NVMLError as error:
            if getattr(error, "value", None) in _fatal(nvml):
                return _words(nvml, error)
        return ""

    def _processes(self, nvml: Any, handle: Any) -> tuple[GpuProcess, ...]:
        found: dict[int, GpuProcess] = {}
        for ask in (nvml.nvmlDeviceGetComputeRunningProcesses, nvml.nvmlDeviceGetGraphicsRunningProcesses):
            for process in self._try(nvml, partial(ask, handle)) or ():
                used = process.usedGpuMemory
                found[process.pid] = GpuProcess(
                    process.pid, process_name(process.pid), int(used) if used is not None else None
                )
        ranked = sorted(found.values(), key=lambda each: each.memory_bytes or 0, reverse=True)
        return tuple(ranked[:_MAX_PROCESSES])

    def _try(self, nvml: Any, ask: Callable[[], Any]) -> Any:
        """Return an answer, or None where this device or this user gets none."""
        try:
            return ask()
        except nvml.NVMLError:
            return None


def _import() -> ModuleType:
    import pynvml

    module: ModuleType = pynvml
    return module


def _fatal(nvml: Any) -> tuple[int, ...]:
    names = ("NVML_ERROR_GPU_IS_LOST", "NVML_ERROR_UNKNOWN", "NVML_ERROR_RESET_REQUIRED")
    return tuple(getattr(nvml, name) for name in names if hasattr(nvml, name))


def _words(nvml: Any, error: Exception) -> str:
    """Say in our words what NVML's error means for the reader."""
    known = {
        "NVML_ERROR_LIBRARY_NOT_FOUND": "no GPU: no NVIDIA driver is installed",
        "NVML_ERROR_DRIVER_NOT_LOADED": "no GPU: the NVIDIA driver is not loaded",
        "NVML_ERROR_NO_PERMISSION": "no permission to ask the NVIDIA driver",
        "NVML_ERROR_GPU_IS_LOST": "has fallen off the bus: it needs a reset or a reboot",
        "NVML_ERROR_RESET_REQUIRED": "needs a reset before it works again",
        "NVML_ERROR_LIB_RM_VERSION_MISMATCH": "the NVIDIA driver was updated: reboot",
    }
    value = getattr(error, "value", None)
    for name, words in known.items():
        if getattr(nvml, name, object()) == value:
            return words
    return f"NVML: {error}"
