"""What it costs a stream that nobody cuts that it could be cut: CPU of the proxy for each token.

    python tests/perf/perf_splicing.py [--rounds N] [--tokens N]

Two daemons before one upstream that goes on with its answers, so a profile says, one of them with
`--no-preempt`; they take turns.
"""

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import psutil
import uvloop

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from clairvoyant_lab.proof import proven  # noqa: E402

from clairvoyant_cli.backends.adapters import adapter_of  # noqa: E402
from clairvoyant_cli.backends.prober import Prober  # noqa: E402
from profiles.database import writing  # noqa: E402
from profiles.host import this_host  # noqa: E402
from profiles.records import Served  # noqa: E402
from profiles.store import save  # noqa: E402
from tests.fakes.daemon_process import DaemonProcess, daemon_process  # noqa: E402
from tests.perf.perf_proxy import BODY, connect, request, upstream  # noqa: E402


def remember(database: Path, url: str) -> None:
    """Keep a profile of the upstream that says that it goes on."""

    async def fingerprint() -> str:
        async with Prober() as prober:
            settings = await adapter_of("llamacpp").settings(prober.asking(url), "tiny", "fast")
            return "" if settings is None else settings.fingerprint

    served = Served("llamacpp", "tiny", url=url, version="fast")
    profile = proven(served, resume_s=0.01, slots=1, fingerprint=asyncio.run(fingerprint()))
    with writing(database) as connection:
        save(connection, replace(profile, host=this_host(), measured_at=time.time()))


async def spent_s(daemon: DaemonProcess, tokens: int) -> float:
    """Return the CPU seconds that a stream costs a daemon."""
    client, process = await connect(daemon.base_url), psutil.Process(daemon.pid)
    before = sum(process.cpu_times()[:2])
    await client.ask(request(BODY | {"max_tokens": tokens}))
    return float(sum(process.cpu_times()[:2]) - before)


async def compare(daemons: dict[str, DaemonProcess], rounds: int, tokens: int) -> None:
    spent: dict[str, list[float]] = {name: [] for name in daemons}
    for turn in range(rounds + 1):
        for name in sorted(daemons, reverse=bool(turn % 2)):
            seconds = await spent_s(daemons[name], tokens)
            if turn:  # the first warms up
                spent[name].append(seconds / tokens * 1e6)
    for name, values in spent.items():
        print(f"{name:14} {statistics.mean(values):6.1f} us a token, {statistics.stdev(values):.1f} sd")
    may, never = (statistics.median(values) for values in spent.values())
    print(f"an answer that could be cut costs {100 * (may / never - 1):+.1f} % more")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=8000)
    args = parser.parse_args()
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        target = stack.enter_context(upstream(2000))
        remember(home / "c.db", target)
        daemons = {}
        for name, flags in {"may be cut": [], "--no-preempt": ["--no-preempt", "--policy", "srpt"]}.items():
            (place := home / name.strip("-")).mkdir()
            daemon = daemon_process(target, "--db", str(home / "c.db"), *flags, home=place)
            daemons[name] = stack.enter_context(daemon)
        daemons["may be cut"].await_line("goes on after a cut")
        uvloop.run(compare(daemons, args.rounds, args.tokens))


if __name__ == "__main__":
    main()
