"""Draws GPUs with their processes, and CPU and memory of the host."""

from collections.abc import Callable, Iterable

from tui.formatting import bar, duration, share, size, spark
from tui.hardware.reading import Gpu, Hardware
from tui.styled_text import Line, Tone, cell, ends, wrap
from tui.view_state import ViewState

_HOT_C = 83.0
_FULL = 0.95
_LABEL = 5
_STALE_S = 5.0
_NARROW, _NO_END = 40, 99
_FEW = 4  # more GPUs have a line each


def facts(view: ViewState) -> Line:
    line = Line()
    hardware = view.hardware
    if view.hardware_age_s > _STALE_S:
        return line.add(f" no reading for {duration(view.hardware_age_s)} ", "warn")
    if hardware is not None and len(hardware.gpus) > 1:
        line.add(f" {len(hardware.gpus)} GPUs ", "soft")
    return line if view.local else line.add(" this machine, not the daemon's ", "warn")


def rows(view: ViewState) -> int:
    return len(body(view, _NARROW, _NO_END))


def body(view: ViewState, width: int, height: int) -> list[Line]:
    """As much of each GPU as fits: gauges, clock, processes; of many a line; then the host."""
    hardware = view.hardware
    if hardware is None:
        return [Line("reading…", "faint")]
    host = _host(view, hardware, width)
    if not hardware.gpus:
        return [*(Line(line, "soft") for line in wrap(hardware.note or "no GPU found", width)), *host]
    lines: list[Line] = []
    few = len(hardware.gpus) <= _FEW
    per_gpu = max(1, (height - len(host)) // len(hardware.gpus)) if few else 1
    for gpu in hardware.gpus:
        lines += _gpu(view, gpu, width)[:per_gpu] if per_gpu > 2 else [_gpu_short(gpu, width)]
    return [*lines, *host]


def _gpu(view: ViewState, gpu: Gpu, width: int) -> list[Line]:
    name = Line(f"{gpu.index} ", "faint").add(gpu.name)
    if gpu.fault:
        return [name, Line("! ", "alert").add(gpu.fault, "soft")]
    lines = [ends(name, _vital_signs(gpu), width)]
    past = [*view.history.gpus.get(gpu.index, ())][-width:]
    if gpu.utilisation is None:
        lines.append(Line(cell("util", _LABEL + 1), "faint").add("N/A", "soft"))
    else:
        lines.append(_gauge("util", gpu.utilisation, (each.utilisation or 0.0 for each in past), width))
    label = "mem" if gpu.unified else "vram"
    if gpu.memory_used_bytes is None or not gpu.memory_total_bytes:
        lines.append(Line(cell(label, _LABEL + 1), "faint").add("N/A", "soft"))
    else:
        total = gpu.memory_total_bytes
        fills = ((each.memory_used_bytes or 0) / total for each in past)
        held = Line(" ").add(size(gpu.memory_used_bytes)).add(f" of {size(total)}", "soft")
        lines.append(_gauge(label, gpu.memory_used_bytes / total, fills, width, held, full=_FULL))
    if gpu.clock_mhz is not None:
        line = Line(cell("clock", _LABEL + 1), "faint").add(f"{gpu.clock_mhz:,}")
        line.add(f"/{gpu.clock_limit_mhz:,} MHz" if gpu.clock_limit_mhz else " MHz", "soft")
        lines.append(ends(line, Line(f"slowed: {gpu.throttled}" * bool(gpu.throttled), "warn"), width))
    for process in gpu.processes:
        left = Line(f"  {process.pid} ", "faint").add(process.name, "soft")
        lines.append(ends(left, Line(size(process.memory_bytes)), width))
    return lines


def _gauge(
    label: str,
    fraction: float,
    past: Iterable[float],
    width: int,
    says: Line | None = None,
    full: float = 2.0,
) -> Line:
    """A gauge, its history, and what it means in absolute numbers."""
    says = says or Line()
    room = width - _LABEL - 6 - says.width
    gauge, is_full = max(6, room * 3 // 5), fraction >= full
    line = Line(cell(label, _LABEL), "faint").join(bar(fraction, gauge, "alert" if is_full else "accent"))
    line.add(cell(share(fraction), 5, right=True), "alert" if is_full else "strong").add(" ")
    return line.add(spark(past, room - gauge, 1.0), "faint").join(says)


def _vital_signs(gpu: Gpu) -> Line:
    line = Line()
    if gpu.temperature_c is not None:
        line.add(f"{gpu.temperature_c:.0f}°C", "alert" if gpu.temperature_c >= _HOT_C else "soft")
    if gpu.power_w is not None:
        line.add("  " if line.width else "").add(f"{gpu.power_w:.0f}", "soft")
        line.add(f"/{gpu.power_limit_w:.0f} W" if gpu.power_limit_w else " W", "faint")
    return line


def _told(value: float | None, form: Callable[[float], str]) -> str:
    return "N/A" if value is None else form(value)


def _gpu_short(gpu: Gpu, width: int) -> Line:
    """Name, use, memory, temperature and power in one line; the name gives way."""
    line = Line(f"{gpu.index} ", "faint")
    if gpu.fault:
        return line.add("! ", "alert").add(gpu.fault, "soft")
    total, hot = gpu.memory_total_bytes, (gpu.temperature_c or 0.0) >= _HOT_C
    figures: tuple[tuple[str, int, Tone], ...] = (
        (_told(gpu.utilisation, share), 4, "strong"),
        (_told(total and gpu.memory_used_bytes, lambda used: f"{size(used)}/{size(total)}"), 11, "ink"),
        (_told(gpu.temperature_c, "{:.0f}°C".format), 5, "alert" if hot else "soft"),
        (_told(gpu.power_w, "{:.0f} W".format), 5, "soft"),
    )
    right = Line()
    for text, cells, tone in figures:
        right.add(f" {cell(text, cells, right=True)}", tone)
    return ends(line.add(gpu.name), right, width)


def _host(view: ViewState, hardware: Hardware, width: int) -> list[Line]:
    host = hardware.host
    line = Line()
    if host.cpu is not None:
        line.add(cell("cpu", _LABEL), "faint").add(cell(share(host.cpu), 4, right=True))
        line.add(f" of {host.cores}  " if host.cores else "  ", "faint")
        line.add(spark(view.history.cpu, width - 36, 1.0), "faint")
    if host.memory_total_bytes and host.memory_used_bytes is not None:
        memory = Line("ram ", "faint").add(size(host.memory_used_bytes))
        line = ends(line, memory.add(f" of {size(host.memory_total_bytes)}", "soft"), width)
    return [line] if line.width else []
