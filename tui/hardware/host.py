"""CPU and memory of this machine, by psutil."""

from contextlib import suppress

import psutil

from tui.hardware.reading import Host


def read_host() -> Host:
    """Return what psutil tells; a field it cannot read stays None."""
    cpu: float | None = None
    used: int | None = None
    total: int | None = None
    with suppress(OSError, psutil.Error):
        cpu = psutil.cpu_percent(interval=None) / 100.0
    with suppress(OSError, psutil.Error):
        memory = psutil.virtual_memory()
        used, total = int(memory.total - memory.available), int(memory.total)
    return Host(cpu, psutil.cpu_count(), used, total)


def process_name(pid: int) -> str:
    """Return a process's name, or its number where the system keeps the name to itself."""
    try:
        return str(psutil.Process(pid).name())
    except (OSError, psutil.Error):
        return f"pid {pid}"
