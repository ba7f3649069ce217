"""A scene of chaos from its beginning to its end, and what was wrong in it, printed."""

import argparse
import asyncio
import logging
import sys
import time
from contextlib import AbstractAsyncContextManager
from typing import Protocol

MAX_FAULTS_PRINTED = 20


class Scene(Protocol):
    """Requests that come while things go wrong."""

    async def run(self, requests: int) -> None:
        """Let so many come, and everything end."""

    def faults(self) -> list[str]:
        """Return what is wrong, a line each."""

    @property
    def told(self) -> str:
        """Say what happened, in lines."""


async def faultless(scene: AbstractAsyncContextManager[Scene], requests: int, name: str) -> bool:
    """Run a scene, print what happened in how much virtual and real time, and return whether all held."""
    begun_s = time.monotonic()
    async with scene as it:
        await it.run(requests)
        faults = it.faults()
    virtual_s, took_s = asyncio.get_running_loop().time(), time.monotonic() - begun_s
    say = sys.stdout.write
    say(f"{name}: {virtual_s:.0f} s in {took_s:.0f} s\n  " + it.told.replace("\n", "\n  ") + "\n")
    for fault in faults[:MAX_FAULTS_PRINTED]:
        say("  FAIL " + fault[:500] + "\n")
    return not faults


def wanted(what: str | None, requests: int) -> argparse.Namespace:
    """Read how many `requests` and which `seed` the command line wants; the daemon's log is kept quiet."""
    parser = argparse.ArgumentParser(description=what, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=requests)
    parser.add_argument("--seed", type=int, default=1)
    logging.getLogger("clairvoyant").setLevel(logging.ERROR)
    return parser.parse_args()
