"""The wheel: four packages side by side, without tests."""

import importlib
import importlib.util
import re
import tomllib
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_packages_are_found_side_by_side() -> None:
    homes = set()
    for name in ("clairvoyant_cli", "tui", "predictor", "profiles"):
        module = importlib.import_module(name)
        assert module.__file__ is not None
        homes.add(Path(module.__file__).parent.parent)
    assert len(homes) == 1


def test_wheel_contains_only_the_product() -> None:
    packages = PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert set(packages) == {"clairvoyant_cli", "tui", "predictor", "profiles"}


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
    assert "](https://host/owner/it/raw/HEAD/docs/screenshots/demo.svg)" in text
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
