"""Write from the code: docs/reference.md, the sample configuration, and the manual page.

python docs/generate.py            writes them
python docs/generate.py --check    says whether they are current
"""

import inspect
import os
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import click
from platformdirs.macos import MacOS
from platformdirs.unix import Unix

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from clairvoyant_cli import config, errors
from clairvoyant_cli.state import actions
from clairvoyant_cli.state.client import PREFIX
from clairvoyant_cli.main import COMMANDS, cli  # noqa: E402
from clairvoyant_cli.protocols import chores  # noqa: E402
from clairvoyant_cli.proxy.access import keys as access
from clairvoyant_cli.proxy.access import clients
from clairvoyant_cli.proxy.access.urgency_rules import UrgencyRule  # noqa: E402
from clairvoyant_cli.scheduler import policy  # noqa: E402
from clairvoyant_cli.settings import settings_of  # noqa: E402

SECURITY_MODEL = (
    "What is promised, to whom, the threat that each default answers, and how it is tested, has "
    "[a page of its own](security-model.md)."
)

ADDED = "answers, of what it scheduled"
HEADERS = [
    (access.PRIORITY_HEADER, "requests", "0 to 100, lower is sooner; -100 to -1 where the client's rules let it."),
    (access.URGENCY_HEADER, "requests", "0, immediate, to 4, whenever there is time; for policy `urgency`."),
    (access.CLIENT_HEADER, "requests", "A name for dashboards, log and history, where clients have no keys. Limits and shares go by address then."),
    (chores.CHORE_HEADER, "requests", "Whether the request is a program's own background work."),
    (access.BACKEND_HEADER, "requests, answers", "The server that is to be managed; the one that answered."),
    (b"x-clairvoyant-request-id", ADDED, "The request's id, as in the log, the history and the actions."),
    (b"x-clairvoyant-class", ADDED, "The predicted class: short, medium, long."),
    (b"x-clairvoyant-tokens", ADDED, "The predicted length in tokens."),
    (b"x-clairvoyant-queue-ms", ADDED, "Milliseconds that it waited here."),
    (b"x-clairvoyant-asker", "the daemon's own probes", "Who asks: one that comes back shows that a backend leads to this proxy itself."),
]
HEADERS = [("-".join(map(str.capitalize, name.decode().split("-"))), *rest) for name, *rest in HEADERS]

FILES = [
    ("settings", "user_config_path", "config.toml"),
    ("profiles and history", "user_data_path", "clairvoyant.db"),
    ("the word of each running daemon", "user_state_path", "daemon-PORT.json"),
]

URGENCY = (
    "Tables `[[urgency]]` say how urgent requests are: the first whose keys all fit counts, before what clients and "
    "the predictor say."
)


def reference() -> str:
    """Return the whole page."""
    parts = [
        "# Reference",
        "Written by `python docs/generate.py` from the code; a test checks that it is current.",
    ]
    parts += ["## Commands", *commands(), "## Settings of `serve`", *settings(), "## Policies", *policies()]
    parts += ["## The clients' file", *clients_file()]
    parts += ["## Headers", *headers(), "## Files", *places()]
    parts += ["## Exit codes", *exit_codes(), "## Control API", *control_api()]
    parts += ["## Security model", SECURITY_MODEL]
    return "\n\n".join(parts) + "\n"


def commands() -> list[str]:
    """Describe every command and its flags."""
    context = click.Context(cli, info_name="clairvoyant")
    parts: list[str] = []
    for name in COMMANDS:
        command = cli.get_command(context, name)
        assert command is not None
        parts += describe(command, f"clairvoyant {name}", context)
    return parts


def describe(command: click.Command, name: str, parent: click.Context) -> list[str]:
    """Describe a command, and those below it."""
    context = click.Context(command, info_name=name.rpartition(" ")[2], parent=parent)
    parts = [f"### {name}", inspect.cleandoc(command.help or "").replace("\f", "")]
    arguments = [f"`{p.make_metavar(context)}`" for p in command.params if isinstance(p, click.Argument)]
    if arguments:
        parts.append(f"Takes {', '.join(arguments)}.")
    rows = []
    for record in options_of(command, context):
        flag, text = (word.replace("|", "\\|").replace("\n\n", " ") for word in record)
        rows.append(f"| `{flag.replace(chr(92) + '|', '/')}` | {text} |")
    if rows:
        parts.append("\n".join(["| flag | |", "|---|---|", *rows]))
    for below, full_name in commands_below(command, name, context):
        parts += describe(below, full_name, context)
    return parts


def options_of(command: click.Command, context: click.Context) -> Iterator[tuple[str, str]]:
    """Yield a command's options that are not hidden: the flags, and what they do."""
    records = (each.get_help_record(context) for each in command.params if isinstance(each, click.Option))
    return (record for record in records if record is not None)


def commands_below(
    command: click.Command, name: str, context: click.Context
) -> Iterator[tuple[click.Command, str]]:
    """Yield the commands of a group that are not hidden, each with its full name."""
    if isinstance(command, click.Group):
        for sub in command.list_commands(context):
            below = command.get_command(context, sub)
            if below is not None and not below.hidden:
                yield below, f"{name} {sub}"


def settings() -> list[str]:
    """List the settings, and those of a table of its own for each LLM server."""
    where = (
        "Each is a flag (with dashes), a key under `[serve]` in `config.toml` in the user's configuration "
        f"directory, or an environment variable `{config.ENV_PREFIX}SERVE_<NAME>`. Flags win over the "
        "environment, the environment over the file. A name that is not known is refused."
    )
    tables = (
        "In place of `backend`, `slots` and `backend_key_file` the file can say LLM servers one by one: a table "
        "`[[backends]]` for each, with a `name` and a `url` that no other has, and any of these: see "
        "[several servers](how-to/several-servers.md)."
    )
    return [
        where,
        listed(config.ServeConfig, "setting"),
        "### LLM servers, one by one",
        tables,
        listed(config.BackendConfig, "key"),
        "### The dashboard",
        "A table `[top]` in the same file says how `clairvoyant top` begins, whatever it was left like:",
        listed(config.TopConfig, "key"),
    ]


def clients_file() -> list[str]:
    """List what a clients' file says of a client."""
    where = (
        "TOML for `--clients`: a table `[clients.NAME]` for each client, with its `key` (of at least "
        f"{clients.MIN_KEY_CHARS} characters; all have one, or none) and any of these; what `[defaults]` says holds "
        "for the clients that say nothing else, and for those that have no table."
    )
    return [where, listed(clients.ClientRules, "key"), URGENCY, listed(UrgencyRule, "key")]


def listed(record: type, what: str) -> str:
    """List a record's settings."""
    rows = [f"| {what} | value | default | |", "|---|---|---|---|"]
    for name, each in settings_of(record).items():
        value = (each.metavar or "true or false").replace("|", "\\|")
        default = list(each.default) if isinstance(each.default, tuple) else each.default
        shown = "" if default is None else f"`{str(default).lower()}`"
        rows.append(f"| `{name}` | {value} | {shown} | {each.about} |")
    return "\n".join(rows)


def policies() -> list[str]:
    """List the policies that serve, and what orders them."""
    rows = ["| policy | order | tau |", "|---|---|---|"]
    for name in policy.SERVABLE:
        found = policy.POLICIES[name]
        rows.append(f"| `{name}` | {found.summary} | {'guards' if found.guarded else 'means nothing'} |")
    return [f"The default is `{policy.DEFAULT_POLICY}`.", "\n".join(rows)]


def exit_codes() -> list[str]:
    """List the exit codes."""
    rows = [f"| {code.value} | {code.name.lower()} | {code.about} |" for code in errors.ExitCode]
    return ["\n".join(["| code | | when |", "|---|---|---|", *rows])]


def headers() -> list[str]:
    """List the headers that are ours."""
    rows = ["| header | in | |", "|---|---|---|"]
    return ["\n".join(rows + [f"| `{name}` | {where} | {about} |" for name, where, about in HEADERS])]


def places() -> list[str]:
    """List the files, by system; what XDG's variables or CLAIRVOYANT_DB say goes before."""
    rows = ["| file | Linux | macOS | Windows |", "|---|---|---|---|"]
    for what, kind, file in FILES:
        with patch.dict(os.environ):
            for name in [name for name in os.environ if name.startswith("XDG_")]:
                del os.environ[name]
            found = [getattr(system("clairvoyant", False), kind) for system in (Unix, MacOS)]
        linux, mac = ("~" + str(each).removeprefix(str(Path.home())) for each in found)
        rows.append(f"| {what} | `{linux}/{file}` | `{mac}/{file}` | `%LOCALAPPDATA%\\clairvoyant\\{file}` |")
    return ["\n".join(rows)]


def control_api() -> list[str]:
    """List the routes under the control prefix."""
    prefix = PREFIX
    rows = [f"| `{verb}` | `{of.body}` | {of.help} |" for verb, of in actions.COMMANDS.items()]
    return [
        f"`GET {prefix}/health`, `{prefix}/state` (JSON), `{prefix}/events` (server-sent events), "
        f"`{prefix}/metrics` (Prometheus), `{prefix}/past?before=SECONDS` (a minute of the last hour, one state per line; "
        "all but the first list only new ended requests and log lines). "
        f"`POST {prefix}/actions/<action>` takes a JSON object, with `Content-Type: application/json`:",
        "\n".join(["| action | body | |", "|---|---|---|", *rows]),
        'What went well answers with 200 and `{"done": ...}`, what did not with `{"error": WHY}`: 400 for a body that '
        "is no JSON object, 401 without the token, 403 for a page or a host that is not ours, 404 for an action that "
        "there is not, 409 for what cannot be done as things stand (a request that has ended), 422 for arguments that "
        "could never do.",
        "All but `health` take the admin token, as `Authorization: Bearer TOKEN`, if `serve` was given one. If it "
        "was not and clients have keys, they take one that is made for each run: `token` in "
        "`daemon-PORT.json` in the user's state directory (`~/.local/state/clairvoyant` on Linux), which only "
        "that account can read. `status`, `top`, `doctor` and `bench --daemon` find it there. What a web page "
        "sends is refused, unless the daemon's own.",
    ]


def sample() -> str:
    """Return a configuration file that says all there is to set, and sets nothing."""
    lines = [
        "# Every setting, with its default; copy what you change to config.toml in the user's configuration",
        "# directory (~/.config/clairvoyant on Linux), without the #. `clairvoyant serve --help` says the same.",
        "",
        "[serve]",
        *sampled(config.ServeConfig),
        "",
        "# Instead of backend, slots and backend_key_file, the LLM servers one by one:",
        "# [[backends]]",
        *sampled(config.BackendConfig),
        "",
        "# How `clairvoyant top` begins:",
        "# [top]",
        *sampled(config.TopConfig),
    ]
    return "\n".join(lines) + "\n"


def sampled(record: type) -> list[str]:
    """Return the settings of a record as commented lines."""
    lines = []
    for name, each in settings_of(record).items():
        lines += ["", *(f"# {line}" for line in textwrap.wrap(each.about, 100))]
        value = f'"{each.metavar or ""}"' if each.default is None and each.kind is str else each.default
        if isinstance(each.default, str):
            value = f'"{each.default}"'
        shown = each.metavar if value is None else str(value).lower() if isinstance(value, bool) else value
        lines.append(f"# {name} = {shown}")
    return lines


def manual() -> str:
    """Return the manual page, in roff (man 7)."""
    parts = [
        '.TH CLAIRVOYANT 1 "" "clairvoyant" "User Commands"',
        ".SH NAME\nclairvoyant \\- send the shortest predicted LLM answer first",
        ".SH SYNOPSIS\n.B clairvoyant\n.I COMMAND\n[\\fIOPTIONS\\fR]",
        f".SH DESCRIPTION\n{roff(inspect.cleandoc(cli.help or ''))}",
        "It is a proxy in front of an LLM server such as Ollama or llama.cpp. It predicts how long each answer will\n"
        "be, sends the short ones first, and lets no long one starve.",
        ".SH COMMANDS",
    ]
    context = click.Context(cli, info_name="clairvoyant")
    for name in COMMANDS:
        command = cli.get_command(context, name)
        assert command is not None
        parts += man_of(command, name, context)
    parts.append(".SH EXIT STATUS")
    parts += [f".TP\n.B {code.value}\n{roff(code.about)}" for code in errors.ExitCode]
    parts.append(".SH FILES")
    with_home = {"user_config_path": "~/.config", "user_data_path": "~/.local/share", "user_state_path": "~/.local/state"}
    parts += [f".TP\n.I {with_home[kind]}/clairvoyant/{file}\n{roff(what)}" for what, kind, file in FILES]
    parts.append(
        ".SH ENVIRONMENT\n.TP\n.B CLAIRVOYANT_SERVE_\\fINAME\\fR\nA setting of serve.\n"
        ".TP\n.B CLAIRVOYANT_DB\nThe database.\n"
        ".TP\n.B CLAIRVOYANT_ADMIN_TOKEN\nThe admin token of the daemon that is talked to."
    )
    return "\n".join(parts) + "\n"


def man_of(command: click.Command, name: str, parent: click.Context) -> list[str]:
    """Return a command's part of the manual page, and of those below it."""
    context = click.Context(command, info_name=name.rpartition(" ")[2], parent=parent)
    parts = [f".SS {name}", roff(inspect.cleandoc(command.help or "").replace("\f", ""))]
    parts += [f".TP\n.B {roff(flag)}\n{roff(text)}" for flag, text in options_of(command, context)]
    for below, full_name in commands_below(command, name, context):
        parts += man_of(below, full_name, context)
    return parts


def roff(text: str) -> str:
    """Return a text so that roff prints it as it is, paragraphs apart."""
    lines = [line.strip().replace("\\", "\\e").replace("-", "\\-") for line in text.replace("\b", "").splitlines()]
    return "\n".join(".PP" if not line else f"\\&{line}" if line[0] in ".'" else line for line in lines)


WRITTEN = {"reference.md": reference, "config.sample.toml": sample, "clairvoyant.1": manual}

if __name__ == "__main__":
    stale = []
    for name, write in WRITTEN.items():
        target, text = ROOT / "docs" / name, write()
        if not target.exists() or target.read_text() != text:
            stale.append(f"docs/{name}")
            if "--check" not in sys.argv:
                target.write_text(text)
    if stale and "--check" in sys.argv:
        sys.exit(f"not current: {', '.join(stale)}")
