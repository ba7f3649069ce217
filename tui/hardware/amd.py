"""AMD GPUs by what the amdgpu driver writes into sysfs: no library, no root."""

from pathlib import Path

from tui.hardware.reading import Gpu

DRM = Path("/sys/class/drm")
_AMD = "0x1002"


def read_amd(drm: Path = DRM) -> tuple[Gpu, ...]:
    """Return every AMD card; one that does not tell a field has None there."""
    cards = sorted(drm.glob("card[0-9]*/device"), key=lambda path: path.parent.name)
    amd = [device for device in cards if _text(device / "vendor") == _AMD and "-" not in device.parent.name]
    return tuple(_gpu(index, device) for index, device in enumerate(amd))


def _gpu(index: int, device: Path) -> Gpu:
    busy = _number(device / "gpu_busy_percent")
    sensors = next(iter(sorted((device / "hwmon").glob("hwmon*"))), device)
    heat = _number(sensors / "temp1_input")
    power = _number(sensors / "power1_average")
    power = power if power is not None else _number(sensors / "power1_input")
    cap = _number(sensors / "power1_cap")
    return Gpu(
        index=index,
        name=_text(device / "product_name") or "AMD GPU",
        utilisation=busy / 100.0 if busy is not None else None,
        memory_used_bytes=_number(device / "mem_info_vram_used"),
        memory_total_bytes=_number(device / "mem_info_vram_total"),
        temperature_c=heat / 1000.0 if heat is not None else None,
        power_w=power / 1e6 if power is not None else None,
        power_limit_w=cap / 1e6 if cap is not None else None,
    )


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _number(path: Path) -> int | None:
    try:
        return int(_text(path))
    except ValueError:
        return None
