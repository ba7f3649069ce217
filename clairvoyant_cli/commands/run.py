"""`clairvoyant run`: runs one command whose requests go through the proxy."""

import asyncio
import os
import shutil
from contextlib import suppress
from typing import TYPE_CHECKING

import click

from clairvoyant_cli.commands.env import client_option, key_option, model_of, past_proxies, variables
from clairvoyant_cli.commands.number_format import span
from clairvoyant_cli.commands.options import url_option
from clairvoyant_cli.commands.plain_output import say
from clairvoyant_cli.errors import ClairvoyantError, ExitCode
from clairvoyant_cli.protocols.printable import plural
from clairvoyant_cli.state.client import ControlClient, admin_token, daemon_url, running_daemons
from clairvoyant_cli.system import exit_like, run_in_front

if TYPE_CHECKING:
    from clairvoyant_cli.state.snapshot import Snapshot

USUAL = ("ollama", "openai", "anthropic")  # clients whose variables are set without --client


@click.command(context_settings={"allow_interspersed_args": False})
@url_option
@client_option("Also set the variables of this client, as `env` prints them. Repeatable.")
@key_option
@click.option("-q", "--quiet", is_flag=True, help="Do not print the summary of waiting times.")
@click.argument("words", nargs=-1, required=True, metavar="COMMAND [ARGS]...", type=click.UNPROCESSED)
def command(url: str | None, names: tuple[str, ...], key: str, quiet: bool, words: tuple[str, ...]) -> None:
    """Run a command whose requests go through the proxy.

    The command gets the variables that `clairvoyant env` prints. Input, terminal, signals and exit
    code are the command's. At the end, stderr gets a line about its waiting.
    Write -- before the command: clairvoyant run -- ollama run llama3.2
    """
    program = shutil.which(words[0])
    if program is None:
        message = f"there is no command {words[0]!r} that can be run; check its name"
        raise ClairvoyantError(message, ExitCode.NOT_FOUND)

    async def run() -> tuple[int, str]:
        async with _client_of(daemon_url(url)) as proxy:
            if await proxy.mode() == "draining":
                why = f"the daemon at {proxy.url} is draining; wait for its end"
                raise ClairvoyantError(why, ExitCode.UNREACHABLE)
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


def _client_of(url: str) -> ControlClient:
    own = url in [daemon.url for daemon in running_daemons()]  # its token is in a file
    return ControlClient(url, None if own else admin_token(None))
