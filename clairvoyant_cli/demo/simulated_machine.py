"""Readings of a machine that is not there."""

from collections.abc import Callable
from itertools import count
from math import sin

from tui.hardware.reading import Gpu, GpuProcess, Hardware, Host

_GIB = 2**30


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
