"""`clairvoyant env`: prints environment variables and settings that send clients through the proxy."""

import re
from collections.abc import Callable
from pathlib import Path

import click

from clairvoyant_cli.commands.options import url_option
from clairvoyant_cli.errors import ClairvoyantError, ExitCode
from clairvoyant_cli.proxy.access.keys import read_key_of
from clairvoyant_cli.state.client import local_url
from clairvoyant_cli.system import USUAL_SHELL

KEY = "clairvoyant"
"""Placeholder key: most clients need one, the proxy only if it has keys.

It replaces a real OpenAI key in the environment, which must not be sent to the proxy.
"""


KEYS = re.compile(r"[A-Za-z0-9._~+/=-]+", re.ASCII)


def _open_webui(url: str) -> str:
    inside = url.replace("127.0.0.1", "host.docker.internal").replace("localhost", "host.docker.internal")
    lines = (
        "In a container (the proxy must listen beyond loopback, with keys):",
        "docker run -d -p 3000:8080 --add-host=host.docker.internal:host-gateway "
        "-v open-webui:/app/backend/data "
        + " ".join(f"-e '{each}'" for each in _open_webui_variables(inside))
        + " ghcr.io/open-webui/open-webui:main",
        "Without a container, set these, then run open-webui serve:",
        *_open_webui_variables(url),
        f"If it runs already: Admin Panel, Settings, Connections, OpenAI API: {url}/v1, key {KEY}",
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


VARIABLES: dict[str, tuple[str, dict[str, str]]] = {
    "ollama": ("the ollama command line and libraries", {"OLLAMA_HOST": "{url}"}),
    "openai": (
        "OpenAI's SDKs, and LangChain's ChatOpenAI",
        {"OPENAI_BASE_URL": "{url}/v1", "OPENAI_API_BASE": "{url}/v1", "OPENAI_API_KEY": "{key}"},
    ),
    "anthropic": (
        "Anthropic's SDKs and Claude Code",
        {"ANTHROPIC_BASE_URL": "{url}", "ANTHROPIC_AUTH_TOKEN": "{key}"},
    ),
}
"""Clients with environment variables: a title, and the variables."""

INSTRUCTIONS: dict[str, tuple[str, Callable[[str], str]]] = {
    "open-webui": ("Open WebUI", _open_webui),
    "continue": ("Continue", _continue),
    "langchain": ("LangChain", _langchain),
}
"""Clients with settings of their own: a title, and instructions for a URL."""

CLIENTS = (*VARIABLES, *INSTRUCTIONS)

ON_REQUEST = ("anthropic",)
"""Clients that normally talk to their vendor, so they are redirected only on request."""

SHELLS = {
    "sh": ('export {name}="{value}"', "#"),
    "fish": ("set -gx {name} '{value}'", "#"),
    "powershell": ("$env:{name} = '{value}'", "#"),
    "cmd": ('set "{name}={value}"', "rem"),
}
"""The syntax of a variable and of a comment."""


@click.command()
@url_option
@click.option(
    "--client", "names", type=click.Choice(CLIENTS), multiple=True, help="Only this client. Repeatable."
)
@click.option(
    "--shell",
    type=click.Choice(list(SHELLS)),
    default=USUAL_SHELL,
    show_default="powershell on Windows, else sh",
    help="Shell syntax.",
)
@click.option("--key", default=KEY, metavar="KEY", help="Your API key, if the proxy has keys.")
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
    Invoke-Expression. Lines without `export` are comments with manual steps. Anthropic clients
    are included only with --client anthropic.
    """
    if key_of is not None:
        key = read_key_of(Path(key_of[0]), key_of[1])
    if not KEYS.fullmatch(key):
        raise ClairvoyantError(
            "the key may have only letters, digits and -._~+/= (safe in every shell)", ExitCode.USAGE
        )
    base = local_url(url).rstrip("/")
    export, comment = SHELLS[shell]
    for name in names or CLIENTS:
        title, _ = VARIABLES.get(name) or INSTRUCTIONS[name]
        click.echo(f"{comment} {title}")
        if name in ON_REQUEST and not names:
            click.echo(f"{comment}   clairvoyant env --client {name}")
        elif name in VARIABLES:
            for variable, value in VARIABLES[name][1].items():
                click.echo(export.format(name=variable, value=value.format(url=base, key=key)))
        else:
            for line in INSTRUCTIONS[name][1](base).splitlines():
                click.echo(f"{comment}   {line.replace(KEY, key)}")
