"""The `clairvoyant` command: a click group that imports each command only when it is called.

`clairvoyant --help` loads only click, so the one-line help of each command is in the table here.
"""

import errno
import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from typing import NoReturn

try:
    import click

    from clairvoyant_cli import __version__
    from clairvoyant_cli.errors import ClairvoyantError, ExitCode, printable
except KeyboardInterrupt:
    sys.exit("clairvoyant: aborted")

# name -> one-line help; the module is <package>.<name> and its command is `command`.
PACKAGE = "clairvoyant_cli.commands"
COMMANDS = {
    "serve": "Run the proxy in front of an LLM server.",
    "run": "Run a command whose requests go through the proxy.",
    "batch": "Run a file of requests in OpenAI's batch format in idle time.",
    "status": "Print the state of a running daemon once: requests, slots, servers.",
    "act": "Run an action on a request, a server or the daemon, e.g. `act backend drain NAME`.",
    "calibrate": "Measure an LLM server and store the profile for `serve`.",
    "profiles": "List, show and remove profiles.",
    "history": "Show, compare with arrival order, or erase served requests.",
    "top": "Show the queue, slots and GPU live, and control them.",
    "demo": "Compare shortest-first with first-come-first-served on a simulated backend.",
    "predict": "Predict the answer length of a prompt.",
    "doctor": "Check the set-up and print the command that fixes each problem.",
    "takeover": "Listen where an LLM server listens, and move the server to another port.",
    "env": "Print environment variables that send your clients through the proxy.",
    "service": "Run the proxy as a user service.",
    "completion": "Print the completion script of a shell.",
}

# The commands of the distribution clairvoyant-lab. It is found by its name: the metadata of all that is
# installed would take longer to search than the rest of `--help`.
LABORATORY = "clairvoyant_lab"
GIVE_PATHS = "give --db and --config, or set HOME or XDG_CONFIG_HOME, XDG_DATA_HOME and XDG_STATE_HOME"
ASKED_FOR = f"{__name__}.asked_for"  # key in a click context: the command, known before it is imported


def installed() -> dict[str, tuple[str, str]]:
    """Return the package and the one-line help of each command, the laboratory's last, if it is installed."""
    tables = [(PACKAGE, COMMANDS)]
    if find_spec(LABORATORY) is not None:
        package = f"{LABORATORY}.commands"
        tables.append((package, import_module(package).COMMANDS))
    return {name: (package, told) for package, table in tables for name, told in table.items()}


class LazyGroup(click.Group):
    """A click group whose commands are modules, imported on first use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """List the commands in the order of the table."""
        return list(installed())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command's module and return its `command`."""
        package = PACKAGE
        if cmd_name not in COMMANDS:
            known = installed()
            if cmd_name not in known:
                self._suggest(ctx, cmd_name, known)
                return None
            package = known[cmd_name][0]
        ctx.meta[ASKED_FOR] = cmd_name
        command = import_module(f"{package}.{cmd_name}").command
        assert isinstance(command, click.Command)  # noqa: S101 - a programming error, not an input
        return command

    def _suggest(self, ctx: click.Context, cmd_name: str, known: Iterable[str]) -> None:
        from difflib import get_close_matches

        if cmd_name in ("simulate", "bench", "study", "train", "evaluate"):
            ctx.fail(f"{cmd_name!r} is a command of clairvoyant-lab; in the checkout: pip install ./lab")
        for near in [] if ctx.resilient_parsing else get_close_matches(cmd_name, known, 1):
            ctx.fail(f"no such command {cmd_name!r}; did you mean {near}?")

    def invoke(self, ctx: click.Context) -> object:
        """Import and run the command. `serve` exits with 0 when interrupted during its start."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            # Once it serves, its own signal handlers drain and exit with 0.
            if ctx.meta.get(ASKED_FOR) == "serve":
                raise click.exceptions.Exit(ExitCode.OK) from None
            if ctx.meta.get(ASKED_FOR) == "batch":
                raise ClairvoyantError("stopped; run the same command again to go on") from None
            raise

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands from the table, without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, told) for name, (_, told) in installed().items()])


def _print_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        commit = _commit()
        click.echo(f"clairvoyant {__version__}{f' ({commit})' if commit else ''}")
        ctx.exit()


def _commit() -> str:
    """Return the commit that a wheel was built from, or that is checked out; "" if unknown."""
    from pathlib import Path
    from subprocess import run

    package = Path(__file__).parent
    with suppress(OSError):
        return (package / "commit.txt").read_text().strip()
    if not (package.parent / ".git").exists():
        return ""
    asked = ["git", "-C", str(package.parent), "rev-parse", "--short=8", "HEAD"]
    with suppress(OSError):
        return run(asked, capture_output=True, text=True, check=False).stdout.strip()
    return ""


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "-V",
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show the version and the commit.",
)
def cli() -> None:
    """Reorder requests to a local LLM server: short answers first, without starvation."""


def main() -> None:
    """Run the command. User errors become one line on stderr and an exit code."""
    _open_streams()
    if {sys.stdout.encoding, sys.stderr.encoding} != {"utf-8"}:
        import_module("clairvoyant_cli.system").print_anything()  # lazily: --help needs none of it
    try:
        code = cli(standalone_mode=False)
        sys.stdout.flush()  # where it fails, it is an error of this command
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        sys.exit(ExitCode.USAGE)
    except click.UsageError as error:
        _end(_misused(error), ExitCode.USAGE)
    except click.Abort:
        _end("aborted", ExitCode.FAILURE)
    except ClairvoyantError as error:
        _end(str(error), error.exit_code)
    except (OSError, RuntimeError) as error:
        _end_by(error)
    sys.exit(code)


def _open_streams() -> None:
    """Open the null device for closed standard streams (`>&-`, or pythonw, the service on Windows).

    Its descriptor is taken, too: a socket with number 1 or 2 would get what libraries print.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            null = os.open(os.devnull, os.O_RDWR)
            setattr(sys, name, open(null, mode, closefd=False))  # noqa: SIM115


def _end_by(error: OSError | RuntimeError) -> NoReturn:
    """Exit with one line for an error of the environment; raise any other error again.

    Errors of paths that the user named are handled where they are read.
    """
    if isinstance(error, BrokenPipeError):
        _leave_silently()  # the reader of a pipe has what it wanted
    if isinstance(error, RuntimeError):
        if "home directory" not in str(error):
            raise error
        _end(f"this account has no home directory; {GIVE_PATHS}", ExitCode.FAILURE)
    if error.filename is not None:  # a default path under HOME
        _end(f"{error.filename}: {error.strerror}; {GIVE_PATHS}", ExitCode.FAILURE)
    if error.errno == errno.ENOENT:  # os.getcwd()
        _end("the current folder no longer exists; change to another one", ExitCode.FAILURE)
    if error.errno != errno.ENOSPC:
        raise error
    _leave_silently(f"standard output cannot be written: {error.strerror}")


def _leave_silently(message: str = "") -> NoReturn:
    """Exit without the interpreter's own flush of standard output, which would fail again."""
    if message:
        click.echo(f"clairvoyant: {message}", err=True)
    os._exit(ExitCode.FAILURE)


REPLACED = {
    "top --once": "status",
    "top --json": "status --json",
    "history --csv": "history --json",
    "history --sessions": "history --json",
}
"""What does today what an option of an earlier version did."""


def _misused(error: click.UsageError) -> str:
    """Return click's usage error as one line that points to `--help`."""
    if isinstance(error, click.NoSuchOption) and error.ctx is not None:
        former = f"{error.ctx.info_name} {error.option_name}"
        if former in REPLACED:
            return f"{former} was removed; use: clairvoyant {REPLACED[former]}"
    what = error.format_message().partition(" Choose from:")[0].rstrip(".")
    where = "clairvoyant" if error.ctx is None else error.ctx.command_path
    return f"{what[:1].lower()}{what[1:]}; see: {where} --help"


def _end(message: str, code: ExitCode) -> NoReturn:
    click.echo(f"clairvoyant: {printable(message)}", err=True)
    sys.exit(code)
