"""A Containerfile where there is no container engine: each stage a folder, its lines followed by hand.

Absolute paths are those of the stage's folder; what needs a system of its own (accounts) is left out.
"""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

INSIDE = re.compile(r"(?<![\w.])/(?=(?:opt|data|keys|token|src)\b)")
"""The paths of the image that its lines name."""

ACCOUNTS = ("useradd",)
"""A line with one of these is left out."""


@dataclass
class Image:
    """What a Containerfile makes: a folder in place of a file system, the command that it starts, and with
    which variables.
    """

    root: Path
    entry: list[str] = field(default_factory=list)
    variables: dict[str, str] = field(default_factory=dict)

    def within(self, text: str) -> str:
        """Return a text whose paths of the image are those of its folder."""
        return INSIDE.sub(f"{self.root}/", text)


def build(context: Path, into: Path, *, run: bool = True) -> Image:
    """Follow the Containerfile of a folder; without `run`, only find out what there is.

    subprocess.CalledProcessError with what it printed, if a line of it fails; FileNotFoundError if it copies
    what is not there.
    """
    stages = dict[str, Image]()
    image, where = Image(into), "/"
    for name, rest in _lines((context / "Containerfile").read_text()):
        if name == "FROM":
            stage = re.search(r" AS (\w+)$", rest)
            image, where = Image(into / f"stage{len(stages)}"), "/"
            stages[stage[1] if stage else "last"] = image
            (image.root / "data").mkdir(parents=True, exist_ok=True)
        elif name == "WORKDIR":
            where = rest
        elif name == "ENV":
            variable, _, value = rest.partition("=")
            image.variables[variable] = image.within(value)
        elif name == "ENTRYPOINT":
            image.entry = [image.within(each) for each in json.loads(rest)]
        elif name == "COPY" and run:
            _copy(rest, context, stages, image.root, where)
        elif name == "RUN" and run and not any(each in rest for each in ACCOUNTS):
            subprocess.run(
                ["/bin/sh", "-ec", image.within(rest)],
                cwd=image.root / where.lstrip("/"),
                env=os.environ | image.variables,
                check=True,
                capture_output=True,
                text=True,
            )
    return image


def _lines(text: str) -> Iterator[tuple[str, str]]:
    for line in text.replace("\\\n", " ").splitlines():
        if line.strip() and not line.startswith("#"):
            name, _, rest = line.partition(" ")
            yield name, rest.strip()


def _copy(rest: str, context: Path, stages: dict[str, Image], root: Path, where: str) -> None:
    stage = re.match(r"--from=(\w+) ", rest)
    *given, to = rest[stage.end() if stage else 0 :].split()
    source = stages[stage[1]].root if stage else context
    target = root / f"{'' if to.startswith('/') else where}/{to}".lstrip("/")
    for each in given:
        found = source / each.lstrip("/")
        if found.is_dir():
            shutil.copytree(found, target, symlinks=True, dirs_exist_ok=True)
        else:
            target.mkdir(parents=True, exist_ok=True)
            shutil.copy(found, target)
