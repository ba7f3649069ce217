"""Draws GPUs with their processes, and CPU and memory of the host."""

from tui.formatting import bar, duration, share, size, spark
from tui.hardware.reading import Gpu, Hardware
from tui.styled_text import Line, cell, ends, wrap
from tui.view_state import ViewState

_HOT_C = 83.0
_FULL = 0.95
_LABEL = 5
_STALE_S = 5.0


def facts(view: ViewState) -> Line:
    """Whose machine it is, and how old the reading."""
    line = Line()
    hardware = view.hardware
    if view.hardware_age_s > _STALE_S:
        return line.add(f" no reading for {duration(view.hardware_age_s)} ", "warn")
    if hardware is not None and len(hardware.gpus) > 1:
        line.add(f" {len(hardware.gpus)} GPUs ", "soft")
    return line if view.link.local else line.add(" this machine, not the daemon's ", "warn")


def of(view: ViewState) -> object:
    """What the panel depends on."""
    late_s = view.hardware_age_s if view.hardware_age_s > _STALE_S else 0.0
    return view.hardware, view.link.local, duration(late_s)


def body(view: ViewState, width: int, height: int) -> list[Line]:
    """As much of each GPU as fits: gauges, processes; then the host."""
    hardware = view.hardware
    if hardware is None:
        return [Line("reading…", "faint")]
    host = _host(view, hardware, width)
    if not hardware.gpus:
        return [*(Line(line, "soft") for line in wrap(hardware.note or "no GPU found", width)), *host]
    lines: list[Line] = []
    per_gpu = max(1, (height - len(host)) // len(hardware.gpus))
    for gpu in hardware.gpus:
        lines += _gpu(view, gpu, width)[:per_gpu] if per_gpu >= 3 else [_gpu_short(gpu, width)]
    return [*lines, *host]


def _gpu(view: ViewState, gpu: Gpu, width: int) -> list[Line]:
    name = Line(f"{gpu.index} ", "faint").add(gpu.name)
    if gpu.fault:
        return [name, Line("! ", "alert").add(gpu.fault, "soft")]
    lines = [ends(name, _vital_signs(gpu), width)]
    gauge = max(6, (width - _LABEL) // 2 - 6)
    if gpu.utilisation is not None:
        line = _gauge("util", gpu.utilisation, gauge)
        history = list(view.history.gpu.get(gpu.index, ()))
        lines.append(line.add(spark(history, max(0, width - line.width), 1.0), "faint"))
    if gpu.memory_used_bytes is not None and gpu.memory_total_bytes:
        fill = gpu.memory_used_bytes / gpu.memory_total_bytes
        line = _gauge("mem" if gpu.unified else "vram", fill, gauge, full=fill >= _FULL)
        line.add(size(gpu.memory_used_bytes)).add(f" of {size(gpu.memory_total_bytes)}", "soft")
        lines.append(line)
    for process in gpu.processes:
        left = Line(f"  {process.pid} ", "faint").add(process.name, "soft")
        lines.append(ends(left, Line(size(process.memory_bytes)), width))
    return lines


def _gauge(label: str, fraction: float, width: int, *, full: bool = False) -> Line:
    line = Line(cell(label, _LABEL), "faint").join(bar(fraction, width, "alert" if full else "accent"))
    return line.add(cell(share(fraction), 5, right=True), "alert" if full else "strong").add("  ")


def _vital_signs(gpu: Gpu) -> Line:
    line = Line()
    if gpu.temperature_c is not None:
        line.add(f"{gpu.temperature_c:.0f}°C", "alert" if gpu.temperature_c >= _HOT_C else "soft")
    if gpu.power_w is not None:
        line.add("  " if line.width else "").add(f"{gpu.power_w:.0f}", "soft")
        line.add(f"/{gpu.power_limit_w:.0f} W" if gpu.power_limit_w else " W", "faint")
    return line


def _gpu_short(gpu: Gpu, width: int) -> Line:
    line = Line(f"{gpu.index} ", "faint")
    if gpu.fault:
        return line.add("! ", "alert").add(gpu.fault, "soft")
    line.add("util ", "faint").add(cell(share(gpu.utilisation), 4, right=True), "strong")
    if gpu.memory_total_bytes:
        used = (gpu.memory_used_bytes or 0) / gpu.memory_total_bytes
        gauge = max(4, width // 4)
        line.add("  vram ", "faint").join(bar(used, gauge)).add(f" {size(gpu.memory_used_bytes)}")
    return ends(line, _vital_signs(gpu), width)


def _host(view: ViewState, hardware: Hardware, width: int) -> list[Line]:
    host = hardware.host
    line = Line()
    if host.cpu is not None:
        line.add(cell("cpu", _LABEL), "faint").add(cell(share(host.cpu), 4, right=True))
        line.add(f" of {host.cores}  " if host.cores else "  ", "faint")
        line.add(spark(list(view.history.cpu), max(0, width - 36), 1.0), "faint")
    if host.memory_total_bytes and host.memory_used_bytes is not None:
        memory = Line("ram ", "faint").add(size(host.memory_used_bytes))
        line = ends(line, memory.add(f" of {size(host.memory_total_bytes)}", "soft"), width)
    return [line] if line.width else []
