"""Runs the operator's command for an alert of `top`: its sentence is in a variable, which no shell reads."""

import asyncio
import os
from collections.abc import Sequence
from subprocess import DEVNULL

VARIABLE = "CLAIRVOYANT_ALERT"


async def run_for_alert(command: Sequence[str], text: str) -> str:
    """Run a command until it ends; return in one line why it failed, "" if it did not."""
    if not command:
        return ""
    env = os.environ | {VARIABLE: text}
    try:
        process = await asyncio.create_subprocess_exec(
            *command, env=env, stdin=DEVNULL, stdout=DEVNULL, stderr=DEVNULL
        )
    except (OSError, ValueError) as error:
        return f"on_alert: cannot run {command[0]}: {error}"
    code = await process.wait()
    return f"on_alert: {command[0]} ended with exit code {code}" if code else ""
