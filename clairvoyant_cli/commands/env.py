"""`clairvoyant env`: prints environment variables and settings that send clients through the proxy."""

import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click

from clairvoyant_cli.commands.options import Option, url_option
from clairvoyant_cli.errors import InputError
from clairvoyant_cli.proxy.access.keys import read_key_of
from clairvoyant_cli.state.client import daemon_url
from clairvoyant_cli.system import USUAL_SHELL

KEY = "clairvoyant"
"""Placeholder key: most clients need one, the proxy only if it has keys. It replaces a real OpenAI key in the
environment, which must not be sent to the proxy.
"""

KEYS = re.compile(r"[A-Za-z0-9._~+/=-]+", re.ASCII)
HOSTS = re.compile(r"[A-Za-z0-9._:*/\[\]-]+", re.ASCII)
"""What is safe in every shell."""

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
@key_option
@click.option(
    "--key-of",
    nargs=2,
    metavar="FILE NAME",
    help="Read the key of client NAME from the --clients or --api-key-file FILE of `serve`.",
)
def command(
    url: str | None, names: tuple[str, ...], shell: str, key: str, key_of: tuple[str, str] | None
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
    base = daemon_url(url).rstrip("/")
    export, comment = SHELLS[shell]
    for name in names or USUAL:
        client = CLIENTS[name]
        click.echo(f"{comment} {client.get('title', name)}")
        for variable, value in variables(name, base, key).items():
            if variable.endswith("_KEY") and os.environ.get(variable, value) != value:
                click.echo(f"{comment} replaces your {variable} in this shell; it is not sent to the proxy")
            click.echo(export.format(name=variable, value=value))
        for line in filled(client.get("text", ""), base, key).splitlines():
            click.echo(f"{comment}   {line}".rstrip())
    for variable, value in past_proxies(base, os.environ).items():
        click.echo(export.format(name=variable, value=value))
    if not names:
        click.echo(
            f"{comment} With --client NAME: {', '.join(each for each in CLIENTS if each not in USUAL)}"
        )


def variables(client: str, url: str, key: str) -> dict[str, str]:
    return {name: filled(value, url, key) for name, value in CLIENTS[client].get("variables", {}).items()}


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


def filled(text: str, url: str, key: str) -> str:
    """Replace the placeholders of a client's settings."""
    docker = url.replace("127.0.0.1", "host.docker.internal").replace("localhost", "host.docker.internal")
    return text.replace("{url}", url).replace("{docker_url}", docker).replace("{key}", key)
