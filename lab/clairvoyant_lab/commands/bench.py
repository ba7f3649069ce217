"""`clairvoyant bench`: measure what shortest-first gains on your own machine."""

import json
import logging
import platform
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from clairvoyant_cli import __version__
from clairvoyant_cli.addresses import BACKEND_NAMES, check_backend
from clairvoyant_cli.commands.options import (
    FILE,
    backend_key_file_option,
    json_option,
    option_with_default,
    together,
)
from clairvoyant_cli.errors import ClairvoyantError, InputError
from clairvoyant_cli.scheduler.policy import DEFAULT_POLICY
from clairvoyant_cli.system import run
from clairvoyant_lab.bench.arms import AGENT_ARMS, DIRECT, ORACLE, Arm, parse_arm
from clairvoyant_lab.commands.output import Output
from clairvoyant_lab.virtual_time import run_virtually

if TYPE_CHECKING:
    from clairvoyant_cli.backends.adapter import Found
    from clairvoyant_lab.bench.report import Findings
    from clairvoyant_lab.bench.setup import Settings
    from clairvoyant_lab.report import Report
    from profiles.records import Profile

FCFS = "fcfs"
REPLAY = "replay"
WIDTH = 120  # columns of the tables where there is no terminal
REPLAY_SPEEDUP = 40.0
REPLAY_TAU_S = {"sjf": 10.5, DEFAULT_POLICY: 36.0}
"""Timeouts at the paper's service times: its own, and ten short service times for the default policy."""


common_options = together(
    click.option("--seed", default=0, show_default=True, help="Seed of questions and arrivals."),
    click.option("--model", metavar="NAME", help="The LLM to ask. Default: the backend's first."),
    click.option("--slots", type=click.IntRange(1, 64), help="Answers the backend gives at once."),
    click.option(
        "--virtual-time",
        is_flag=True,
        help=f"With --backend {REPLAY}: let the clock jump from event to event. Service times are exact; the "
        "proxy's own cost is not counted.",
    ),
    backend_key_file_option,
    json_option("Print the findings as JSON instead of tables."),
    click.option(
        "--report",
        "report_file",
        type=Output(".md"),
        metavar="FILE",
        help="Write a report in Markdown, its charts beside it.",
    ),
)
"""The options of every command."""

shared_options = together(
    click.option(
        "--backend",
        metavar="NAME|URL",
        help=f"{', '.join(BACKEND_NAMES)}, a URL, or {REPLAY} (simulated). Default: search for one.",
    ),
    click.option(
        "--arm",
        "arms",
        multiple=True,
        metavar="ARM",
        help="What to compare: direct, oracle, or POLICY[@classes|@N%|@lengths][:TAU_S]; repeatable. "
        f"Default: {DIRECT}, {FCFS}, {DEFAULT_POLICY}, sjf, {ORACLE}.",
    ),
    click.option("--runs", type=click.IntRange(1, 100), help="Runs of every arm."),
    click.option("--predictor", metavar="DIR", help="Your own predictor. Default: the shipped one."),
    click.option(
        "--prompts",
        type=FILE,
        metavar="FILE",
        help='Your own prompts, JSONL: {"prompt": text, "output_tokens": answer length}; optionally '
        '"max_tokens", the limit of a real answer, and "class" (short, long). No prompt is reported.',
    ),
    option_with_default(
        "--speedup",
        click.FloatRange(1, 1000),
        REPLAY_SPEEDUP,
        f"With --backend {REPLAY}: how much faster than the paper's backend it is.",
    ),
    click.option(
        "--set-lengths/--real-lengths",
        default=None,
        help="Set each answer's length, for random weights; llama.cpp only. Default: real answers.",
    ),
    click.option(
        "--sampled",
        is_flag=True,
        help="Sample the answers, as most clients do. Default: temperature 0, where a prompt that is "
        "repeated may not be preempted.",
    ),
    click.option("--quick", is_flag=True, help="Try it out: a few requests in one run."),
    common_options,
)
"""The options of every load but `agents`."""

REQUESTS = click.IntRange(2, 100_000)
COUNT = click.IntRange(1, 100)


@click.group()
def command() -> None:
    """Measure what shortest-first gains on your own machine.

    Sends the same questions under each policy in turn, through a daemon of its own before
    your LLM server, and compares. Nothing leaves this machine.
    """


@command.command()
@option_with_default("--requests", REQUESTS, 100, "Questions per run.")
@shared_options
def burst(requests: int, **options: Any) -> None:
    """Send all questions at once, half of them short."""
    _bench("burst", requests, 20, 5, options)


@command.command()
@click.option(
    "--rho",
    "rhos",
    type=click.FloatRange(0.01, 1.5),
    multiple=True,
    default=[0.74],
    show_default=True,
    help="Utilisation; repeatable, to draw the gain over load.",
)
@option_with_default("--requests", REQUESTS, 250, "Questions per run.")
@shared_options
def poisson(requests: int, rhos: tuple[float, ...], **options: Any) -> None:
    """Send questions at random times, at a chosen utilisation."""
    _bench("poisson", requests, 60, 5, options, rhos=rhos)


def agent_arm(context: click.Context, arm: str) -> str:
    """Return an arm of `agents`; refuse an unknown one."""
    name, _, url = arm.partition("=")
    return arm if name and url.startswith("http") else click.Choice(AGENT_ARMS).convert(arm, None, context)


@command.command()
@option_with_default("--sessions", COUNT, 3, "Sessions at once.")
@option_with_default("--turns", COUNT, 5, "Turns of a session.")
@option_with_default(
    "--context", click.IntRange(100, 1_000_000), 450, "Tokens of a session's first prompt, about."
)
@option_with_default("--answer", click.IntRange(1, 4096), 32, "Limit of an answer's tokens.")
@option_with_default(
    "--common", click.FloatRange(0, 1), 0.0, "Share of the system text that all sessions share."
)
@option_with_default(
    "--chat-every",
    click.FloatRange(0, 86_400),
    12.0,
    "Seconds between the questions of a person; 0 for no person.",
    "chat_every_s",
)
@click.option("--headers/--no-headers", default=True, help="Send a session id with each turn. Default: yes.")
@click.option(
    "--arm",
    "arms",
    callback=lambda context, _, arms: [agent_arm(context, arm) for arm in arms],
    multiple=True,
    default=AGENT_ARMS[:2],
    metavar="ARM",
    help=f"What to compare: {', '.join(AGENT_ARMS[:3])} (one session after the other), a policy, or another "
    "proxy before the server as NAME=URL; repeatable. Default: the first two.",
)
@option_with_default("--runs", COUNT, 1, "Runs of every arm.")
@click.option(
    "--backend",
    "--url",
    "backend",
    metavar="NAME|URL",
    default=REPLAY,
    show_default=True,
    help=f"{', '.join(BACKEND_NAMES)}, a URL, or {REPLAY} (simulated).",
)
@option_with_default(
    "--cache",
    click.IntRange(0, 10_000_000),
    0,
    f"With --backend {REPLAY}: tokens of its cache in host memory.",
)
@click.option("--tau", type=click.FloatRange(0), metavar="SECONDS", help="As of `serve`.")
@common_options
def agents(**options: Any) -> None:
    """Measure what sessions of coding agents cost: tokens read and time."""
    from clairvoyant_lab.bench.agents import agents_report

    logging.getLogger("clairvoyant").setLevel(logging.ERROR)
    virtual = options["virtual_time"]
    if virtual and options["backend"] != REPLAY:
        raise InputError(f"--virtual-time needs --backend {REPLAY}")
    if options["backend"] != REPLAY:
        check_backend(options["backend"])
    report_options = {name: options.pop(name) for name in ("as_json", "report_file")}
    measure = _measure_agents(**options)
    findings = run_virtually(measure) if virtual else run(measure)
    _write(findings, agents_report(findings), **report_options)


async def _measure_agents(
    arms: tuple[str, ...],
    runs: int,
    backend: str,
    model: str | None,
    cache: int,
    slots: int | None,
    virtual_time: bool,
    tau: float | None,
    backend_key_file: Path | None,
    **load_options: Any,
) -> "Findings":
    from clairvoyant_cli.commands.setup import load_predictor, second_opinion
    from clairvoyant_cli.config import ServeConfig
    from clairvoyant_lab.bench.agents import AgentLoad, agents_notes, measure_agents
    from clairvoyant_lab.bench.report import Findings

    config = ServeConfig(
        listen="127.0.0.1:0",
        slots=slots,
        tau=tau,
        backend_key_file=str(backend_key_file) if backend_key_file else None,
    )
    load = AgentLoad(**load_options)
    with _progress(runs * len(arms)) as on_progress:
        summaries, about = await measure_agents(
            load,
            backend,
            arms,
            runs,
            config,
            lambda: load_predictor(None),
            # In virtual time a thread would take no time, and its result would come too late.
            None if virtual_time else second_opinion(config),
            on_progress,
            model=model,
            cache=cache,
            virtual_time=virtual_time,
        )
    return Findings(
        title="Bench: agents",
        command=shlex.join(["clairvoyant", *sys.argv[1:]]),
        about=_machine() | about,
        settings=asdict(load),
        notes=tuple(agents_notes(load, runs)),
        summaries=summaries,
        cells=(),
    )


def _bench(
    kind: str, requests: int, quick_requests: int, runs: int, options: dict[str, Any], **more: Any
) -> None:
    from clairvoyant_lab.bench.report import report_of
    from clairvoyant_lab.bench.setup import Settings

    logging.getLogger("clairvoyant").setLevel(logging.ERROR)  # keep the daemon's log out of the table
    quick, virtual, lengths = options["quick"], options["virtual_time"], options["set_lengths"]
    replay = options["backend"] == REPLAY
    if virtual and not replay:
        raise InputError(f"--virtual-time needs --backend {REPLAY}")
    if not replay:
        check_backend(options["backend"])
    guarded = (f"{name}:{REPLAY_TAU_S[name]:g}" if replay else name for name in (DEFAULT_POLICY, "sjf"))
    settings = Settings(
        kind=kind,
        arms=tuple(options["arms"]) or (DIRECT, FCFS, *guarded, ORACLE),
        runs=options["runs"] or (1 if quick else runs),
        requests=min(requests, quick_requests) if quick else requests,
        seed=options["seed"],
        backend=options["backend"],
        model=options["model"],
        prompts=None if options["prompts"] is None else str(options["prompts"]),
        predictor=options["predictor"],
        slots=options["slots"],
        speedup=options["speedup"] if replay and not virtual else 1.0,
        virtual_time=virtual,
        sampled=options.get("sampled", False),
        set_lengths=replay if lengths is None else lengths or replay,
        **more,
    )
    arms = [parse_arm(text) for text in settings.arms]
    measure = _measure(settings, arms, options["backend_key_file"])
    findings = run_virtually(measure) if virtual else run(measure)
    _write(findings, report_of(findings), options["as_json"], options["report_file"])


async def _measure(settings: "Settings", arms: list[Arm], backend_key_file: Path | None) -> "Findings":
    from clairvoyant_cli.commands.setup import load_predictor
    from clairvoyant_lab.bench.report import UNPROVEN, Findings, notes_of
    from clairvoyant_lab.bench.setup import run_steps, set_up, steps_of
    from clairvoyant_lab.bench.summary import summarise

    predictor = load_predictor(settings.predictor)
    async with set_up(settings, predictor, _stored_profiles, backend_key_file) as bench:
        await bench.warm_up(next((arm for arm in arms if arm.policy is not None), arms[0]))
        service_s = await bench.mean_service_s()
        if bench.resume_s is None and any(arm.interrupts for arm in arms):
            click.echo(UNPROVEN, err=True)
        loads = bench.loads(service_s)
        steps = steps_of(loads, arms, settings.runs, lengths_last=not settings.set_lengths)
        with _progress(len(steps)) as on_progress:
            cells = await run_steps(bench, steps, on_progress)
        about = _machine() | dict(bench.about or {}) | {"mean service": f"{service_s:.3g} s"}
        notes = notes_of(settings, cells, arms, bench.resume_s)
    names = [arm.name for arm in arms]
    in_order = sorted(cells, key=lambda cell: names.index(cell.arm))
    return Findings(
        title=f"Bench: {', '.join(load.name for load in loads)}",
        command=shlex.join(["clairvoyant", *sys.argv[1:]]),
        about=about,
        settings=asdict(settings),
        notes=tuple(notes),
        summaries=summarise(in_order, FCFS if FCFS in names else None),
        cells=cells,
    )


def _stored_profiles(found: "Found") -> "list[Profile]":
    """Return what `clairvoyant calibrate` stored of a backend, which may prove that it resumes answers."""
    from clairvoyant_cli.commands.setup import database_path
    from profiles.database import ProfilesError, reading
    from profiles.host import this_host
    from profiles.records import place_of
    from profiles.store import fitting

    name, place = found.adapter.name, place_of(found.base_url)
    try:
        with reading(database_path(None)) as connection:
            return fitting(connection, host=this_host().key, backend=name, place=place)
    except ProfilesError:
        return []


def _machine() -> dict[str, str]:
    """Return the machine and the software; no names of hosts or users."""
    from profiles.host import this_host

    host = this_host()
    facts = {
        "processor": f"{host.cpu}, {host.cores} logical cores",
        "memory": f"{host.memory_gib} GiB",
        "system": f"{host.system} {host.machine}",
        "python": platform.python_version(),
        "clairvoyant": __version__,
    }
    driver = f", driver {host.gpu_driver}" if host.gpu_driver else ""
    return facts | {"graphics": ", ".join(host.gpus) + driver} if host.gpus else facts


@contextmanager
def _progress(total: int) -> Iterator[Callable[[float, str], None]]:
    """Show the steps that are done, and the name of the present one."""
    from rich.progress import TimeRemainingColumn

    from clairvoyant_cli.commands.console import PlainConsole

    with PlainConsole(stderr=True).progress(TimeRemainingColumn()) as show:
        yield lambda done, name: show(f"[{min(int(done) + 1, total)}/{total}] {name}", done, total)


def _write(findings: "Findings", report: "Report", as_json: bool, report_file: Path | None) -> None:
    from clairvoyant_cli.commands.console import PlainConsole
    from clairvoyant_lab.bench.report import to_json
    from clairvoyant_lab.report import print_report, save

    try:
        if report_file is not None:
            save(report, report_file)
    except OSError as error:
        raise ClairvoyantError(f"cannot write {error.filename}: {error.strerror}") from None
    if as_json:
        click.echo(json.dumps(to_json(findings), indent=2))
    else:
        print_report(report, PlainConsole() if sys.stdout.isatty() else PlainConsole(width=WIDTH))
