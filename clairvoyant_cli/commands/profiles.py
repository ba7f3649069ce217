"""`clairvoyant profiles`: lists, shows and removes profiles."""

from dataclasses import asdict
from pathlib import Path

import click
from rich.text import Text

from clairvoyant_cli.commands.console import PlainConsole
from clairvoyant_cli.commands.number_format import figure, seconds
from clairvoyant_cli.commands.options import db_option, json_option
from clairvoyant_cli.commands.plain_output import say_json
from clairvoyant_cli.commands.setup import opened_database
from clairvoyant_cli.commands.time_spans import date
from profiles import store
from profiles.records import Estimate, Profile


@click.group()
def command() -> None:
    """List, show and remove profiles, the results of `calibrate` and the self-test."""


@command.command("list")
@db_option
@json_option("Print JSON.")
def list_(db_file: Path | None, as_json: bool) -> None:
    """List the profiles, newest first."""
    with opened_database(db_file) as connection:
        kept = store.every(connection)
    if as_json:
        say_json(kept, indent=2)
        return
    if not kept:
        click.echo("no profiles yet; run: clairvoyant calibrate", err=True)
        return
    PlainConsole().print_table(
        ("name", "model", "backend", "mu_short", "tau", "tokens/s", "slots", "measured"),
        (
            (
                each.name,
                each.served.model,
                each.served.backend,
                seconds(each.mu_short_s.mean if each.mu_short_s else None),
                seconds(each.tau_s),
                figure(each.decode_tokens_per_s, ".0f"),
                str(each.slots),
                date(each.measured_at, "%Y-%m-%d %H:%M"),
            )
            for each in kept
        ),
    )


@command.command()
@click.argument("name")
@db_option
@json_option("Print JSON, with the samples.")
def show(name: str, db_file: Path | None, as_json: bool) -> None:
    """Show one profile in full."""
    with opened_database(db_file) as connection:
        profile, samples = store.named(connection, name), store.samples_of(connection, name)
    if as_json:
        say_json(asdict(profile) | {"samples": samples}, indent=2)
    else:
        print_profile(PlainConsole(), profile)


@command.command()
@click.argument("names", nargs=-1, required=True)
@db_option
def rm(names: tuple[str, ...], db_file: Path | None) -> None:
    """Remove profiles: all of NAMES, or none if one does not exist."""
    with opened_database(db_file, write=True) as connection:
        for name in names:
            store.remove(connection, name)


def print_profile(console: PlainConsole, profile: Profile) -> None:
    served, host = profile.served, profile.host
    what = f": {served.model} {served.quantisation} on {served.backend} {served.version}"
    console.print(Text.assemble((profile.name, "bold"), what))
    machine = f"{host.cpu}, {host.cores} cores, {host.memory_gib} GiB {' '.join(host.gpus)}"
    console.print(machine, highlight=False)
    mu_short = f"{_estimate(profile.mu_short_s)}, {profile.method}, {profile.concurrency} in flight"
    console.print(f"mu_short  {mu_short}")
    console.print(f"tau       {seconds(profile.tau_s)} (3 x mu_short)")
    console.print(f"slots     {profile.slots}")
    console.print(f"TTFT      {seconds(profile.ttft_s)}")
    prefill, decode = profile.prefill_tokens_per_s, profile.decode_tokens_per_s
    console.print(f"speeds    prefill {figure(prefill, '.0f')}, decode {figure(decode, '.0f')} tokens/s")
    print_continuations(console, profile)
    for line in profile.advice:
        console.print(f"note: {line}", highlight=False)


def print_continuations(console: PlainConsole, profile: Profile) -> None:
    """Print, per continuation method, whether a preempted answer can be continued."""
    for each in profile.continuations:
        resume = f", {each.resume_s * 1e3:.0f} ms to resume" if each.resume_s else ""
        texts = f"{each.exact} of {each.trials} texts identical{each.rounding}"
        console.print(f"continue by {each.way}: {texts}{resume}", highlight=False)
    console.print(_verdict(profile), highlight=False)


def _verdict(profile: Profile) -> str:
    best = profile.continuation
    if best is None:
        if not any(each.faulty for each in profile.continuations):
            return "serve does not preempt yet: too few trials; its self-test goes on in idle time"
        return "serve does not preempt: continued answers were other texts"
    if not best.is_exact:
        return (
            "serve preempts sampled answers; --preempt all adds those at temperature 0, whose text may change"
        )
    if not best.repeats_are_exact:
        return "serve preempts answers, but not repeated prompts at temperature 0, whose text may change"
    return "serve preempts answers"


def _estimate(estimate: Estimate | None) -> str:
    if estimate is None:
        return "-"
    return f"{seconds(estimate.mean)} ({seconds(estimate.low)} to {seconds(estimate.high)}, n={estimate.n})"
