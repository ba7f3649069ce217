"""GPUs that are missing, forbidden, half supported, dying; the machines that have none."""

import asyncio
import os
import plistlib
import subprocess
import threading
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from tests.fakes.fake_nvml import Device, fake_nvml
from tests.tui.board import Script, busy, settled, view
from tui.app import Top
from tui.hardware.collect import Machine, read_amd, read_apple, read_host
from tui.hardware.nvidia import Nvidia, NvidiaGone, process_name
from tui.hardware.reading import Gpu, Hardware, Host
from tui.panels import hardware as panel
from tui.view_state import Link, LinkState, ViewState

HOST = Host(0.5, 8, 8 << 30, 32 << 30)


def nvidia(*devices: Device, **errors: str) -> Nvidia:
    module = fake_nvml(*devices, errors=errors)
    return Nvidia(lambda: module)


def test_a_healthy_gpu_tells_everything() -> None:
    (gpu,) = nvidia(Device(processes={os.getpid(): 3 << 30})).read()
    assert gpu.name == "GeForce RTX 4090"
    assert gpu.utilisation == 0.4
    assert gpu.memory_used_bytes == 4 << 30
    assert gpu.temperature_c == 61.0
    assert (gpu.power_w, gpu.power_limit_w) == (120.0, 450.0)
    assert gpu.processes[0].pid == os.getpid()
    assert gpu.processes[0].memory_bytes == 3 << 30
    assert (gpu.clock_mhz, gpu.clock_limit_mhz, gpu.throttled) == (2520, 3105, "")
    assert not gpu.fault


@pytest.mark.parametrize(
    ("bits", "why"),
    [(0x1, ""), (0x2, ""), (0x4, "power limit"), (0x20, "heat"), (0x48, "heat"), (0x80, "power supply")],
)
def test_what_slows_the_clock_is_named(bits: int, why: str) -> None:
    (gpu,) = nvidia(Device(throttled=bits)).read()
    assert gpu.throttled == why
    text = panel_text(Hardware(HOST, (gpu,)))
    assert "2,520/3,105 MHz" in text
    assert (f"slowed: {why}" in text) == bool(why)


def test_without_the_library_it_says_so() -> None:
    def missing() -> ModuleType:
        raise ImportError

    with pytest.raises(NvidiaGone, match="package is not installed"):
        Nvidia(missing).read()


@pytest.mark.parametrize(
    ("error", "words"),
    [
        ("NVML_ERROR_LIBRARY_NOT_FOUND", "no NVIDIA driver is installed"),
        ("NVML_ERROR_DRIVER_NOT_LOADED", "not loaded"),
        ("NVML_ERROR_NO_PERMISSION", "no permission"),
        ("NVML_ERROR_LIB_RM_VERSION_MISMATCH", "reboot"),
        ("NVML_ERROR_UNKNOWN", "NVML"),
    ],
)
def test_a_driver_that_will_not_start_says_why(error: str, words: str) -> None:
    with pytest.raises(NvidiaGone, match=words):
        nvidia(nvmlInit=error).read()


def test_a_missing_driver_is_not_asked_every_second() -> None:
    module = fake_nvml(errors={"nvmlInit": "NVML_ERROR_DRIVER_NOT_LOADED"})
    reader = Nvidia(lambda: module)
    for _ in range(10):
        with pytest.raises(NvidiaGone):
            reader.read()
    assert module.calls.count("nvmlInit") == 1
    with pytest.raises(NvidiaGone):
        reader.read()
    assert module.calls.count("nvmlInit") == 2


@pytest.mark.parametrize(
    ("function", "field"),
    [
        ("nvmlDeviceGetUtilizationRates", "utilisation"),  # a MIG slice has none
        ("nvmlDeviceGetMemoryInfo", "memory_total_bytes"),  # a Jetson has none of its own
        ("nvmlDeviceGetPowerUsage", "power_w"),
        ("nvmlDeviceGetEnforcedPowerLimit", "power_limit_w"),
        ("nvmlDeviceGetTemperature", "temperature_c"),
        ("nvmlDeviceGetClockInfo", "clock_mhz"),
        ("nvmlDeviceGetMaxClockInfo", "clock_limit_mhz"),
    ],
)
@pytest.mark.parametrize("error", ["NVML_ERROR_NOT_SUPPORTED", "NVML_ERROR_NO_PERMISSION"])
def test_a_field_that_fails_is_none_and_the_rest_lives(function: str, field: str, error: str) -> None:
    (gpu,) = nvidia(Device(errors={function: error})).read()
    assert getattr(gpu, field) is None
    assert not gpu.fault
    others = {"utilisation", "memory_total_bytes", "power_w", "temperature_c"} - {field}
    assert all(getattr(gpu, other) is not None for other in others)


@pytest.mark.parametrize(
    "function", ["nvmlDeviceGetName", "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetClockInfo"]
)
def test_whatever_a_driver_raises_leaves_one_field_out(
    function: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = fake_nvml(Device())

    def garbled(*args: object) -> str:
        return b"\xff".decode()

    monkeypatch.setattr(module, function, garbled)
    (gpu,) = Nvidia(lambda: module).read()
    assert gpu.power_w is not None


def test_processes_may_be_secret() -> None:
    forbidden = {
        "nvmlDeviceGetComputeRunningProcesses": "NVML_ERROR_NO_PERMISSION",
        "nvmlDeviceGetGraphicsRunningProcesses": "NVML_ERROR_NO_PERMISSION",
    }
    (gpu,) = nvidia(Device(errors=forbidden)).read()
    assert gpu.processes == ()
    (gpu,) = nvidia(Device(processes={os.getpid(): None})).read()
    assert gpu.processes[0].memory_bytes is None
    # So it is with every process under Windows' display driver model.
    assert f"{os.getpid()} " in panel_text(Hardware(HOST, (gpu,)))


def test_a_gpu_that_falls_off_the_bus_leaves_the_others() -> None:
    dying, healthy = Device(), Device(name=b"NVIDIA A2")
    reader = nvidia(dying, healthy)
    assert not any(gpu.fault for gpu in reader.read())
    dying.errors["nvmlDeviceGetPciInfo"] = "NVML_ERROR_GPU_IS_LOST"
    lost, alive = reader.read()
    assert "fallen off the bus" in lost.fault
    assert lost.name == "GeForce RTX 4090"
    assert alive.name == "A2"
    assert alive.utilisation == 0.4
    dying.errors = {"handle": "NVML_ERROR_RESET_REQUIRED"}
    assert "reset" in reader.read()[0].fault


def test_a_driver_that_dies_is_tried_again() -> None:
    errors: dict[str, str] = {}
    module = fake_nvml(Device(), errors=errors)
    reader = Nvidia(lambda: module)
    assert reader.read()
    errors["nvmlDeviceGetCount"] = "NVML_ERROR_UNKNOWN"
    for _ in range(10):
        with pytest.raises(NvidiaGone):
            reader.read()
    errors.clear()
    assert reader.read()


def test_amd_is_read_from_sysfs(tmp_path: Path) -> None:
    device = tmp_path / "card1" / "device"
    sensors = device / "hwmon" / "hwmon3"
    sensors.mkdir(parents=True)
    for name, value in {
        "vendor": "0x1002",
        "gpu_busy_percent": "37",
        "mem_info_vram_used": str(2 << 30),
        "mem_info_vram_total": str(16 << 30),
        "hwmon/hwmon3/temp1_input": "54000",
        "hwmon/hwmon3/power1_average": "88000000",
    }.items():
        (device / name).write_text(value + "\n")
    (tmp_path / "card1-DP-1" / "device").mkdir(parents=True)
    (tmp_path / "card0" / "device").mkdir(parents=True)
    (gpu,) = read_amd(tmp_path)
    assert gpu == Gpu(0, "AMD GPU", 0.37, 2 << 30, 16 << 30, 54.0, 88.0)


def test_amd_that_tells_little_and_no_amd_at_all(tmp_path: Path) -> None:
    assert read_amd(tmp_path / "missing") == ()
    device = tmp_path / "card0" / "device"
    device.mkdir(parents=True)
    (device / "vendor").write_text("0x1002")
    (device / "gpu_busy_percent").write_text("n/a")
    assert read_amd(tmp_path) == (Gpu(0, "AMD GPU"),)


def test_apple_is_read_from_ioreg() -> None:
    told = {"Device Utilization %": 62, "In use system memory": 5 << 30}
    listing = plistlib.dumps([{"model": "Apple M3 Pro", "PerformanceStatistics": told}])
    (gpu,) = read_apple(HOST, lambda: listing)
    assert gpu == Gpu(0, "Apple M3 Pro", 0.62, 5 << 30, 32 << 30, unified=True)


def failing() -> bytes:
    raise subprocess.CalledProcessError(1, "ioreg")


@pytest.mark.parametrize("listing", [b"", b"not a list", plistlib.dumps([])])
def test_apple_that_tells_nothing(listing: bytes) -> None:
    assert read_apple(HOST, lambda: listing) == ()
    assert read_apple(HOST, failing) == ()


def test_the_machine_never_raises_and_numbers_its_gpus() -> None:
    amd = (Gpu(0, "AMD GPU"),)
    both = Machine(nvidia(Device()), lambda: HOST, lambda: amd, "linux")()
    assert [(gpu.index, gpu.name) for gpu in both.gpus] == [(0, "GeForce RTX 4090"), (1, "AMD GPU")]
    none = Machine(nvidia(nvmlInit="NVML_ERROR_DRIVER_NOT_LOADED"), lambda: HOST, tuple, "linux")()
    assert none.gpus == ()
    assert "not loaded" in none.note


def test_this_machine_tells_something() -> None:
    host = read_host()
    assert host.memory_total_bytes
    assert process_name(os.getpid())
    assert process_name(2**22 + 1).startswith("pid ")


def panel_text(hardware: Hardware | None, width: int = 42, height: int = 10) -> str:
    base = view("empty")
    shown = ViewState(base.link, base.snapshot, hardware, base.history)
    return "\n".join(line.plain for line in panel.body(shown, width, height))


def test_the_panel_says_what_is_wrong_and_shows_the_rest() -> None:
    lost = Gpu(0, "RTX", fault="has fallen off the bus: it needs a reset or a reboot")
    text = panel_text(Hardware(HOST, (lost, Gpu(1, "A2", 0.4))))
    assert "! has fallen off the bus" in text
    assert "40%" in text
    assert "no GPU: no NVIDIA driver" in panel_text(
        Hardware(HOST, note="no GPU: no NVIDIA driver is installed")
    )
    assert panel_text(None) == "reading…"


def test_the_panel_lives_without_any_field() -> None:
    assert "bare" in panel_text(Hardware(Host(), (Gpu(0, "bare"),)))
    assert "0 util    –" in panel_text(Hardware(Host(), (Gpu(0, "a"), Gpu(1, "b"))), height=2)
    assert "unified" not in panel_text(Hardware(HOST, (Gpu(0, "M3", 0.5, 1, 2, unified=True),)))


def test_the_energy_of_an_answer_has_a_price_if_one_was_set() -> None:
    shown = view()
    text = "\n".join(line.plain for line in panel.body(shown, 42, 12))
    assert "Wh each of 42" in text
    assert "per 1,000" not in text
    priced = "\n".join(line.plain for line in panel.body(replace(shown, price_kwh=0.3), 42, 12))
    wh, _ = shown.history.energy_each_wh() or (0.0, 0)
    assert f"{wh * 0.3:.3f} per 1,000" in priced
    elsewhere = replace(shown, link=replace(shown.link, local=False))
    assert "Wh" not in "\n".join(line.plain for line in panel.body(elsewhere, 42, 12))


@pytest.mark.parametrize(("text", "price"), [("0.3", 0.3), ("", None)])
def test_the_price_is_a_preference(text: str, price: float | None) -> None:
    assert Top(Script(), likes={"price": text}).view().price_kwh == price


async def test_a_driver_that_hangs_holds_up_neither_the_screen_nor_the_way_out() -> None:
    asked, release = threading.Event(), threading.Event()

    def hang() -> Hardware:
        asked.set()
        release.wait(60.0)
        return Hardware(HOST)

    app = Top(Script([busy()]), machine=hang)
    async with app.run_test(size=(120, 40)) as pilot:
        assert await asyncio.to_thread(asked.wait, 10.0)
        text = await settled(app, pilot)
        assert "reading…" in text
        assert busy().queue[0].id in text
    release.set()


async def test_readings_come_from_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    arrived = asyncio.Event()
    app = Top(Script([busy()]), machine=lambda: Hardware(HOST, (Gpu(0, "RTX", 0.4),)))
    take = app.take_hardware

    def taken(hardware: Hardware) -> None:
        take(hardware)
        arrived.set()

    monkeypatch.setattr(app, "take_hardware", taken)
    async with app.run_test(size=(120, 40)) as pilot:
        await arrived.wait()
        app.draw()
        assert "0 RTX" in await settled(app, pilot)


def test_an_old_reading_says_so() -> None:
    old = ViewState(view().link, hardware=Hardware(HOST), hardware_age_s=61.0)
    assert panel.facts(old).plain.strip() == "no reading for 1m01"
    elsewhere = ViewState(Link(LinkState.LIVE, "http://10.0.0.4:8080", local=False), hardware=Hardware(HOST))
    assert "not the daemon's" in panel.facts(elsewhere).plain
