"""How long do the commands take on a million rows of history?

python tests/perf/perf_profiles_million.py [--rows 1000000]
"""

import argparse
import subprocess
import sys
import tempfile
import time
from dataclasses import astuple
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from profiles.database import writing  # noqa: E402
from profiles.states import client_hash, salt  # noqa: E402
from profiles.store import save  # noqa: E402
from profiles.writer import CLIENT, INSERT  # noqa: E402
from tests.fakes.remembered import PROFILE, traffic  # noqa: E402

TURNS = 5


def fill(path: Path, rows: int) -> float:
    """Write so many rows and return the seconds it took."""
    begun = time.perf_counter()
    with writing(path) as connection:
        save(connection, PROFILE)
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
        for _ in range(TURNS):
            for name, arguments in commands.items():
                database = [] if "--help" in arguments else ["--db", str(path)]
                begun = time.perf_counter()
                subprocess.run(
                    [sys.executable, "-m", "clairvoyant_cli", *arguments, *database],
                    cwd=ROOT,
                    stdout=subprocess.DEVNULL,
                    check=True,
                )
                times[name].append(time.perf_counter() - begun)
        for name, taken in times.items():
            print(f"{name}: median {sorted(taken)[TURNS // 2]:.2f} s, worst {max(taken):.2f} s of {TURNS}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=1_000_000)
    main(parser.parse_args().rows)
