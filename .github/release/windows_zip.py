"""Pack the program, this Python and the locked dependencies into a zip: windows_zip.py DIST --arch amd64

Runs on Windows. DIST has the wheel and requirements.txt; the zip is written there. `bin` in the zip has the
launcher alone: a PATH with it puts no other python.exe in front of the user's own.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from pip._vendor.distlib.scripts import ScriptMaker

UNUSED = (
    "Doc",
    "include",
    "libs",
    "tcl",
    "Scripts",
    "site-packages",
    "test",
    "idlelib",
    "ensurepip",
    "__pycache__",
)


def main() -> None:
    """Pack the zip."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dist", type=Path)
    parser.add_argument("--arch", choices=("amd64", "arm64"), required=True)
    args = parser.parse_args()
    (wheel,) = args.dist.glob("*.whl")
    with tempfile.TemporaryDirectory() as scratch:
        home = Path(scratch) / "clairvoyant"
        python, launchers = home / "python", home / "bin"
        shutil.copytree(sys.base_prefix, python, ignore=shutil.ignore_patterns(*UNUSED))
        packages = python / "Lib" / "site-packages"
        install = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--only-binary",
            ":all:",
            "--target",
            str(packages),
        ]
        locked = ["--require-hashes", "--requirement", str(args.dist / "requirements.txt")]
        subprocess.run([*install, *locked], check=True)
        subprocess.run([*install, "--no-deps", str(wheel)], check=True)
        launchers.mkdir()
        maker = ScriptMaker(None, str(launchers), add_launchers=True)
        maker.variants = {""}
        maker.executable = r"<launcher_dir>\..\python\python.exe"
        maker.make("clairvoyant = clairvoyant_cli.main:main")
        version = wheel.name.split("-")[1]
        shutil.make_archive(str(args.dist / f"clairvoyant-{version}-windows-{args.arch}"), "zip", scratch)


if __name__ == "__main__":
    main()
