"""Detects whether another distribution has overwritten one of our four packages, whose names are common."""

import importlib.metadata
import importlib.util
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

PACKAGES = ("clairvoyant_cli", "tui", "predictor", "profiles")
DISTRIBUTION = "clairvoyant-cli"
REINSTALL = "uv tool install --force .    # in the checkout: an environment of its own"


def displaced() -> Iterator[str]:
    """Describe each package that is imported from elsewhere, or overwritten by another wheel."""
    homes = {name: _home(name) for name in PACKAGES}
    ours = homes["clairvoyant_cli"]
    for name, home in homes.items():
        if home != ours:
            yield f"{name} comes from {home or 'nowhere'}, not from {ours}"
    with_hashes = dict(_installed())
    for name in PACKAGES:
        file = (ours or Path()) / name / "__init__.py"
        wanted = with_hashes.get(file)
        if homes[name] != ours or wanted is None or not file.exists():
            continue
        if urlsafe_b64encode(sha256(file.read_bytes()).digest()).decode().rstrip("=") != wanted:
            yield f"{name} in {ours} was overwritten by {_others(name)}"


def _home(name: str) -> Path | None:
    spec = importlib.util.find_spec(name)
    return Path(spec.origin).parent.parent if spec is not None and spec.origin else None


def _installed() -> Iterator[tuple[Path, str]]:
    """Yield the files of our wheel and their hashes; none for an editable install."""
    try:
        files = importlib.metadata.files(DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        return
    for file in files:
        if file.hash is not None and file.hash.mode == "sha256":
            yield Path(str(file.locate())), file.hash.value


def _others(name: str) -> str:
    owners = set(importlib.metadata.packages_distributions().get(name, ())) - {DISTRIBUTION}
    return ", ".join(sorted(owners)) or "something else"
