"""That nobody starves: level 0 without end on a real server, and what becomes of a few requests of level 4.

    python tests/perf/perf_urgency_guard.py URL [--seconds 120] [--patient 8] [--eager 4]

`eager` clients ask at level 0, one answer after the other, so that some of them always wait; `patient`
requests of level 4 come in between. With tau and without. With tau, of five starts one is the request that
has waited longest beyond it, so the k-th that waits has begun within tau and 5k starts. The run ends with the
last answer, without tau once the eager have stopped.
"""

import argparse
import asyncio
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import httpx
from clairvoyant_lab.training.urgency_cases.writing import write_cases

from clairvoyant_cli.commands.setup import kept_in, load_predictor
from clairvoyant_cli.config import ServeConfig
from clairvoyant_cli.proxy.daemon import running_daemon
from clairvoyant_cli.proxy.queue.exchange import Exchange, RequestEnd
from tests.perf.perf_urgency import SEED, TOKENS, body, mean_and_p90, service_s

UNGUARDED = 0.0
"""No tau."""


@dataclass
class Found:
    """What became of the requests: waits and times in the slot by level, in seconds; starts by tau."""

    waits: dict[int, list[float]] = field(default_factory=lambda: {0: [], 4: []})
    held: list[float] = field(default_factory=list)
    during: int = 0
    firings: int = 0


async def run(url: str, database: Path, clients: Path, tau_s: float, options: argparse.Namespace) -> Found:
    """Serve level 0 without a pause for so many seconds, and count how the others fare."""
    found, cases, rng = Found(), write_cases(), Random(SEED)
    config = ServeConfig(
        backend=url,
        listen="127.0.0.1:0",
        db=str(database),
        clients=str(clients),
        policy="urgency",
        tau=tau_s,
        freeze=True,
    )
    with kept_in(config) as opening:
        daemon_of = running_daemon(config, load_predictor(None), persistence=opening.result())
        async with daemon_of as daemon, httpx.AsyncClient(timeout=900) as client:
            until_s = time.monotonic() + options.seconds

            def ended(exchange: Exchange, end: RequestEnd) -> None:
                level = exchange.job.urgency or 0
                waited_s = exchange.waited_s(end.at_s)
                found.waits[level].append(waited_s)
                found.held.append(exchange.sojourn_s(end.at_s) - waited_s)
                found.during += level == 4 and time.monotonic() < until_s

            daemon.dispatcher.ended.append(ended)

            async def ask(level: int) -> None:
                answer = await client.post(
                    f"{daemon.base_url}/v1/chat/completions",
                    json=body(rng.choice(cases), rng.randint(*TOKENS)),
                    headers={"X-True-Level": str(level), "X-Clairvoyant-Client": str(rng.random())},
                )
                answer.raise_for_status()

            async def eager() -> None:
                while time.monotonic() < until_s:
                    await ask(0)

            async def patient(number: int) -> None:
                await asyncio.sleep(options.seconds / 2 * number / options.patient)
                await ask(4)

            asked = [eager() for _ in range(options.eager)] + [patient(n) for n in range(options.patient)]
            await asyncio.gather(*asked)
            found.firings = daemon.dispatcher.scheduler.tau_firings
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--patient", type=int, default=8)
    parser.add_argument("--eager", type=int, default=4)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        database, clients = Path(folder) / "c.db", Path(folder) / "clients.toml"
        rules = (f'[[urgency]]\nlevel = {n}\nheader = "X-True-Level: {n}"\n' for n in (0, 4))
        clients.write_text("".join(rules))
        command = [sys.executable, "-m", "clairvoyant_cli", "calibrate"]
        calibrated = [*command, "--backend", options.url, "--db", str(database)]
        subprocess.run(calibrated, check=True, capture_output=True, text=True)
        alone_s = asyncio.run(service_s(options.url, write_cases()))
        tau_s = round(5.0 * alone_s, 1)
        print(f"{alone_s:.2f} s each alone, tau {tau_s:g} s, {options.eager} at level 0 all the time for")
        print(f"{options.seconds:g} s, and {options.patient} requests of level 4 in the first half of it")
        for tau in (tau_s, UNGUARDED):
            found = asyncio.run(run(options.url, database, clients, tau, options))
            late = found.waits[4]
            bound_s = tau_s + 5 * options.patient * max(found.held)
            print(f"tau {tau:g} s: {len(found.waits[0])} of level 0 waited {mean_and_p90(found.waits[0])} s;")
            print(f"  level 4: {len(late)} of {options.patient} ended, {found.during} while level 0 came;")
            print(f"  waited {mean_and_p90(late)} s, the longest {max(late):.1f} s,", end=" ")
            print(f"{found.firings} starts by tau" + (f"; bound {bound_s:.0f} s" if tau != UNGUARDED else ""))


if __name__ == "__main__":
    main()
