"""The `clairvoyant` command: a click group that imports a command only when it is called.

Import cost is a feature of a CLI: `clairvoyant --help` loads click and nothing else, so the one-line
help of each command stands here, in the table, and its module is loaded on use.
"""

import os
import sys
from importlib import import_module
from typing import NoReturn

import click

from clairvoyant_cli import __version__
from clairvoyant_cli.errors import ClairvoyantError, ExitCode, printable

# name -> one-line help; the module is clairvoyant_cli.commands.<name> and its command is `command`.
COMMANDS = {
    "serve": "Run the proxy in front of an LLM server.",
    "backends": "List, add, drain and remove the servers behind a running daemon.",
    "status": "Print the state of a running daemon once.",
    "act": "Do one of the actions of `top`, as in `act urgency id=REQUEST level=0`.",
    "calibrate": "Measure an LLM server once, so that `serve` knows it.",
    "profiles": "List, show, choose and exchange what `calibrate` measured.",
    "history": "Show the requests that were served.",
    "report": "Say what it has saved whom, and cost whom, against order of arrival.",
    "forget": "Erase what is remembered of requests, for good.",
    "top": "Watch the queue, the slots and the GPU live, and steer them.",
    "simulate": "Compare scheduling policies in virtual time, on the papers' workloads or your own.",
    "demo": "Watch shortest-first beat first-come-first-served, on a simulated backend.",
    "predict": "Predict how long the answer to a prompt will be.",
    "evaluate": "Judge a predictor on prompts whose answers are known.",
    "train": "Train a predictor on your own logs.",
    "study": "Print the tables of the predictor's studies.",
    "bench": "Measure what shortest-first gains on your own machine.",
    "doctor": "Say what is wrong with the set-up, and the command that fixes it.",
    "env": "Print what to export so that your clients go through the proxy.",
    "service": "Keep the proxy running: install, start, stop, status, logs, uninstall.",
    "completion": "Print the completion script for bash, zsh, fish or PowerShell.",
}

ASKED_FOR = f"{__name__}.asked_for"
"""In a context: the command that is wanted, known before it is imported."""


class LazyGroup(click.Group):
    """A click group whose commands are modules, imported when first asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Name the commands in the order of the table, not of the alphabet."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command's module and return its `command`."""
        if cmd_name not in COMMANDS:
            if not ctx.resilient_parsing:
                from difflib import get_close_matches

                for near in get_close_matches(cmd_name, COMMANDS, 1):
                    ctx.fail(f"no such command {cmd_name!r}; did you mean {near}?")
            return None
        ctx.meta[ASKED_FOR] = cmd_name
        command = import_module(f"clairvoyant_cli.commands.{cmd_name}").command
        assert isinstance(command, click.Command)  # noqa: S101 - a programming error, not an input
        return command

    def invoke(self, ctx: click.Context) -> object:
        """Import the command and run it; `serve` ends as well when it is interrupted before it serves."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            # Later its own handlers make of an interrupt a drain, and the exit code is 0.
            if ctx.meta.get(ASKED_FOR) == "serve":
                raise click.exceptions.Exit(ExitCode.OK) from None
            raise

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands from the table, without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "-V", "--version", prog_name="clairvoyant")
def cli() -> None:
    """Make your own LLM server feel fast: short answers first, none starved."""


def main() -> None:
    """Run the command; an error the user can mend is one line on stderr and an exit code."""
    encodings = {getattr(stream, "encoding", None) for stream in (sys.stdout, sys.stderr)}
    if encodings != {"utf-8"}:  # None: pythonw, as which the service runs on Windows, has no streams
        import_module("clairvoyant_cli.system").print_anything()  # whose imports --help can do without
    if os.environ.get("_CLAIRVOYANT_COMPLETE", "").startswith("powershell"):
        import_module("clairvoyant_cli.commands.completion")  # click knows no PowerShell
    try:
        code = cli(standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        sys.exit(ExitCode.USAGE)
    except click.UsageError as error:
        _end(_misused(error), ExitCode.USAGE)
    except click.Abort:
        _end("stopped; nothing more was done", ExitCode.FAILURE)
    except ClairvoyantError as error:
        # One line, whatever the names in it hold that a file or another program gave.
        _end(str(error), error.exit_code)
    except OSError as error:
        # Of what nobody named: our places under HOME. What was named is said where it is read.
        if error.filename is None:
            raise
        fix = "give --db and --config, or set HOME or XDG_CONFIG_HOME, XDG_DATA_HOME and XDG_STATE_HOME"
        _end(f"{error.filename}: {error.strerror}; {fix}", ExitCode.FAILURE)
    except (ImportError, SyntaxError, AttributeError):
        # Other packages are called tui, predictor or profiles, too, and may be installed over ours.
        packages = import_module("clairvoyant_cli.packages")
        why = next(packages.displaced(), None)
        if why is None:
            raise
        _end(f"{why}; run: {packages.REINSTALL}", ExitCode.FAILURE)
    sys.exit(code)


def _misused(error: click.UsageError) -> str:
    """Return what click says in several lines in one: what is wrong, and what says how it is right."""
    what = error.format_message().partition(" Choose from:")[0].rstrip(".")
    where = "clairvoyant" if error.ctx is None else error.ctx.command_path
    return f"{what[:1].lower()}{what[1:]}; see: {where} --help"


def _end(message: str, code: ExitCode) -> NoReturn:
    click.echo(f"clairvoyant: {printable(message)}", err=True)
    sys.exit(code)
