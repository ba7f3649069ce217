"""The wheel: one package without tests, in which the three of common names are found."""

import importlib.util
import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).resolve().parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


SIBLINGS = ("tui", "predictor", "profiles")


def test_the_wheel_keeps_common_names_out_of_site_packages(tmp_path: Path) -> None:
    pytest.importorskip("hatchling", reason="hatchling builds the package; it is in the extra dev")
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path)]
    variables = os.environ | {"CLAIRVOYANT_COMMIT": "3f2a9c1e" * 5}
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, env=variables)
    [wheel] = tmp_path.glob("*.whl")
    site = tmp_path / "site"
    with ZipFile(wheel) as archive:
        archive.extractall(site)
    assert {each.name.partition("-")[0] for each in site.iterdir()} == {"clairvoyant_cli"}
    assert (site / "clairvoyant_cli" / "commit.txt").read_text() == "3f2a9c1e"
    for name in SIBLINGS:  # of another distribution
        (site / name).mkdir()
        (site / name / "__init__.py").write_text("raise AttributeError")
    names = ", ".join(SIBLINGS)
    told = f"import clairvoyant_cli, {names}; print(*(each.__file__ for each in ({names})))"
    done = subprocess.run(
        [sys.executable, "-P", "-c", told],
        env=os.environ | {"PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        check=True,
    )
    home = site / "clairvoyant_cli" / "siblings"
    assert done.stdout.split() == [str(home / name / "__init__.py") for name in SIBLINGS]


def test_package_page_links_are_absolute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("hatchling", reason="hatchling builds the package; it is in the extra dev")
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    hook = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hook)
    monkeypatch.setenv(hook.VARIABLE, "https://host/owner/it/")
    metadata: dict[str, Any] = {}
    hook.ProjectPage(str(ROOT), {}).update(metadata)
    text = metadata["readme"]["text"]
    assert "](https://host/owner/it/raw/HEAD/docs/screenshots/before-after.svg)" in text
    assert all(target.startswith("http") for target in re.findall(r"\]\(([^)#]+)", text))
    assert metadata["urls"]["Issues"] == "https://host/owner/it/issues"
    monkeypatch.delenv(hook.VARIABLE)
    hook.ProjectPage(str(ROOT), {}).update(metadata)
    assert metadata["readme"]["text"] == (ROOT / "README.md").read_text()
    assert metadata["urls"] == {}


def test_one_console_script() -> None:
    assert PYPROJECT["project"]["scripts"] == {"clairvoyant": "clairvoyant_cli.main:main"}
    installed = [each for each in entry_points(group="console_scripts") if each.name == "clairvoyant"]
    assert all(each.value == "clairvoyant_cli.main:main" for each in installed)


def test_base_install_has_no_training_libraries() -> None:
    base = " ".join(PYPROJECT["project"]["dependencies"])
    for name in ("xgboost", "scikit", "scipy", "onnxmltools", "pytest"):
        assert name not in base
