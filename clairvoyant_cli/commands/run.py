"""`clairvoyant run`: runs one command whose requests go through the proxy."""

import asyncio
import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import AsyncExitStack, closing, suppress
from typing import TYPE_CHECKING

import click

from clairvoyant_cli.commands.env import client_option, key_option, model_of, past_proxies, variables
from clairvoyant_cli.commands.leases import leased
from clairvoyant_cli.commands.number_format import span
from clairvoyant_cli.commands.options import url_option
from clairvoyant_cli.commands.plain_output import say
from clairvoyant_cli.commands.serve import WHILE_LEASED
from clairvoyant_cli.errors import ClairvoyantError, ExitCode
from clairvoyant_cli.protocols.printable import plural
from clairvoyant_cli.state.client import ControlClient, admin_token, daemon_url, running_daemons, state_dir
from clairvoyant_cli.system import background, exit_like, run_in_front

if TYPE_CHECKING:
    from clairvoyant_cli.state.snapshot import Snapshot

USUAL = ("ollama", "openai", "anthropic")  # clients whose variables are set without --client
MAX_START_S = 60.0


@click.command(context_settings={"allow_interspersed_args": False})
@url_option
@client_option("Also set the variables of this client, as `env` prints them. Repeatable.")
@key_option
@click.option("-q", "--quiet", is_flag=True, help="Do not print the summary of waiting times.")
@click.argument("words", nargs=-1, required=True, metavar="COMMAND [ARGS]...", type=click.UNPROCESSED)
def command(url: str | None, names: tuple[str, ...], key: str, quiet: bool, words: tuple[str, ...]) -> None:
    """Run a command whose requests go through the proxy.

    The command gets the variables that `clairvoyant env` prints. If no proxy runs, one is started
    with the settings of `serve`; it ends with the last command that uses it. Input, terminal,
    signals and exit code are the command's. At the end, stderr gets a line about its waiting.
    Write -- before the command: clairvoyant run -- ollama run llama3.2
    """
    program = shutil.which(words[0])
    if program is None:
        message = f"there is no command {words[0]!r} that can be run; check its name"
        raise ClairvoyantError(message, ExitCode.NOT_FOUND)

    async def run() -> tuple[int, str]:
        async with AsyncExitStack() as stack:
            add = stack.enter_context(leased())
            proxy = await _proxy(stack, url)
            before = await _state(proxy)
            model = None if before is None else model_of(before)
            environment = dict(os.environ)
            environment.pop("ANTHROPIC_API_KEY", None)  # a real key must not be sent to the proxy
            for client in (*USUAL, *names):
                environment |= variables(client, proxy.url, key, None)
                environment = (
                    variables(client, proxy.url, key, model) | environment
                )  # the user's own model counts
            environment |= past_proxies(proxy.url, environment)
            try:
                process = run_in_front([program, *words[1:]], environment)
            except OSError as error:
                raise ClairvoyantError(f"cannot run {words[0]}: {error.strerror}") from None
            add(process.pid)
            code = await asyncio.to_thread(process.wait)
            return code, "" if quiet else _told(before, await _state(proxy))

    code, told = asyncio.run(run())
    if told:
        say(f"clairvoyant: {told}", err=True)
    exit_like(code)


async def _state(proxy: ControlClient) -> "Snapshot | None":
    """Return a daemon's state; None if it has ended or requires an admin token."""
    with suppress(ClairvoyantError):
        return await proxy.snapshot()
    return None


def _told(before: "Snapshot | None", after: "Snapshot | None") -> str:
    """Return a summary of the waiting times between two states; "" if unknown."""
    if before is None or after is None:
        return ""
    queued = after.counters.submitted - before.counters.submitted
    now, then = after.gain, before.gain
    if now.answers_today < then.answers_today:  # the sums begin again at midnight
        then = type(then)()
    compared = now.answers_today - then.answers_today
    if not queued:
        return "no request reached the queue"
    if not compared:
        return f"{plural(queued, 'request')}, none compared with arrival order"
    saved_s = now.saved_today_s - then.saved_today_s
    versus = f"{span(abs(saved_s))} {'less' if saved_s > 0 else 'more'} than"
    versus = versus if abs(saved_s) >= 0.05 else "as"
    which = "" if compared == queued else f"{compared} of "
    waited = span(now.waited_today_s - then.waited_today_s)
    return f"{which}{plural(queued, 'request')} waited {waited} in all, {versus} in arrival order"


async def _proxy(stack: AsyncExitStack, url: str | None) -> ControlClient:
    """Return a client of the running daemon, or of one that is started."""
    try:
        return await _serving(stack, daemon_url(url))
    except ClairvoyantError:
        if url is not None:
            raise
    state_dir().mkdir(parents=True, exist_ok=True, mode=0o700)
    # Of several commands one starts the proxy. SQLite has a lock on all systems that ends with its process.
    try:
        with closing(sqlite3.connect(state_dir() / "run.lock", timeout=MAX_START_S)) as lock:
            lock.execute("BEGIN EXCLUSIVE")
            with suppress(ClairvoyantError):
                return await _serving(stack, daemon_url(None))
            return await _serving(stack, _started())
    except sqlite3.Error as error:
        why = f"cannot lock {state_dir() / 'run.lock'}: {error}"
        raise ClairvoyantError(f"{why}; start the proxy yourself: clairvoyant serve") from None


async def _serving(stack: AsyncExitStack, url: str) -> ControlClient:
    """Return a client of the daemon at `url`; ClairvoyantError if none serves there."""
    own = url in [daemon.url for daemon in running_daemons()]  # its token is in a file
    proxy = await stack.enter_async_context(ControlClient(url, None if own else admin_token(None)))
    if await proxy.mode() == "draining":
        raise ClairvoyantError(f"the daemon at {url} is draining; wait for its end", ExitCode.UNREACHABLE)
    return proxy


def _started() -> str:
    """Start a daemon and return its URL; ClairvoyantError with its last output if it ends."""
    words = "-P -m clairvoyant_cli serve --listen 127.0.0.1:0 --log-file".split()
    process = subprocess.Popen(
        [sys.executable, *words, str(state_dir() / "run.log")],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        env=os.environ | {WHILE_LEASED: "1"},
        **background(),
    )
    line = ""
    for line in process.stderr or ():
        begun, arrow, _ = line.partition(" -> ")
        if arrow:
            return str(begun.rpartition(" ")[2])
    raise ClairvoyantError(f"the proxy did not start: {line.removeprefix('clairvoyant: ').strip()}")
