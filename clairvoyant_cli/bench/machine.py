"""What a bench ran on: what a reader of its report must know to compare it."""

import platform
from contextlib import suppress
from pathlib import Path

import psutil

from clairvoyant_cli import __version__


def machine_facts() -> dict[str, str]:
    """Return the machine and the software, in words; no names of hosts or users."""
    facts = {
        "processor": f"{processor()}, {psutil.cpu_count()} logical cores",
        "memory": f"{psutil.virtual_memory().total / 2**30:.0f} GiB",
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "clairvoyant": __version__,
    }
    graphics = _graphics()
    return facts | {"graphics": graphics} if graphics else facts


def processor() -> str:
    """Return the processor's name as its maker writes it, or the architecture."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith(("model name", "Model")):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _graphics() -> str:
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return ""
    try:
        names = [
            pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(i))
            for i in range(pynvml.nvmlDeviceGetCount())
        ]
        return f"{', '.join(names)}, driver {pynvml.nvmlSystemGetDriverVersion()}"
    except pynvml.NVMLError:
        return ""
    finally:
        pynvml.nvmlShutdown()
