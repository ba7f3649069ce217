"""What is installed is what was meant: the four packages side by side, and no tests."""

import importlib
import tomllib
from importlib.metadata import entry_points
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_the_packages_resolve_beside_each_other() -> None:
    homes = set()
    for name in ("clairvoyant_cli", "tui", "predictor", "profiles"):
        module = importlib.import_module(name)
        assert module.__file__ is not None
        homes.add(Path(module.__file__).parent.parent)
    assert len(homes) == 1


def test_the_wheel_holds_the_program_alone() -> None:
    packages = PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert set(packages) == {"clairvoyant_cli", "tui", "predictor", "profiles"}


def test_one_console_script() -> None:
    assert PYPROJECT["project"]["scripts"] == {"clairvoyant": "clairvoyant_cli.main:main"}
    installed = [each for each in entry_points(group="console_scripts") if each.name == "clairvoyant"]
    assert all(each.value == "clairvoyant_cli.main:main" for each in installed)


def test_the_base_install_trains_nothing() -> None:
    base = " ".join(PYPROJECT["project"]["dependencies"])
    for name in ("xgboost", "scikit", "scipy", "onnxmltools", "pytest"):
        assert name not in base
