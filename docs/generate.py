"""Write docs/reference.md from the code: commands, settings, exit codes, the control API.

python docs/generate.py            writes it
python docs/generate.py --check    says whether it is current
"""

import inspect
import sys
from pathlib import Path

import click

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from clairvoyant_cli import config, control, errors  # noqa: E402
from clairvoyant_cli.main import COMMANDS, cli  # noqa: E402
from clairvoyant_cli.proxy import clients  # noqa: E402
from clairvoyant_cli.proxy.urgency_rules import UrgencyRule  # noqa: E402
from clairvoyant_cli.scheduler import policy  # noqa: E402
from clairvoyant_cli.settings import settings_of  # noqa: E402

TARGET = ROOT / "docs" / "reference.md"

SECURITY_MODEL = (
    "What is promised, to whom, the threat that each default answers, and how it is tested, has "
    "[a page of its own](security-model.md)."
)

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
    for parameter in command.params:
        record = parameter.get_help_record(context) if isinstance(parameter, click.Option) else None
        if record is not None:
            flag, text = (word.replace("|", "\\|").replace("\n\n", " ") for word in record)
            rows.append(f"| `{flag.replace(chr(92) + '|', '/')}` | {text} |")
    if rows:
        parts.append("\n".join(["| flag | |", "|---|---|", *rows]))
    if isinstance(command, click.Group):
        for sub in command.list_commands(context):
            below = command.get_command(context, sub)
            if below is not None and not below.hidden:
                parts += describe(below, f"{name} {sub}", context)
    return parts


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
    rows = [f"| {code.value} | {code.name.lower()} |" for code in errors.ExitCode]
    return ["\n".join(["| code | |", "|---|---|", *rows])]


def control_api() -> list[str]:
    """List the routes under the control prefix."""
    prefix = control.PREFIX
    actions = ", ".join(f"`{action}`" for action in control.ACTIONS)
    return [
        f"`GET {prefix}/health`, `{prefix}/state` (JSON), `{prefix}/events` (server-sent events), "
        f"`{prefix}/metrics` (Prometheus). `POST {prefix}/actions/<action>` with a JSON body: {actions}.",
        'What is done to one request takes `{"id": ...}`; `backend` takes `{"do": "drain"}`, `"up"` or `"remove"` '
        'with the `"name"` of a server, or `"add"` with a `"url"` and what a table `[[backends]]` has, but the `"key"` '
        "itself in place of `key_file`.",
        "All but `health` take the admin token, as `Authorization: Bearer TOKEN`, if `serve` was given one. If it "
        "was not and clients have keys, they take one that is made for each run: `token` in "
        "`daemon-PORT.json` in the user's state directory (`~/.local/state/clairvoyant` on Linux), which only "
        "that account can read. `status`, `top`, `doctor` and `bench --daemon` find it there. What a web page "
        "sends is refused, unless the daemon's own.",
    ]


if __name__ == "__main__":
    text = reference()
    if "--check" in sys.argv:
        sys.exit(0 if TARGET.exists() and TARGET.read_text() == text else "docs/reference.md is not current")
    TARGET.write_text(text)
