"""Thousands wait before a living daemon: the same total everywhere, and rows that reach to the last.

    CLAIRVOYANT_PICTURES=FOLDER python -m tests.perf.perf_thousands [--waiting 5000]

A screen of three sizes follows `clairvoyant serve` as `tests/tui/test_tui_living.py` has it, goes to the last
row, filters, and goes back to what was before it was opened; what it says is held against the state and the
metrics. Takes a minute; an AssertionError is a fault.
"""

import argparse
import asyncio
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from clairvoyant_cli.state.client import PREFIX, ControlClient
from tests.fakes.child import child
from tests.fakes.daemon_process import daemon_process
from tests.fakes.raw_http import get, raw_client
from tests.perf import perf_top_beside as beside
from tests.tui.test_tui_living import watching

GAUGE = re.compile(r'^clairvoyant_requests_waiting{class="\w+"} ([\d.e+]+)$', re.MULTILINE)


async def check(url: str, waiting: int) -> None:
    async with ControlClient(url) as control, raw_client(url) as client:
        await beside.all_wait(control, waiting)
        async with watching(url) as screen:
            begun_s = time.perf_counter()
            await screen.shows("thousands", f"waiting {waiting:,}", f" of {waiting:,}")
            print(f"totals stand in the header and over the queue ({time.perf_counter() - begun_s:.1f} s)")
            await screen.pilot.press("G")
            await screen.shows("last", f"\n {waiting} ")
            print("the last row is reached")
            await screen.pilot.press("home", "slash", *"client-3", "enter")
            every = (await control.snapshot()).clients
            of_one = next(each.waiting for each in every if each.name == "client-3")
            await screen.shows("filtered", f" of {of_one:,}")
            print(f"the filter finds all {of_one:,} of one client")
            await screen.pilot.press("escape", *["left_curly_bracket"] * 5)
            await screen.shows("before", "waiting 0", "ago")
            print("the past reaches to before it was opened")
        state = await control.snapshot()
        kinds = state.waiting.short + state.waiting.medium + state.waiting.long
        headers = [f"Authorization: Bearer {control.token}"] if control.token else []
        text = (await client.ask(get(f"{PREFIX}/metrics", *headers, host="127.0.0.1"))).body.decode()
        told = sum(float(number) for number in GAUGE.findall(text))
        assert (state.waiting.total, kinds, told) == (waiting, waiting, waiting), (state.waiting, told)
        print(f"the state and the metrics say {waiting:,}")


def main() -> None:
    """Let them wait, and look."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--waiting", type=int, default=5000)
    number = parser.parse_args().waiting
    with tempfile.TemporaryDirectory() as home, child(beside.__file__, "--still") as urls:
        one, other = urls.split()
        flags = ("--backend", other, "--slots", f"{beside.SLOTS}", "--queue-capacity", f"{number + 100}")
        with daemon_process(one, *flags, home=Path(home)) as daemon:
            command = [sys.executable, beside.__file__, "--flood", daemon.base_url]
            with subprocess.Popen([*command, "--waiting", f"{number + beside.SLOTS}"]) as flooding:
                try:
                    asyncio.run(check(daemon.base_url, number))
                finally:
                    flooding.kill()


if __name__ == "__main__":
    main()
