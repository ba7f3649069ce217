"""`clairvoyant env`: what to export or set so that a client goes through the proxy."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import click

from clairvoyant_cli.commands.options import url_option
from clairvoyant_cli.control import local_url
from clairvoyant_cli.errors import ClairvoyantError, ExitCode
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
    return f"""In a container the host has another name, and the proxy must listen beyond loopback:
docker run -p 3000:8080 --add-host=host.docker.internal:host-gateway -e OLLAMA_BASE_URL={inside} \
-e OPENAI_API_BASE_URL={inside}/v1 -e OPENAI_API_KEY={KEY} ghcr.io/open-webui/open-webui:main
Or in the browser: Admin settings, Connections: {url} (Ollama), {url}/v1 (OpenAI)"""


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
def command(url: str | None, names: tuple[str, ...], shell: str, key: str) -> None:
    """Print what to export or set so that clients go through the proxy.

    In bash and zsh: eval "$(clairvoyant env)". In PowerShell: clairvoyant env | Out-String |
    Invoke-Expression. What is no export is a comment, to be read. Clients of Anthropic's are sent
    here only if asked for: --client anthropic.
    """
    if not KEYS.fullmatch(key):
        raise ClairvoyantError(
            "--key: only letters, digits and -._~+/= mean the same in every shell", ExitCode.USAGE
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
