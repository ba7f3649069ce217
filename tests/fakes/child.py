"""A server in a process of its own, which says its address in its first line."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@contextmanager
def child(*arguments: object) -> Iterator[str]:
    """Run Python with these arguments until the block ends; yield the address."""
    with subprocess.Popen(
        [sys.executable, *map(str, arguments)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.kill()
