"""The type of options that name an output."""

import os
from pathlib import Path
from typing import Any

import click

from clairvoyant_cli.files import refuse_pipe


class Output(click.Path):
    """An output file or folder, checked before the command starts.

    `suffixes` are the allowed file name suffixes; empty allows any.
    """

    def __init__(self, *suffixes: str, folder: bool = False) -> None:
        super().__init__(path_type=Path, dir_okay=folder, file_okay=not folder)
        self._suffixes = suffixes

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path; a usage error if it is not writable or has the wrong suffix."""
        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        if self._suffixes and path.suffix.lower() not in self._suffixes:
            self.fail(f"{path.name!r} must end in {' or '.join(self._suffixes)}", param, ctx)
        try:
            refuse_pipe(path)
            nearest = path if path.exists() else path.parent
            if self.dir_okay:  # missing parents are created later
                nearest = next(each for each in (path, *path.absolute().parents) if each.exists())
        except OSError as error:
            self.fail(f"cannot write {path}: {error.strerror}", param, ctx)
        if not nearest.exists() or (nearest != path and not nearest.is_dir()):
            self.fail(f"the folder {nearest} does not exist; create it first", param, ctx)
        if not os.access(nearest, os.W_OK):
            self.fail(f"{nearest} is not writable", param, ctx)
        return path
