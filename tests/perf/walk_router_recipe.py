"""Walks the recipe of docs/how-to/beyond-one-machine.md, "Try it on a laptop".

    python -m tests.perf.walk_router_recipe --dynamo VENV --model MODEL

Runs the page's commands as they stand, in an empty folder. VENV has `ai-dynamo` and takes the place of the
installation, MODEL (a name or a folder) that of the page's model. Then it asks long questions before short
ones: the short ones must be answered first, which Dynamo does only by the headers that it got.
"""

import asyncio
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx

from tests.perf.harness import CHAT, ROOT, many_connections, options

PAGE = ROOT / "docs/how-to/beyond-one-machine.md"
PROXY = "http://127.0.0.1:7117"
LONG = "Write a detailed essay with many examples about the history of {}."
SHORT = "Answer yes or no: is {} older than writing?"
SUBJECTS = ("bread", "glass", "paper", "salt", "wool")
TOKENS = 200
PATIENCE_S = 120.0


def recipe(model: str) -> str:
    """Return the commands of the page for another model, without those that install."""
    found = re.search(r"## Try it on a laptop.*?```sh\n(.*?)```", PAGE.read_text(), re.DOTALL)
    if found is None:
        raise RuntimeError(f"no recipe in {PAGE}")
    lines = [line for line in found[1].splitlines() if "pip install" not in line]
    return re.sub(r"(--model-path) \S+", rf"\1 {model}", "\n".join(lines))


def wait_for_model() -> str:
    """Return the model's name once the proxy lists it."""
    until_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < until_s:
        try:
            if models := httpx.get(f"{PROXY}/v1/models", trust_env=False).json().get("data"):
                return str(models[0]["id"])
        except (httpx.TransportError, ValueError):
            pass
        time.sleep(0.5)
    raise TimeoutError(f"no model at {PROXY} after {PATIENCE_S:.0f} s")


async def order_of_answers(model: str) -> str:
    """Ask the long questions, then the short ones; return the order of their answers, a letter each."""
    answered: list[str] = []

    async def ask(client: httpx.AsyncClient, question: str, subject: str) -> None:
        body = {
            "model": model,
            "messages": [{"role": "user", "content": question.format(subject)}],
            "max_tokens": TOKENS,
        }
        (await client.post(CHAT, json=body)).raise_for_status()
        answered.append("L" if question is LONG else "S")

    async with many_connections(PROXY) as client, asyncio.TaskGroup() as asked:
        for question in (LONG, SHORT):
            for subject in SUBJECTS:
                asked.create_task(ask(client, question, subject))
                await asyncio.sleep(0.05)  # one after another, so that the order of arrival is known
    return "".join(answered)


def main() -> int:
    given = options(__doc__, dynamo=Path, model="Qwen/Qwen3-0.6B")
    with tempfile.TemporaryDirectory() as home:
        (Path(home) / "dynamo").symlink_to(given.dynamo.absolute())
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        variables = {**os.environ, "HOME": home, "XDG_STATE_HOME": home, "PATH": path}
        command = ["/bin/sh", "-e", "-c", recipe(given.model)]
        log = Path(home) / "log"
        with log.open("w") as out:
            shell = subprocess.Popen(
                command, cwd=home, env=variables, stdout=out, stderr=out, start_new_session=True
            )
        try:
            model = wait_for_model()
            status = subprocess.run(
                ["clairvoyant", "status"], env=variables, stdout=subprocess.PIPE, text=True
            )
            order = asyncio.run(order_of_answers(model))
        finally:
            os.killpg(shell.pid, signal.SIGTERM)
            shell.wait()
            said = log.read_text()
    print(status.stdout, f"answered in the order {order}", sep="")
    recognised = "dynamo" in status.stdout.lower()
    # The first question does not wait; the priority is in whole seconds, so that one may be out of order.
    told = "S" * (len(SUBJECTS) - 1) in order[:-1] and order.endswith("L" * (len(SUBJECTS) - 2))
    for passed, what in ((recognised, "Dynamo is recognised"), (told, "short answers first")):
        print("ok    " if passed else "FAILED", what)
    if recognised and told:
        return 0
    print(said)
    return 1


if __name__ == "__main__":
    sys.exit(main())
