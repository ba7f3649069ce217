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
from tests.tui.board import bench, busy, view
from tui.app import Top
from tui.hardware.collect import Machine, read_amd, read_apple, read_host
from tui.hardware.nvidia import Nvidia, NvidiaGone, process_name
from tui.hardware.reading import Gpu, GpuProcess, Hardware, Host
from tui.panels import hardware as panel
from tui.view_state import ViewState

HOST = Host(0.5, 8, 8 << 30, 32 << 30)


def nvidia(*devices: Device, **errors: str) -> Nvidia:
    module = fake_nvml(*devices, errors=errors)
    return Nvidia(lambda: module)


def panel_text(hardware: Hardware | None, width: int = 42, height: int = 10) -> str:
    shown = replace(view("empty"), hardware=hardware)
    return "\n".join(line.plain for line in panel.body(shown, width, height))


# -- NVIDIA -----------------------------------------------------------------------------------------------


def test_a_healthy_gpu_tells_everything() -> None:
    (gpu,) = nvidia(Device(processes={os.getpid(): 3 << 30})).read()
    assert gpu == Gpu(
        0,
        "GeForce RTX 4090",
        0.4,
        4 << 30,
        gpu.memory_total_bytes,
        61.0,
        120.0,
        450.0,
        (GpuProcess(os.getpid(), process_name(os.getpid()), 3 << 30),),
        clock_mhz=2520,
        clock_limit_mhz=3105,
    )


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


def missing() -> ModuleType:
    raise ImportError


@pytest.mark.parametrize(
    ("error", "words"),
    [
        ("", "package is not installed"),
        ("NVML_ERROR_LIBRARY_NOT_FOUND", "no NVIDIA driver is installed"),
        ("NVML_ERROR_DRIVER_NOT_LOADED", "not loaded"),
        ("NVML_ERROR_NO_PERMISSION", "no permission"),
        ("NVML_ERROR_LIB_RM_VERSION_MISMATCH", "reboot"),
        ("NVML_ERROR_UNKNOWN", "NVML"),
    ],
)
def test_a_driver_that_will_not_start_says_why(error: str, words: str) -> None:
    with pytest.raises(NvidiaGone, match=words):
        (nvidia(nvmlInit=error) if error else Nvidia(missing)).read()


def test_a_driver_that_is_missing_or_dies_is_tried_again_but_not_every_second() -> None:
    errors = {"nvmlInit": "NVML_ERROR_DRIVER_NOT_LOADED"}
    module = fake_nvml(Device(), errors=errors)
    reader = Nvidia(lambda: module)
    for asked in (1, 2):
        for _ in range(10):
            with pytest.raises(NvidiaGone):
                reader.read()
        assert module.calls.count("nvmlInit") == asked
    errors.clear()
    assert reader.read()
    errors["nvmlDeviceGetCount"] = "NVML_ERROR_UNKNOWN"
    for _ in range(10):
        with pytest.raises(NvidiaGone):
            reader.read()
    errors.clear()
    assert reader.read()


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
    monkeypatch.setattr(module, function, lambda *args: b"\xff".decode())
    (gpu,) = Nvidia(lambda: module).read()
    assert gpu.power_w is not None


def test_processes_may_be_secret() -> None:
    kinds = ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses")
    (gpu,) = nvidia(Device(errors=dict.fromkeys(kinds, "NVML_ERROR_NO_PERMISSION"))).read()
    assert gpu.processes == ()
    (gpu,) = nvidia(Device(processes={os.getpid(): None})).read()
    assert gpu.processes[0].memory_bytes is None
    # So it is with every process under Windows' display driver model.
    assert f"{os.getpid()} " in panel_text(Hardware(HOST, (gpu,)))


def test_a_session_that_a_suspend_has_ended_is_started_again_but_not_every_second() -> None:
    device = Device()
    module = fake_nvml(device)
    reader = Nvidia(lambda: module)
    assert not reader.read()[0].fault
    device.errors["nvmlDeviceGetPciInfo"] = "NVML_ERROR_UNKNOWN"
    for _ in range(11):
        assert reader.read()[0].fault
    assert module.calls.count("nvmlInit") == 2
    device.errors.clear()
    assert not reader.read()[0].fault
    assert module.calls.count("nvmlInit") == 3


def test_a_gpu_without_memory_of_its_own_has_that_of_the_host() -> None:
    errors = {"nvmlDeviceGetMemoryInfo": "NVML_ERROR_NOT_SUPPORTED"}
    spark, slice_ = Device("NVIDIA GB10", errors=errors), Device("NVIDIA H100", mig=1, errors=errors)
    read = Machine(nvidia(spark, slice_), lambda: HOST, lambda: (), "linux")
    shared, own = read().gpus
    assert (shared.unified, shared.memory_used_bytes, shared.memory_total_bytes) == (True, 8 << 30, 32 << 30)
    assert (own.unified, own.memory_total_bytes) == (False, None)
    assert "mem  " in panel_text(read())


def test_a_gpu_that_falls_off_the_bus_leaves_the_others() -> None:
    dying, healthy = Device(), Device(name=b"NVIDIA A2")
    reader = nvidia(dying, healthy)
    assert not any(gpu.fault for gpu in reader.read())
    dying.errors["nvmlDeviceGetPciInfo"] = "NVML_ERROR_GPU_IS_LOST"
    lost, alive = reader.read()
    assert "fallen off the bus" in lost.fault
    assert lost.name == "GeForce RTX 4090"
    assert (alive.name, alive.utilisation) == ("A2", 0.4)
    dying.errors = {"handle": "NVML_ERROR_RESET_REQUIRED"}
    assert "reset" in reader.read()[0].fault


# -- others -----------------------------------------------------------------------------------------------


def test_amd_is_read_from_sysfs(tmp_path: Path) -> None:
    assert read_amd(tmp_path / "missing") == ()
    for name, value in {
        "card1/device/vendor": "0x1002",
        "card1/device/gpu_busy_percent": "37",
        "card1/device/mem_info_vram_used": str(2 << 30),
        "card1/device/mem_info_vram_total": str(16 << 30),
        "card1/device/hwmon/hwmon3/temp1_input": "54000",
        "card1/device/hwmon/hwmon3/power1_average": "88000000",
        "card1-DP-1/device/vendor": "0x1002",
        "card0/device/vendor": "0x8086",
        "card2/device/vendor": "0x1002",
        "card2/device/gpu_busy_percent": "n/a",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(value + "\n")
    whole = Gpu(0, "AMD GPU", 0.37, 2 << 30, 16 << 30, 54.0, 88_000_000 * 1e-6)
    assert read_amd(tmp_path) == (whole, Gpu(1, "AMD GPU"))


def test_apple_is_read_from_ioreg() -> None:
    told = {"Device Utilization %": 62, "In use system memory": 5 << 30}
    listing = plistlib.dumps([{"model": "Apple M3 Pro", "PerformanceStatistics": told}])
    (gpu,) = read_apple(HOST, lambda: listing)
    assert gpu == Gpu(0, "Apple M3 Pro", 0.62, 5 << 30, 32 << 30, unified=True)


def failing() -> bytes:
    raise subprocess.CalledProcessError(1, "ioreg")


@pytest.mark.parametrize("listing", [b"", b"not a list", plistlib.dumps([])])
def test_apple_that_tells_nothing(listing: bytes) -> None:
    assert read_apple(HOST, lambda: listing) == read_apple(HOST, failing) == ()


def test_the_machine_never_raises_and_numbers_its_gpus() -> None:
    amd = (Gpu(0, "AMD GPU"),)
    both = Machine(nvidia(Device()), lambda: HOST, lambda: amd, "linux")()
    assert [(gpu.index, gpu.name) for gpu in both.gpus] == [(0, "GeForce RTX 4090"), (1, "AMD GPU")]
    none = Machine(nvidia(nvmlInit="NVML_ERROR_DRIVER_NOT_LOADED"), lambda: HOST, tuple, "linux")()
    assert none.gpus == ()
    assert "not loaded" in none.note
    assert read_host().memory_total_bytes
    assert process_name(2**22 + 1).startswith("pid ")


# -- the panel --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gpus", "height", "words"),
    [
        (
            (Gpu(0, "RTX", fault="has fallen off the bus"), Gpu(1, "A2", 0.4)),
            10,
            "! has fallen off the bus|40%",
        ),
        ((Gpu(0, "RTX", fault="has fallen off the bus"), Gpu(1, "A2", 0.4)), 2, "0 ! has fallen off the bus"),
        ((), 10, "no GPU: no NVIDIA driver is installed"),
        ((Gpu(0, "bare"),), 10, "0 bare|util  N/A|vram  N/A"),
        ((Gpu(0, "a"), Gpu(1, "b", 0.4)), 2, "0 a |1 b |40%|N/A"),
        ((Gpu(0, "M3", 0.5, 1, 2, unified=True),), 10, "mem  "),
    ],
)
def test_the_panel_says_what_is_wrong_and_shows_the_rest(
    gpus: tuple[Gpu, ...], height: int, words: str
) -> None:
    hardware = Hardware(HOST, gpus, "no GPU: no NVIDIA driver is installed")
    assert all(word in panel_text(hardware, height=height) for word in words.split("|"))
    assert panel_text(None) == "reading…"


def test_of_eight_gpus_each_has_its_figures_in_a_line() -> None:
    slices = {"nvmlDeviceGetUtilizationRates": "NVML_ERROR_NOT_SUPPORTED"}
    big = [Device(name=f"NVIDIA H100 {n}", used=(60 + n) << 30, total=80 << 30) for n in range(7)]
    gpus = nvidia(*big, Device(name="NVIDIA A100", mig=1, errors=slices)).read()
    for height in (9, 10, 14, 30):
        lines = panel_text(Hardware(HOST, gpus), 42, height).split("\n")
        assert lines[6] == "6 H100 6       40% 66.0G/80.0G  61°C 120 W"
        assert lines[7] == "7 MIG A100     N/A  4.0G/24.0G  61°C 120 W"
        assert len(lines) == 9, "no graph takes their room"


async def test_a_driver_that_hangs_holds_up_neither_the_screen_nor_the_way_out() -> None:
    asked, release = threading.Event(), threading.Event()

    def hang() -> Hardware:
        asked.set()
        release.wait(60.0)
        return Hardware(HOST)

    async with bench(machine=hang) as it:
        assert await asyncio.to_thread(asked.wait, 10.0)
        await it.press()
        assert "reading…" in it.text
        assert busy().queue[0].id in it.text
    release.set()


async def test_readings_come_from_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    arrived, take = asyncio.Event(), Top.take_hardware

    def taken(app: Top, hardware: Hardware) -> None:
        take(app, hardware)
        arrived.set()

    monkeypatch.setattr(Top, "take_hardware", taken)
    async with bench(machine=lambda: Hardware(HOST, (Gpu(0, "RTX", 0.4),))) as it:
        await arrived.wait()
        it.app.draw()
        await it.press()
        assert "0 RTX" in it.text


def test_an_old_reading_says_so() -> None:
    old = ViewState("here", hardware=Hardware(HOST), hardware_age_s=61.0)
    assert panel.facts(old).plain.strip() == "no reading for 1m01"
    elsewhere = ViewState("http://10.0.0.4:8080", hardware=Hardware(HOST), local=False)
    assert "not the daemon's" in panel.facts(elsewhere).plain
