"""Describes this machine: the hardware that determines how fast a model runs."""

import os
import platform
from contextlib import suppress
from pathlib import Path

from profiles.records import Host

GIB = 1024**3


def this_host() -> Host:
    """Describe this machine; unknown fields are empty."""
    import psutil

    gpus, driver = _gpus()
    return Host(
        cpu=_cpu(),
        cores=os.cpu_count() or 0,
        memory_gib=round(psutil.virtual_memory().total / GIB),
        gpus=gpus,
        gpu_driver=driver,
        system=f"{platform.system()} {platform.release()}",
        machine=platform.machine(),
    )


def _cpu() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            # "Model": Raspberry Pi.
            if line.startswith(("model name", "Model\t")):
                return line.partition(":")[2].strip()
    if platform.system() == "Darwin":
        import subprocess

        with suppress(OSError, subprocess.SubprocessError):
            done = subprocess.run(
                ["sysctl", "-n", "machdep.cpu.brand_string"], capture_output=True, text=True, timeout=5
            )
            if done.stdout.strip():
                return done.stdout.strip()
    return platform.processor() or platform.machine()


def _gpus() -> tuple[tuple[str, ...], str]:
    """Return the names of the GPUs and the driver's version; Apple's GPU is part of the CPU's name."""
    try:
        import pynvml
    except ImportError:
        return (), ""
    try:
        pynvml.nvmlInit()
    except Exception:
        return _drm_gpus(), ""
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        names = tuple(str(pynvml.nvmlDeviceGetName(handle)) for handle in handles)
        return names, str(pynvml.nvmlSystemGetDriverVersion())
    except Exception:  # names that are no UTF-8, and whatever else a driver may tell
        return (), ""
    finally:
        with suppress(Exception):
            pynvml.nvmlShutdown()


def _drm_gpus() -> tuple[str, ...]:
    """Return the names of AMD cards, from Linux sysfs."""
    cards = []
    for product in sorted(Path("/sys/class/drm").glob("card[0-9]*/device/product_name")):
        with suppress(OSError):
            cards.append(product.read_text(encoding="utf-8").strip())
    return tuple(filter(None, cards))
