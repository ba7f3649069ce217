"""`clairvoyant env`: prints environment variables and settings that send clients through the proxy."""

import os
import re
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click

from clairvoyant_cli.commands.options import Option, url_option
from clairvoyant_cli.errors import ClairvoyantError, InputError
from clairvoyant_cli.proxy.access.keys import read_key_of
from clairvoyant_cli.state.client import ControlClient, ask_daemon, daemon_url
from clairvoyant_cli.state.snapshot import Snapshot
from clairvoyant_cli.system import USUAL_SHELL

KEY = "clairvoyant"
"""Placeholder key: most clients need one, the proxy only if it has keys. It replaces a real OpenAI key in the
environment, which must not be sent to the proxy.
"""

KEYS = re.compile(r"[A-Za-z0-9._~+/=-]+", re.ASCII)
HOSTS = re.compile(r"[A-Za-z0-9._:*/\[\]-]+", re.ASCII)
MODELS = re.compile(r"[A-Za-z0-9._:@/+-]+", re.ASCII)
"""What is safe in every shell."""

UNKNOWN = "your-model"
"""What stands for a model in texts; never in variables."""

CLIENTS: dict[str, dict[str, Any]] = tomllib.loads(
    Path(__file__).with_name("clients.toml").read_text(encoding="utf-8")
)
"""Title, environment variables and text of each client, with placeholders."""

USUAL = ("ollama", "openai", "open-webui", "langchain")
"""Clients that are printed without --client; coding agents and Anthropic's normally talk to their vendor."""

SHELLS = {
    "sh": ('export {name}="{value}"', "#"),
    "fish": ("set -gx {name} '{value}'", "#"),
    "powershell": ("$env:{name} = '{value}'", "#"),
    "cmd": ('set "{name}={value}"', "rem"),
}
"""The syntax of a variable and of a comment."""


def client_option(text: str) -> Option:
    names = click.Choice(list(CLIENTS))
    return click.option("--client", "names", type=names, multiple=True, metavar="NAME", help=text)


key_option = click.option("--key", default=KEY, metavar="KEY", help="Your API key, if the proxy has keys.")


@click.command()
@url_option
@client_option(f"Only this client: {', '.join(CLIENTS)}. Repeatable.")
@click.option(
    "--shell",
    type=click.Choice(list(SHELLS)),
    default=USUAL_SHELL,
    show_default="powershell on Windows, else sh",
    help="Shell syntax.",
)
@click.option(
    "--model",
    metavar="MODEL",
    help="Model for the settings of --client. Unset: the one that is loaded, else the one used last.",
)
@key_option
@click.option(
    "--key-of",
    nargs=2,
    metavar="FILE NAME",
    help="Read the key of client NAME from the --clients or --api-key-file FILE of `serve`.",
)
def command(
    url: str | None,
    names: tuple[str, ...],
    shell: str,
    model: str | None,
    key: str,
    key_of: tuple[str, str] | None,
) -> None:
    """Print environment variables that send your clients through the proxy.

    In bash and zsh: eval "$(clairvoyant env)". In PowerShell: clairvoyant env | Out-String |
    Invoke-Expression. Lines without `export` are comments with manual steps. Coding agents and
    Anthropic clients are included only with --client.
    """
    if key_of is not None:
        key = read_key_of(Path(key_of[0]), key_of[1])
    if not KEYS.fullmatch(key):
        raise InputError("the key may have only letters, digits and -._~+/= (safe in every shell)")
    if model is not None and not MODELS.fullmatch(model):
        raise InputError("the model may have only letters, digits and -._:@/+ (safe in every shell)")
    base = daemon_url(url).rstrip("/")
    if model is None and any("{model}" in str(CLIENTS[name]) for name in names):
        model = _safe_in_shells(_model_in_use(url))
    export, comment = SHELLS[shell]
    for name in names or USUAL:
        client = CLIENTS[name]
        click.echo(f"{comment} {client.get('title', name)}")
        for variable, value in variables(name, base, key, model).items():
            if variable.endswith("_KEY") and os.environ.get(variable, value) != value:
                click.echo(f"{comment} replaces your {variable} in this shell; it is not sent to the proxy")
            click.echo(export.format(name=variable, value=value))
        for line in filled(client.get("text", ""), base, key, model or UNKNOWN).splitlines():
            click.echo(f"{comment}   {line}".rstrip())
    for variable, value in past_proxies(base, os.environ).items():
        click.echo(export.format(name=variable, value=value))
    if not names:
        click.echo(
            f"{comment} With --client NAME: {', '.join(each for each in CLIENTS if each not in USUAL)}"
        )


def variables(client: str, url: str, key: str, model: str | None) -> dict[str, str]:
    """Return a client's variables, without those that name a model if `model` is None."""
    found = CLIENTS[client].get("variables", {})
    kept = {name: value for name, value in found.items() if model is not None or "{model}" not in value}
    return {name: filled(value, url, key, model or "") for name, value in kept.items()}


def _model_in_use(url: str | None) -> str | None:
    """Return a daemon's model, or without a daemon the one that the history has last; None if unknown."""
    found = None
    with suppress(ClairvoyantError):
        found = model_of(ask_daemon(url, None, ControlClient.snapshot))
    if found is None and url is None:
        from clairvoyant_cli.commands.setup import opened_database
        from profiles.history import Span, newest

        with suppress(ClairvoyantError), opened_database(None) as database:
            found = next((request.model for request in newest(database, Span(), 1)), None)
    return found


def _safe_in_shells(model: str | None) -> str | None:
    """Return a model that may be printed; None, with a line on standard error, if there is none."""
    if model is not None and MODELS.fullmatch(model):
        return model
    news = "no model is loaded or was used yet; give one with --model"
    if model is not None:  # its control characters must not reach the terminal
        news = f"the name of the model, {model!a}, is not safe in every shell; set it by hand"
    click.echo(f"clairvoyant: {news}", err=True)
    return None


def model_of(snapshot: Snapshot) -> str | None:
    """Return the loaded model, or the model used last if several are loaded or none is; None if unknown."""
    loaded = [model.name for server in snapshot.backends for model in server.models]
    used = [request.model for request in reversed(snapshot.recent) if request.outcome == "completed"]
    return next((model for model in used if model in loaded), next(iter(loaded or used), None))


def past_proxies(url: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Return what keeps requests for `url` from the proxies that an environment names; nothing if none."""
    lowered = {name.lower(): value for name, value in environment.items()}
    if not any(lowered.get(name) for name in ("http_proxy", "https_proxy", "all_proxy")):
        return {}
    # Both spellings: curl reads the small one only, others prefer the large one.
    host = urlsplit(url).hostname or ""
    kept = environment.get("no_proxy") or environment.get("NO_PROXY") or ""
    hosts = [each for each in map(str.strip, kept.split(",")) if HOSTS.fullmatch(each)]
    value = ",".join(hosts if host in hosts or "*" in hosts else [*hosts, host])
    return {"NO_PROXY": value, "no_proxy": value}


def filled(text: str, url: str, key: str, model: str) -> str:
    """Replace the placeholders of a client's settings."""
    text = text.replace("{url}", url).replace("{key}", key).replace("{model}", model)
    for place, host in (
        ("{docker_url}", "host.docker.internal"),
        ("{podman_url}", "host.containers.internal"),
    ):
        text = text.replace(place, url.replace("127.0.0.1", host).replace("localhost", host))
    return text
