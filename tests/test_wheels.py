"""Every dependency has a wheel on each supported platform."""

import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

import pytest

PYPROJECT = Path(__file__).resolve().parents[1] / "pyproject.toml"
NEEDED = tomllib.loads(PYPROJECT.read_text())["project"]["dependencies"]
AWAY = ("Failed to fetch", "Could not connect", "error sending request", "dns error", "timed out")
BESIDE_PYTHON = str(Path(sys.executable).parent)
UV = shutil.which("uv", path=os.pathsep.join((BESIDE_PYTHON, os.environ.get("PATH", ""))))
pytestmark = pytest.mark.skipif(UV is None, reason="uv is not installed; it is in the extra dev")


def resolve(
    needed: Sequence[str], platform: str, python: str, where: Path
) -> "subprocess.CompletedProcess[str]":
    """Have uv look for wheels, and install nothing; skip the test where the package registry is away."""
    requirements = where / "requirements.txt"
    requirements.write_text("\n".join(needed))
    command = [
        *(
            str(UV),
            "pip",
            "install",
            "--dry-run",
            "--only-binary",
            ":all:",
            "--target",
            str(where / "target"),
        ),
        *("--python-platform", platform, "--python-version", python, "-r", str(requirements)),
    ]
    environment = os.environ | {
        "UV_HTTP_RETRIES": "0",
        "UV_HTTP_TIMEOUT": "10",
        "UV_SYSTEM_CERTS": "1",
        "MACOSX_DEPLOYMENT_TARGET": "14.0",  # what ONNX Runtime's wheels for Python 3.14 ask for
    }
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode and any(words in done.stderr for words in AWAY):
        pytest.skip(f"the package registry does not answer: {done.stderr.strip().splitlines()[-1]}")
    return done


@pytest.mark.parametrize("python", ["3.11", "3.14"])
@pytest.mark.parametrize(
    "platform", ["x86_64-pc-windows-msvc", "aarch64-apple-darwin", "aarch64-unknown-linux-gnu"]
)
def test_every_dependency_has_a_wheel(platform: str, python: str, tmp_path: Path) -> None:
    done = resolve(NEEDED, platform, python, tmp_path)
    assert done.returncode == 0, done.stderr
    assert ("uvloop" in done.stderr) == ("windows" not in platform)
    assert "onnxruntime" in done.stderr


def test_missing_windows_wheels_are_detected(tmp_path: Path) -> None:
    done = resolve(["uvloop"], "x86_64-pc-windows-msvc", "3.12", tmp_path)
    assert done.returncode != 0
    assert "uvloop" in done.stderr
