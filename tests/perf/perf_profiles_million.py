"""How long do the commands take on a million rows of history?

python tests/perf/perf_profiles_million.py [--rows 1000000]
"""

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import astuple, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from profiles.database import writing  # noqa: E402
from profiles.host import this_host  # noqa: E402
from profiles.states import client_hash, salt  # noqa: E402
from profiles.store import save  # noqa: E402
from profiles.writer import CLIENT, INSERT  # noqa: E402
from tests.fakes.remembered import PROFILE, traffic  # noqa: E402

TURNS = 5


def fill(path: Path, rows: int) -> float:
    """Write so many rows and return the seconds it took."""
    begun = time.perf_counter()
    with writing(path) as connection:
        save(connection, replace(PROFILE, host=this_host()))
        secret = salt(connection)
        connection.executemany(
            INSERT,
            (
                (*values[:CLIENT], client_hash(secret, row.client), *values[CLIENT + 1 :])
                for row in traffic(rows)
                for values in (astuple(row),)
            ),
        )
    return time.perf_counter() - begun


def cpu_s() -> float:
    """Return the processor seconds of all commands so far."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main(rows: int) -> None:
    """Fill a database and time the commands on it."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "c.db"
        print(
            f"{rows} rows written in {fill(path, rows):.0f} s, {path.stat().st_size / 1e6:.0f} MB", flush=True
        )
        commands = {
            "history": ["history"],
            "history --since": ["history", "--since", "2096-11-01"],
            "history --client": ["history", "--client", "alice"],
            "history --json -n 1000": ["history", "--json", "-n", "1000"],
            "profiles list": ["profiles", "list"],
            "profiles show": ["profiles", "show", PROFILE.name],
            "--help, for comparison": ["--help"],
        }
        times: dict[str, list[float]] = {name: [] for name in commands}
        cpu: dict[str, list[float]] = {name: [] for name in commands}
        for _ in range(TURNS):
            for name, arguments in commands.items():
                database = [] if "--help" in arguments else ["--db", str(path)]
                begun, worked = time.perf_counter(), cpu_s()
                subprocess.run(
                    [sys.executable, "-m", "clairvoyant_cli", *arguments, *database],
                    cwd=ROOT,
                    stdout=subprocess.DEVNULL,
                    check=True,
                )
                times[name].append(time.perf_counter() - begun)
                cpu[name].append(cpu_s() - worked)
        for name, taken in times.items():
            middle, worked = sorted(taken)[TURNS // 2], sorted(cpu[name])[TURNS // 2]
            print(
                f"{name}: median {middle:.2f} s, worst {max(taken):.2f} s of {TURNS}; "
                f"CPU {worked:.2f} s, which a busy machine does not stretch"
            )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=1_000_000)
    main(parser.parse_args().rows)
