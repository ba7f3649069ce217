"""A `pynvml` module made of a script: devices with fields, and errors where the script puts them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

CODES = {
    "NVML_ERROR_NOT_SUPPORTED": 3,
    "NVML_ERROR_NO_PERMISSION": 4,
    "NVML_ERROR_DRIVER_NOT_LOADED": 9,
    "NVML_ERROR_LIBRARY_NOT_FOUND": 12,
    "NVML_ERROR_GPU_IS_LOST": 15,
    "NVML_ERROR_RESET_REQUIRED": 16,
    "NVML_ERROR_LIB_RM_VERSION_MISMATCH": 18,
    "NVML_ERROR_UNKNOWN": 999,
}


class FakeNVMLError(Exception):
    """What the real module raises: it carries a code."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.value = CODES[name]


@dataclass(slots=True)
class Device:
    """A GPU. `errors` maps a function's name to the error it raises on this device."""

    name: str | bytes = "NVIDIA GeForce RTX 4090"
    gpu: int = 40
    used: int = 4 << 30
    total: int = 24 << 30
    temperature: int = 61
    power_mw: int = 120_000
    limit_mw: int = 450_000
    clock: int = 2520
    clock_limit: int = 3105
    throttled: int = 0
    mig: int = 0
    processes: Mapping[int, int | None] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)


def fake_nvml(*devices: Device, errors: dict[str, str] | None = None) -> Any:
    """Return the module. `errors` are those that come before there is a device."""
    module: Any = ModuleType("pynvml")
    module.NVMLError = FakeNVMLError
    module.NVML_TEMPERATURE_GPU = 0
    module.NVML_CLOCK_SM = 1
    module.calls = []
    for name, code in CODES.items():
        setattr(module, name, code)

    def define(name: str, answer: Callable[..., Any]) -> None:
        def call(*arguments: Any) -> Any:
            module.calls.append(name)
            script = (errors or {}).get(name) or (
                arguments[0].errors.get(name) if arguments and isinstance(arguments[0], Device) else None
            )
            if script:
                raise FakeNVMLError(script)
            return answer(*arguments)

        setattr(module, name, call)

    def handle(index: int) -> Device:
        if "handle" in devices[index].errors:
            raise FakeNVMLError(devices[index].errors["handle"])
        return devices[index]

    answers: dict[str, Callable[..., Any]] = {
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlDeviceGetCount": lambda: len(devices),
        "nvmlDeviceGetHandleByIndex": handle,
        "nvmlDeviceGetName": lambda it: it.name,
        "nvmlDeviceGetMigMode": lambda it: [it.mig, it.mig],
        "nvmlDeviceGetPciInfo": lambda it: SimpleNamespace(busId=b"00"),
        "nvmlDeviceGetMemoryInfo": lambda it: SimpleNamespace(used=it.used, total=it.total),
        "nvmlDeviceGetUtilizationRates": lambda it: SimpleNamespace(gpu=it.gpu, memory=0),
        "nvmlDeviceGetClockInfo": lambda it, kind: it.clock,
        "nvmlDeviceGetMaxClockInfo": lambda it, kind: it.clock_limit,
        "nvmlDeviceGetCurrentClocksThrottleReasons": lambda it: it.throttled,
        "nvmlDeviceGetPowerUsage": lambda it: it.power_mw,
        "nvmlDeviceGetEnforcedPowerLimit": lambda it: it.limit_mw,
        "nvmlDeviceGetTemperature": lambda it, kind: it.temperature,
        "nvmlDeviceGetComputeRunningProcesses": lambda it: [
            SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in it.processes.items()
        ],
        "nvmlDeviceGetGraphicsRunningProcesses": lambda it: [],
    }
    for name, answer in answers.items():
        define(name, answer)
    return module
