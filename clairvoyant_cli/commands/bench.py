"""`clairvoyant bench`: what shortest-first gains on one's own machine, measured."""

import asyncio
import csv
import json
import logging
import shlex
import sys
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from clairvoyant_cli.addresses import BACKEND_NAMES, check_backend, check_url
from clairvoyant_cli.commands.bench_setup import REPLAY, Settings
from clairvoyant_cli.commands.options import FILE, backend_key_file_option, json_option, output_file, together
from clairvoyant_cli.errors import ClairvoyantError, ExitCode
from clairvoyant_cli.research.bench.arms import DIRECT, ORACLE, Arm, parse_arm
from clairvoyant_cli.research.bench.measures import Summary, summarise
from clairvoyant_cli.research.bench.report import (
    Findings,
    page_of,
    plots_of,
    sections_of,
    to_csv,
    to_json,
    verdicts_of,
)
from clairvoyant_cli.research.bench.results import Cell, open_ledger, settings_in
from clairvoyant_cli.research.bench.virtual_time import run_virtually
from clairvoyant_cli.scheduler.policy import DEFAULT_POLICY
from clairvoyant_cli.state.client import DEFAULT_URL
from clairvoyant_cli.system import run

FCFS = "fcfs"
WIDTH = 120
"""Columns of the tables where there is no terminal."""

REPLAY_SPEEDUP = 40.0
REPLAY_TAU_S = {"sjf": 10.5, DEFAULT_POLICY: 36.0}
"""Timeouts at the paper's service times: its own, and ten short service times for the default policy."""

UNPROVEN = (
    "Nothing proves that an answer of this server can be cut and go on, so nothing is cut; prove it first: "
    "clairvoyant calibrate --continuation"
)


@dataclass(frozen=True, slots=True)
class Outputs:
    """Where the findings go, beside the table on standard output."""

    as_json: bool
    csv_file: Path | None
    plot_file: Path | None
    report_file: Path | None
    resume_file: Path | None


shared_options = together(
    click.option(
        "--backend",
        metavar="NAME|URL",
        help=f"{', '.join(BACKEND_NAMES)}, a URL, or {REPLAY} (simulated). Unset: look for one.",
    ),
    click.option(
        "--daemon", metavar="URL", help="Measure a running daemon, in turn under each policy, instead."
    ),
    click.option(
        "--arm",
        "arms",
        multiple=True,
        metavar="ARM",
        help="What to compare: direct, oracle, or POLICY[@classes|@N%|@lengths][:TAU_S]; give it repeatedly. "
        f"Unset: {DIRECT}, {FCFS}, {DEFAULT_POLICY}, sjf, {ORACLE}.",
    ),
    click.option("--runs", type=click.IntRange(1, 100), help="Runs of every arm."),
    click.option("--seed", default=0, show_default=True, help="Seed of questions and arrivals."),
    click.option("--model", metavar="NAME", help="The LLM to ask. Unset: the first the backend names."),
    click.option("--predictor", metavar="DIR", help="A predictor of your own. Unset: the shipped one."),
    click.option(
        "--prompts",
        type=FILE,
        metavar="FILE",
        help='Prompts of your own, JSONL: {"prompt": text, "output_tokens": answer length}; if wanted, '
        '"max_tokens" is the limit of a real answer, "class" (short, long) what it counts as. '
        "None is reported.",
    ),
    click.option("--slots", type=click.IntRange(1, 64), help="Answers the backend gives at once."),
    click.option(
        "--speedup",
        type=click.FloatRange(1.0, 1000.0),
        default=REPLAY_SPEEDUP,
        show_default=True,
        help="How much faster than the paper's backend the simulated one is; with --backend replay.",
    ),
    click.option(
        "--virtual-time",
        is_flag=True,
        help="Let the clock jump from event to event instead; with --backend replay. "
        "Exact service times, undisturbed; what the proxy itself costs is not counted.",
    ),
    click.option(
        "--set-lengths/--real-lengths",
        default=None,
        help="Set each answer's length, for random weights; llama.cpp only. Unset: real answers.",
    ),
    backend_key_file_option,
    click.option("--quick", is_flag=True, help="A few requests in one run: to try it out."),
    json_option("Print the findings as JSON instead of tables."),
    click.option("--csv", "csv_file", type=output_file(), metavar="FILE", help="Write every answer's times."),
    click.option(
        "--plot", "plot_file", type=output_file(".svg"), metavar="FILE", help="Draw the charts, as SVG."
    ),
    click.option(
        "--report",
        "report_file",
        type=output_file(".md", ".html", ".htm"),
        metavar="FILE",
        help="Write a report: .md or .html.",
    ),
    click.option(
        "--resume",
        "resume_file",
        type=output_file(),
        metavar="FILE",
        help="Keep finished cells here, and begin where an interrupted bench stopped.",
    ),
)
"""The flags that every kind of load takes."""


@click.group()
def command() -> None:
    """Measure what shortest-first gains on your own machine.

    Sends the same questions under each policy in turn, through a daemon of its own before
    your LLM server, and compares. Nothing leaves this machine.
    """


@command.command()
@click.option(
    "--requests", type=click.IntRange(2, 100_000), default=100, show_default=True, help="Questions at once."
)
@shared_options
def burst(requests: int, **options: Any) -> None:
    """Send 100 questions at once, half of them short."""
    _bench("burst", requests, 20, 5, options)


@command.command()
@click.option(
    "--rho",
    "rhos",
    type=click.FloatRange(0.01, 0.99),
    multiple=True,
    default=[0.74],
    show_default=True,
    help="Utilisation; give it repeatedly for the gain over load.",
)
@click.option(
    "--requests", type=click.IntRange(2, 100_000), default=250, show_default=True, help="Questions a run."
)
@shared_options
def poisson(requests: int, rhos: tuple[float, ...], **options: Any) -> None:
    """Let questions arrive at random, at a chosen utilisation."""
    _bench("poisson", requests, 60, 5, options, rhos=rhos)


@command.command()
@click.option(
    "--rho",
    "span",
    metavar="LOW..HIGH",
    default="0.3..0.9",
    show_default=True,
    help="Utilisations from, and to.",
)
@click.option(
    "--points", type=click.IntRange(2, 50), default=7, show_default=True, help="Utilisations measured."
)
@click.option(
    "--requests", type=click.IntRange(2, 100_000), default=250, show_default=True, help="Questions a run."
)
@shared_options
def sweep(requests: int, span: str, points: int, **options: Any) -> None:
    """Measure the gain over load: Figure 3 of the paper, from your own machine.

    Questions arrive at random at one utilisation after the other. The simulator is given the
    same arrivals, lengths and predictions; what it says stands beside what was measured.
    """
    if not options["arms"]:
        replay = options["backend"] == REPLAY
        options["arms"] = tuple(arm for arm in _default_arms(replay=replay, daemon=True) if arm != DIRECT)
    _bench("sweep", requests, 40, 5, options, rhos=_utilisations(span, points))


def _utilisations(span: str, points: int) -> tuple[float, ...]:
    low, dots, high = span.partition("..")
    try:
        first, last = float(low), float(high)
    except ValueError:
        first = last = 0.0
    if not dots or not 0.01 <= first < last <= 0.99:
        raise ClairvoyantError(f"--rho {span!r}: want LOW..HIGH between 0.01 and 0.99", ExitCode.USAGE)
    step = (last - first) / (points - 1)
    return tuple(round(first + step * number, 4) for number in range(points))


@command.command()
@click.argument("trace", type=FILE)
@click.option(
    "--rho",
    "rhos",
    type=click.FloatRange(0.01, 0.99),
    multiple=True,
    help="Stretch or squeeze the arrivals to this utilisation. Unset: as recorded.",
)
@click.option(
    "--requests",
    type=click.IntRange(2, 100_000),
    default=250,
    show_default=True,
    help="Requests of the trace.",
)
@shared_options
def trace(trace: Path, requests: int, rhos: tuple[float, ...], **options: Any) -> None:
    """Let questions arrive as in a trace: Azure's, Mooncake's, or your own."""
    _bench("trace", requests, 60, 3, options, rhos=rhos, trace=str(trace))


def _bench(
    kind: str, requests: int, quick_requests: int, runs: int, options: dict[str, Any], **more: Any
) -> None:
    # The daemon's own log lines would run through the table.
    logging.getLogger("clairvoyant").setLevel(logging.ERROR)
    outputs = Outputs(
        *(options[name] for name in ("as_json", "csv_file", "plot_file", "report_file", "resume_file"))
    )
    quick = options["quick"]
    replay = options["backend"] == REPLAY
    given_lengths, virtual = options["set_lengths"], options["virtual_time"]
    if virtual and not replay:
        raise ClairvoyantError("--virtual-time needs --backend replay", ExitCode.USAGE)
    if options["daemon"] is not None and (options["backend"] is not None or given_lengths):
        raise ClairvoyantError(
            "--daemon goes with neither --backend nor --set-lengths: it would see the lengths", ExitCode.USAGE
        )
    if not replay:
        check_backend(options["backend"])
    if options["daemon"] is not None:
        check_url(options["daemon"], DEFAULT_URL)
    settings = Settings(
        kind=kind,
        arms=tuple(options["arms"]) or _default_arms(replay=replay, daemon=options["daemon"] is not None),
        runs=options["runs"] or (1 if quick else runs),
        requests=min(requests, quick_requests) if quick else requests,
        seed=options["seed"],
        backend=options["backend"],
        daemon=options["daemon"],
        model=options["model"],
        prompts=None if options["prompts"] is None else str(options["prompts"]),
        predictor=options["predictor"],
        slots=options["slots"],
        speedup=options["speedup"] if replay and not virtual else 1.0,
        virtual_time=virtual,
        set_lengths=replay if given_lengths is None else given_lengths or replay,
        **more,
    )
    arms = [parse_arm(text) for text in settings.arms]
    measure = _measure(settings, arms, outputs, options["backend_key_file"])
    findings = run_virtually(measure) if virtual else run(measure)
    _hand_out(findings, outputs)


def _default_arms(*, replay: bool, daemon: bool) -> tuple[str, ...]:
    guarded = [f"{name}:{REPLAY_TAU_S[name]:g}" if replay else name for name in (DEFAULT_POLICY, "sjf")]
    return (DIRECT, FCFS, *guarded) if daemon else (DIRECT, FCFS, *guarded, ORACLE)


async def _measure(
    settings: Settings, arms: list[Arm], outputs: Outputs, backend_key_file: Path | None
) -> Findings:
    from clairvoyant_cli.commands.bench_setup import (
        loads_of,
        mean_service_s,
        put_together,
        simulated_cells,
        warm_up,
    )
    from clairvoyant_cli.commands.console import PlainConsole
    from clairvoyant_cli.research.bench.machine_facts import machine_facts
    from clairvoyant_cli.research.bench.progress import beginning, telling
    from clairvoyant_cli.research.bench.session import Session, steps_of
    from profiles.host import this_host

    async with put_together(settings, backend_key_file) as bench:
        proxied = next((arm for arm in arms if arm.policy is not None), arms[0])
        console = PlainConsole(stderr=True)
        with beginning(console):
            await warm_up(bench, proxied)
            known_s = settings_in(outputs.resume_file).get("service_s")
            service_s = known_s or await mean_service_s(bench, settings)
        if settings.daemon is None and bench.resume_s is None and any(arm.interrupts for arm in arms):
            click.echo(UNPROVEN, err=True)
        # A bench may go on with more runs or other arms: its finished cells stay what they are.
        same = {name: value for name, value in asdict(settings).items() if name not in ("arms", "runs")}
        ledger = open_ledger(outputs.resume_file, same | {"service_s": service_s})
        loads = loads_of(bench, settings, service_s)
        steps = steps_of(loads, arms, settings.runs, lengths_last=not settings.set_lengths)
        session = Session(bench.way, bench.asker, ledger, settings.speedup, bench.learn)
        try:
            with telling(console, len(steps)) as on_progress:
                await session.run(steps, on_progress)
        except asyncio.CancelledError:
            if outputs.resume_file is not None:
                click.echo("stopped; the same command goes on where it stopped", err=True)
            raise
        cells = [ledger.cells[step.load.name, step.run, step.arm.name] for step in steps]
        simulated = simulated_cells(bench, cells, loads, arms, service_s)
    title = "gain over load" if settings.kind == "sweep" else ", ".join(load.name for load in loads)
    names = [arm.name for arm in arms]

    def summed_up(cells: list[Cell]) -> list[Summary]:
        in_order = sorted(cells, key=lambda cell: names.index(cell.arm))
        return summarise(in_order, FCFS if FCFS in names else None, ORACLE if ORACLE in names else None)

    about = machine_facts(this_host()) | dict(bench.about) | {"mean service": f"{service_s:.3g} s"}
    return Findings(
        title=f"Bench: {title}",
        command=shlex.join(["clairvoyant", *sys.argv[1:]]),
        about=about,
        settings=asdict(settings),
        notes=tuple(_notes(settings, cells, arms, bench.resume_s)),
        summaries=summed_up(cells),
        cells=cells,
        simulated=summed_up(simulated),
        sweep=settings.kind == "sweep",
    )


def _notes(settings: Settings, cells: list[Cell], arms: list[Arm], resume_s: float | None) -> list[str]:
    runs = "one run" if settings.runs == 1 else f"{settings.runs} runs"
    fair = (
        "the arms took turns, every run beginning with another, and got the same questions at the same times."
    )
    notes = [f"Mean ± standard deviation over {runs} of {settings.requests} questions; {fair}"]
    if settings.backend == REPLAY:
        notes.append(
            "The backend is simulated: one answer at a time unless slots say otherwise, service times "
            "N(3.5, 0.8) s for short and N(8.9, 2.0) s for long answers (Clairvoyant, section 5.5). "
            + _pace(settings)
        )
    if settings.set_lengths:
        notes.append(
            "The bench sets each answer's length by the request's own limit; the predictor is not shown that "
            "limit, and learns nothing from the answers."
        )
    elif settings.daemon is None:
        notes.append(
            "Answers end where the model ends them, or at the limit that came with their prompt, which no "
            "prediction sees. The oracle orders by the lengths measured before it in "
            "the same bench; the predictor learns nothing from them."
        )
    if settings.daemon is None:
        notes.append(
            "Simulated is what the simulator says of the same arrivals, lengths and predictions, at the mean "
            "time a token takes alone: without prefill, network and the processor's other work."
        )
    accuracies = [arm for arm in arms if arm.accuracy < 1.0]
    if accuracies:
        notes.append("@N% is told short from long, right N times in a hundred, and nothing else.")
    if any(arm.interrupts for arm in arms) and settings.daemon is None:
        notes.append(
            UNPROVEN
            if resume_s is None
            else f"Answers are cut at a word's end and go on later; that takes {resume_s * 1000:.3g} ms each "
            "time. Throughput lost is the time that slots were held, over that of the uncut baseline, with "
            "the 95 % confidence interval of the mean. Tokens read again are as the server counts them; the "
            "simulated one, as Ollama, counts those in its cache, too."
        )
    if settings.kind == "sweep":
        notes.append("± in the tables of changes, and the bars, are 95 % confidence intervals of the mean.")
    if settings.prompts is None:
        notes.append("The prompts are the project's own, which no predictor was trained on.")
    if settings.kind == "trace":
        notes.append(
            "The trace holds no prompts: its short answers get short questions, the others long ones."
        )
    failed = Counter(answer.error for cell in cells for answer in cell.answers if answer.error is not None)
    if failed:
        reasons = ", ".join(f"{reason} ({count})" for reason, count in failed.most_common())
        notes.append(f"Requests failed: {reasons}. They are counted below and are in no other figure.")
    return notes


def _pace(settings: Settings) -> str:
    if settings.virtual_time:
        return (
            "The clock is virtual: it jumps to the next event when no socket has anything to say. Daemon and "
            "clients are the real ones, over real sockets; what they compute takes no time."
        )
    return (
        f"It runs {settings.speedup:g} times as fast. All times below are multiplied by {settings.speedup:g} "
        "again, and so is what the proxy itself costs."
    )


def _hand_out(findings: Findings, outputs: Outputs) -> None:
    from rich.table import Table

    from clairvoyant_cli.commands.console import PlainConsole
    from clairvoyant_cli.research.bench.page import write_page
    from clairvoyant_cli.research.report.svg import svg

    try:
        if outputs.csv_file is not None:
            with outputs.csv_file.open("w", newline="", encoding="utf-8") as file:
                csv.writer(file).writerows(to_csv(findings.cells))
        if outputs.plot_file is not None:
            outputs.plot_file.write_text(svg(plots_of(findings)), encoding="utf-8")
        if outputs.report_file is not None:
            write_page(page_of(findings), outputs.report_file)
    except OSError as error:
        raise ClairvoyantError(f"cannot write {error.filename}: {error.strerror}") from None
    if outputs.as_json:
        click.echo(json.dumps(to_json(findings), indent=2))
        return
    console = PlainConsole() if sys.stdout.isatty() else PlainConsole(width=WIDTH)
    for verdict in verdicts_of(findings):
        console.print(verdict, style="bold", highlight=False)
    for heading, grids in sections_of(findings):
        for grid in grids:
            table = Table(*grid.header, title=heading, title_justify="left")
            for column in table.columns[1:]:
                column.justify = "right"
            for row in grid.rows:
                table.add_row(*row)
            console.print(table)
    for note in findings.notes:
        console.print(note, style="dim", highlight=False)
