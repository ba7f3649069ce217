"""`clairvoyant calibrate`: measure a server once; `serve` uses it from then on."""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import click
from rich.progress import TaskProgressColumn
from rich.text import Text

from clairvoyant_cli import __version__
from clairvoyant_cli.addresses import check_backend
from clairvoyant_cli.backends.client import Client
from clairvoyant_cli.backends.discovery import locate_server
from clairvoyant_cli.backends.prober import Prober
from clairvoyant_cli.calibrate.run import Outcome, calibrate
from clairvoyant_cli.calibrate.session import FULL, QUICK, STANDARD, Session, Step, Tell
from clairvoyant_cli.commands.console import PlainConsole
from clairvoyant_cli.commands.options import backend_key_file_option, backend_option, db_option, json_option
from clairvoyant_cli.commands.plain_output import say_json
from clairvoyant_cli.commands.profiles import print_profile
from clairvoyant_cli.commands.setup import opened_database
from clairvoyant_cli.errors import ClairvoyantError, InputError
from clairvoyant_cli.protocols.model_settings import changed_parts
from clairvoyant_cli.proxy.access.keys import read_backend_key
from clairvoyant_cli.system import cancel_when_ended
from profiles.host import this_host
from profiles.records import Profile
from profiles.states import save_state
from profiles.store import fitting, save


@click.command()
@backend_option
@click.option("--model", metavar="NAME", help="Model to measure. Unset: the one that is loaded.")
@click.option("--quick", is_flag=True, help="A minute and a half, and less precise.")
@click.option(
    "--full",
    is_flag=True,
    help="No time limit: a hundred short questions in the queue, and a longer prompt.",
)
@click.option("--name", help="Name of the profile.  [default: model@backend]")
@backend_key_file_option
@db_option
@json_option("Print the profile as JSON, and nothing else.")
def command(
    backend: str | None,
    model: str | None,
    quick: bool,
    full: bool,
    name: str | None,
    backend_key_file: Path | None,
    db_file: Path | None,
    as_json: bool,
) -> None:
    """Measure an LLM server once; `serve` uses the result.

    Asks the server short and long questions, one at a time and many at once, and keeps the results as a
    profile: how long short answers queue (mu_short) and the starvation timeout derived from it (tau), the
    speeds, the number of slots, and whether a preempted answer can be continued without a difference.
    That takes three minutes at most, except with --full. A slow server answers fewer questions in this time,
    so its mu_short has a wider confidence interval. Do not use the server for anything else meanwhile.
    """
    check_backend(backend)
    if quick and full:
        raise InputError("--quick and --full exclude each other; give one of them")
    plan = QUICK if quick else FULL if full else STANDARD
    with opened_database(db_file, write=True):
        pass  # fail now if the result cannot be kept
    key = read_backend_key(backend_key_file)
    with _progress(quiet=as_json) as (tell, say):

        async def measure() -> Outcome:
            cancel_when_ended()
            async with Prober(key) as prober:
                found, _ = await locate_server(backend, prober)
            async with Client(found, key=key) as client:
                session = Session(client, plan, tell, say=say)
                return await calibrate(session, model, this_host(), __version__)

        outcome = asyncio.run(measure())
    profile = replace(outcome.profile, name=name) if name else outcome.profile
    served = profile.served
    with opened_database(db_file, write=True) as connection:
        earlier = fitting(connection, host=profile.host.key, backend=served.backend, place=served.place)
        profile = save(connection, with_earlier_proof(profile, earlier), outcome.samples)
        if outcome.progress is not None:
            save_state(connection, *outcome.progress)
    _print(profile, as_json=as_json)


def with_earlier_proof(profile: Profile, earlier: Iterable[Profile]) -> Profile:
    """Keep the proof of an earlier profile that answers can be cut if this run was too short for one.

    A trial that failed, or settings of the model that have changed, leave the profile as it is.
    """
    if profile.continuation:
        return profile
    served = replace(profile.served, url="")
    for each in earlier:
        proof = each.continuation if replace(each.served, url="") == served else None
        if proof and not any(
            new.faulty or changed_parts(proof.fingerprint, new.fingerprint)
            for new in profile.continuations
            if new.way == proof.way
        ):
            return replace(profile, continuations=each.continuations)
    return profile


@contextmanager
def _progress(*, quiet: bool) -> Iterator[tuple[Tell, Callable[[str], None]]]:
    console = PlainConsole(stderr=True, quiet=quiet)
    with console.progress(TaskProgressColumn()) as show:

        def tell(step: Step) -> None:
            show(f"measuring: {step.title}", step.done, step.of)

        try:
            yield tell, partial(console.print, highlight=False)
        except (KeyboardInterrupt, asyncio.CancelledError):
            raise ClairvoyantError("interrupted; nothing was kept") from None


def _print(profile: Profile, *, as_json: bool) -> None:
    if as_json:
        say_json(profile, indent=2)
        return
    console = PlainConsole()
    print_profile(console, profile)
    then = "clairvoyant serve uses it, a running one within seconds"
    console.print(Text.assemble("kept as ", (profile.name, "bold"), f"; {then}"))
