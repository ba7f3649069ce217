"""What the screen remembers from one time to the next: how its operator likes it."""

import json
from contextlib import suppress
from pathlib import Path


def remembered(path: Path) -> dict[str, str]:
    """Return what was kept; nothing if there is no such file, or somebody has spoilt it."""
    with suppress(OSError, ValueError, RecursionError):
        kept = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(kept, dict):
            return {name: value for name, value in kept.items() if isinstance(value, str)}
    return {}


def remember(path: Path, **changes: str) -> None:
    """Keep something; a disk that cannot be written to costs the memory, not the screen."""
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(remembered(path) | changes), encoding="utf-8")
