"""`clairvoyant serve`: the daemon, in the foreground."""

import asyncio
import gc
import logging
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from clairvoyant_cli import __version__
from clairvoyant_cli.commands.composition import Frozen, kept_in, load_predictor, run
from clairvoyant_cli.config import ServeConfig, load_serve_config
from clairvoyant_cli.errors import ClairvoyantError
from clairvoyant_cli.scheduler.policy import DEFAULT_POLICY, POLICIES, SERVABLE

if TYPE_CHECKING:
    from clairvoyant_cli.proxy.daemon import Daemon
    from clairvoyant_cli.proxy.persistence import Persistence
    from predictor.record import Predictor

POLICY_HELP = "\n\n".join(
    [
        f"How waiting requests are ordered.  [default: {DEFAULT_POLICY}]",
        *(f"{name}: {POLICIES[name].summary}" for name in SERVABLE),
    ]
)


def _by_commas(context: click.Context, parameter: click.Parameter, given: tuple[str, ...]) -> str | None:
    return ",".join(given) or None


@click.command()
@click.option(
    "--backend",
    metavar="NAME|URL",
    help="ollama, llamacpp, lmstudio, jan, or a URL. Unset: look at their usual ports.",
)
@click.option("--listen", metavar="HOST:PORT", help="Where clients connect.  [default: 127.0.0.1:8080]")
@click.option("--policy", metavar="NAME", help=POLICY_HELP)
@click.option("--tau", type=float, metavar="SECONDS", help="Starvation timeout; 0 turns the guard off.")
@click.option("--slots", type=int, help="Requests in flight at once. Unset: asked of llama.cpp, 1 elsewhere.")
@click.option(
    "--queue-capacity",
    type=int,
    help="Requests that may wait; beyond that, whoever has most waiting is refused one.  [default: 1024]",
)
@click.option(
    "--max-wait",
    type=float,
    metavar="SECONDS",
    help="Longest wait before a request is refused. Unset: no limit.",
)
@click.option("--overload-status", type=int, help="Status of those refusals, 503 or 429.  [default: 503]")
@click.option("--model", metavar="DIR", help="A predictor of your own, made by `clairvoyant train`.")
@click.option("--profile", metavar="NAME", help="A measured profile, made by `clairvoyant calibrate`.")
@click.option(
    "--api-key-file", metavar="FILE", help="API keys, one name:key a line. Needed to listen beyond loopback."
)
@click.option(
    "--admin-token-file",
    metavar="FILE",
    help="Token for the control API. Needed to listen beyond loopback. Unset: where clients have keys, one "
    "is made for each run, which only commands of your own account find.",
)
@click.option(
    "--backend-key-file", metavar="FILE", help="The backend's own API key, sent with every request."
)
@click.option(
    "--clients",
    metavar="FILE",
    help="Clients, their API keys and limits, as TOML; in place of --api-key-file. SIGHUP reads it again.",
)
@click.option(
    "--allow-host",
    metavar="NAME",
    multiple=True,
    callback=_by_commas,
    help="A further Host name that is answered to; repeatable, or by commas.",
)
@click.option(
    "--allow-origin",
    metavar="ORIGIN",
    multiple=True,
    callback=_by_commas,
    help="Let web pages of this origin send requests; * stands for any text; repeatable, or by commas.",
)
@click.option(
    "--connect-timeout",
    type=float,
    metavar="SECONDS",
    help="Time to connect to the backend; an answer may take as long as it takes.  [default: 5]",
)
@click.option(
    "--client-timeout",
    type=float,
    metavar="SECONDS",
    help="Without progress before a client that stalls is given up.  [default: 30]",
)
@click.option(
    "--drain-timeout", type=float, metavar="SECONDS", help="A drain waits for what runs.  [default: 300]"
)
@click.option(
    "--outage-grace",
    type=float,
    metavar="SECONDS",
    help="Requests wait for a backend that has gone; 0 refuses them at once.  [default: 60]",
)
@click.option("--body-limit-mib", type=int, help="Longest request body read for a prediction.  [default: 64]")
@click.option(
    "--body-budget-mib", type=int, help="What all waiting bodies may take together.  [default: 256]"
)
@click.option(
    "--max-connections", type=int, help="Client connections at once. Unset: what the open-file limit allows."
)
@click.option("--db", metavar="FILE", help="Database of profiles and history.")
@click.option("--freeze", is_flag=True, default=None, help="Learn nothing from traffic.")
@click.option(
    "--history-days", type=int, help="Days for which finished requests are remembered.  [default: 90]"
)
@click.option(
    "--history-rows",
    type=int,
    help="Finished requests that are remembered; 0 records none.  [default: 1000000]",
)
@click.option(
    "--record-prompts",
    is_flag=True,
    default=None,
    help="Record prompt text too, of bodies up to 256 KiB, to train a predictor on it. "
    "`clairvoyant forget` erases it.",
)
@click.option(
    "--show-prompts",
    is_flag=True,
    default=None,
    help="Let dashboards show prompts. They are not logged, nor recorded by this.",
)
@click.option("--log-level", metavar="LEVEL", help="debug, info, warning or error.  [default: info]")
@click.option("--config", "config_file", type=click.Path(path_type=Path), help="Configuration file, TOML.")
def command(config_file: Path | None, **flags: Any) -> None:
    """Run the proxy in front of an LLM server.

    Point your clients at the address it listens on, instead of the server's own.
    Every flag can also stand in the configuration file, under [serve], or in the
    environment as CLAIRVOYANT_SERVE_<NAME>.
    """
    given = {name: value for name, value in flags.items() if value is not None}
    config = load_serve_config(given, file=config_file)
    logging.basicConfig(
        stream=sys.stderr,
        level=config.log_level.upper(),
        format="%(asctime)s %(levelname).1s %(message)s",
        datefmt="%Y-%m-%dT%H:%M:%S",
    )
    run(_serve(config))


def _heed_signals(daemon: "Daemon") -> None:
    loop = asyncio.get_running_loop()
    terminal = next((stream for stream in (0, 1, 2) if os.isatty(stream)), None)

    def on_stop() -> None:
        if daemon.control.stopping:
            daemon.stop_now()
        else:
            daemon.drain()

    def on_hangup() -> None:
        if terminal is not None and not os.isatty(terminal):
            on_stop()  # the terminal has been closed
            return
        with suppress(ClairvoyantError):  # the log says why
            daemon.reload()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_stop)
    loop.add_signal_handler(signal.SIGHUP, on_hangup)


async def _serve(config: ServeConfig) -> None:
    log = logging.getLogger("clairvoyant")
    predictor = load_predictor(config.model)
    if config.freeze:
        predictor = Frozen(predictor)
    with kept_in(config) as persistence:
        await _run(config, predictor, persistence)
    log.info("stopped")


async def _run(config: ServeConfig, predictor: "Predictor", persistence: "Persistence | None") -> None:
    from clairvoyant_cli.proxy.daemon import running_daemon
    from clairvoyant_cli.proxy.request_stats import plural

    async with running_daemon(config, predictor, persistence=persistence, announced=True) as daemon:
        # What is loaded by now stays: the collector need not walk it again while somebody waits for a token.
        gc.collect()
        gc.freeze()
        _heed_signals(daemon)
        scheduler = daemon.gateway.dispatcher.scheduler
        tau = "off" if scheduler.tau_s is None else f"{scheduler.tau_s:.4g} s ({daemon.snapshots.tau_source})"
        # Said whatever the log level: it is how one sees, and a supervisor's script knows, that it serves.
        click.echo(
            f"clairvoyant {__version__}: {daemon.base_url} -> {daemon.backend.adapter.name} "
            f"{daemon.backend.upstream.url}, {plural(daemon.backend.slots, 'slot')}, "
            f"policy {scheduler.policy.name}, tau {tau}, predictor {predictor.name}",
            err=True,
        )
        await daemon.run_until_stopped()
