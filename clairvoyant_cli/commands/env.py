"""`clairvoyant env`: what to export or set so that a client goes through the proxy."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import click

from clairvoyant_cli.commands.options import url_option
from clairvoyant_cli.errors import ClairvoyantError, ExitCode
from clairvoyant_cli.proxy.access.keys import read_key_of
from clairvoyant_cli.state.client import local_url
from clairvoyant_cli.system import USUAL_SHELL

KEY = "clairvoyant"
"""Clients want some key; the proxy asks for none unless it was given keys of its own.

It takes the place of one that is set: that may be a real one of OpenAI's, which is nobody's business here.
"""


KEYS = re.compile(r"[A-Za-z0-9._~+/=-]+", re.ASCII)


@dataclass(frozen=True, slots=True)
class Client:
    """A client: the variables it reads, or how its settings file must say it."""

    name: str
    variables: Callable[[str], Mapping[str, str]] = lambda url: {}
    asked_for: bool = (
        False  # its clients usually talk to their maker's servers, and are sent here only by name
    )
    settings: Callable[[str], str] = lambda url: ""


def _open_webui(url: str) -> str:
    inside = url.replace("127.0.0.1", "host.docker.internal").replace("localhost", "host.docker.internal")
    lines = (
        "In a container the host has another name, and the proxy must listen beyond loopback, with keys:",
        "docker run -d -p 3000:8080 --add-host=host.docker.internal:host-gateway "
        "-v open-webui:/app/backend/data "
        + " ".join(f"-e '{each}'" for each in _open_webui_variables(inside))
        + " ghcr.io/open-webui/open-webui:main",
        "Without a container, set these and run open-webui serve:",
        *_open_webui_variables(url),
        f"Where it runs already: Admin Panel, Settings, Connections, OpenAI API: {url}/v1, key {KEY}",
    )
    return "\n".join(lines)


def _open_webui_variables(url: str) -> tuple[str, ...]:
    return (
        f"OPENAI_API_BASE_URL={url}/v1",
        f"OPENAI_API_KEY={KEY}",
        "ENABLE_OLLAMA_API=false",
        "ENABLE_FORWARD_USER_INFO_HEADERS=true",
        'DEFAULT_MODEL_METADATA={"capabilities":{"builtin_tools":false}}',
    )


def _continue(url: str) -> str:
    return f"""In ~/.continue/config.yaml:
models:
  - name: local
    provider: openai        # or ollama, then apiBase: {url}
    model: your-model
    apiBase: {url}/v1
    apiKey: {KEY}"""


def _langchain(url: str) -> str:
    return f"""In Python:
ChatOpenAI(model="your-model", base_url="{url}/v1", api_key="{KEY}")
ChatOllama(model="your-model", base_url="{url}")
ChatAnthropic(model="your-model", base_url="{url}", api_key="{KEY}")"""


CLIENTS = {
    "ollama": Client("the ollama command line and libraries", lambda url: {"OLLAMA_HOST": url}),
    "openai": Client(
        "OpenAI's SDKs, and LangChain's ChatOpenAI",
        lambda url: {"OPENAI_BASE_URL": f"{url}/v1", "OPENAI_API_BASE": f"{url}/v1", "OPENAI_API_KEY": KEY},
    ),
    "anthropic": Client(
        "Anthropic's SDKs and Claude Code",
        lambda url: {"ANTHROPIC_BASE_URL": url, "ANTHROPIC_AUTH_TOKEN": KEY},
        asked_for=True,
    ),
    "open-webui": Client("Open WebUI", settings=_open_webui),
    "continue": Client("Continue", settings=_continue),
    "langchain": Client("LangChain", settings=_langchain),
}


@dataclass(frozen=True, slots=True)
class Shell:
    """How a shell is told a variable."""

    export: str
    comment: str = "#"


SHELLS = {
    "sh": Shell('export {name}="{value}"'),
    "fish": Shell("set -gx {name} '{value}'"),
    "powershell": Shell("$env:{name} = '{value}'"),
    "cmd": Shell('set "{name}={value}"', "rem"),
}


@click.command()
@url_option
@click.option(
    "--client", "names", type=click.Choice(list(CLIENTS)), multiple=True, help="This client only; repeatable."
)
@click.option(
    "--shell",
    type=click.Choice(list(SHELLS)),
    default=USUAL_SHELL,
    show_default="powershell on Windows, else sh",
    help="Whose syntax.",
)
@click.option("--key", default=KEY, metavar="KEY", help="Of yours, where the proxy was given keys.")
@click.option(
    "--key-of",
    nargs=2,
    metavar="FILE NAME",
    help="Instead: that of a client in the file that `serve` has its --clients or its --api-key-file from.",
)
def command(
    url: str | None, names: tuple[str, ...], shell: str, key: str, key_of: tuple[str, str] | None
) -> None:
    """Print what to export or set so that clients go through the proxy.

    In bash and zsh: eval "$(clairvoyant env)". In PowerShell: clairvoyant env | Out-String |
    Invoke-Expression. What is no export is a comment, to be read. Clients of Anthropic's are sent
    here only if asked for: --client anthropic.
    """
    if key_of is not None:
        key = read_key_of(Path(key_of[0]), key_of[1])
    if not KEYS.fullmatch(key):
        raise ClairvoyantError(
            "the key: only letters, digits and -._~+/= mean the same in every shell", ExitCode.USAGE
        )
    base = local_url(url).rstrip("/")
    syntax = SHELLS[shell]
    for name in names or CLIENTS:
        client = CLIENTS[name]
        click.echo(f"{syntax.comment} {client.name}")
        if client.asked_for and not names:
            click.echo(f"{syntax.comment}   clairvoyant env --client {name}")
            continue
        for variable, value in client.variables(base).items():
            value = key if value == KEY else value
            click.echo(syntax.export.format(name=variable, value=value))
        for line in client.settings(base).splitlines():
            click.echo(f"{syntax.comment}   {line.replace(KEY, key)}")
