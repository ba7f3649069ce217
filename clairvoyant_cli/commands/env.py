"""`clairvoyant env`: prints environment variables and settings that send clients through the proxy."""

import re
from pathlib import Path

import click

from clairvoyant_cli.commands.options import url_option
from clairvoyant_cli.errors import InputError
from clairvoyant_cli.proxy.access.keys import read_key_of
from clairvoyant_cli.state.client import local_url
from clairvoyant_cli.system import USUAL_SHELL

KEY = "clairvoyant"
"""Placeholder key: most clients need one, the proxy only if it has keys.

It replaces a real OpenAI key in the environment, which must not be sent to the proxy.
"""


KEYS = re.compile(r"[A-Za-z0-9._~+/=-]+", re.ASCII)


OPEN_WEBUI = (
    "OPENAI_API_BASE_URL={url}/v1",
    "OPENAI_API_KEY={key}",
    "ENABLE_OLLAMA_API=false",
    "ENABLE_FORWARD_USER_INFO_HEADERS=true",
    'DEFAULT_MODEL_METADATA={{"capabilities":{{"builtin_tools":false}}}}',
)
"""Environment of Open WebUI, as templates."""

OPEN_WEBUI_IN_DOCKER = " ".join(f"-e '{each}'" for each in OPEN_WEBUI).replace("{url}", "{docker_url}")

CLAUDE_CODE = {"CLAUDE_CODE_ATTRIBUTION_HEADER": "0"}
"""Turns off the attribution header, which changes the first line of each prompt: no KV cache helps then."""

VARIABLES = {
    "ollama": ("the ollama command line and libraries", {"OLLAMA_HOST": "{url}"}),
    "openai": (
        "OpenAI's SDKs, and LangChain's ChatOpenAI",
        {"OPENAI_BASE_URL": "{url}/v1", "OPENAI_API_BASE": "{url}/v1", "OPENAI_API_KEY": "{key}"},
    ),
    "anthropic": (
        "Anthropic's SDKs and Claude Code",
        {"ANTHROPIC_BASE_URL": "{url}", "ANTHROPIC_AUTH_TOKEN": "{key}"} | CLAUDE_CODE,
    ),
}
"""Clients with environment variables: a title, and the variables."""

INSTRUCTIONS = {
    "open-webui": (
        "Open WebUI",
        "In a container (the proxy must listen beyond loopback, with keys):\n"
        "docker run -d -p 3000:8080 --add-host=host.docker.internal:host-gateway "
        f"-v open-webui:/app/backend/data {OPEN_WEBUI_IN_DOCKER} ghcr.io/open-webui/open-webui:main\n"
        "Without a container, set these, then run open-webui serve:\n"
        + "\n".join(OPEN_WEBUI)
        + "\nIf it runs already: Admin Panel, Settings, Connections, OpenAI API: {url}/v1, key {key}",
    ),
    "continue": (
        "Continue",
        """In ~/.continue/config.yaml:
models:
  - name: local
    provider: openai        # or ollama, then apiBase: {url}
    model: your-model
    apiBase: {url}/v1
    apiKey: {key}""",
    ),
    "langchain": (
        "LangChain",
        """In Python:
ChatOpenAI(model="your-model", base_url="{url}/v1", api_key="{key}")
ChatOllama(model="your-model", base_url="{url}")
ChatAnthropic(model="your-model", base_url="{url}", api_key="{key}")""",
    ),
}
"""Clients with settings of their own: a title, and a template of instructions."""

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
        raise InputError("the key may have only letters, digits and -._~+/= (safe in every shell)")
    base = local_url(url).rstrip("/")
    docker = base.replace("127.0.0.1", "host.docker.internal").replace("localhost", "host.docker.internal")
    export, comment = SHELLS[shell]
    for name in names or CLIENTS:
        click.echo(f"{comment} {(VARIABLES | INSTRUCTIONS)[name][0]}")
        if name in ON_REQUEST and not names:
            click.echo(f"{comment}   clairvoyant env --client {name}")
        elif name in VARIABLES:
            for variable, value in VARIABLES[name][1].items():
                click.echo(export.format(name=variable, value=value.format(url=base, key=key)))
        else:
            text = INSTRUCTIONS[name][1].format(url=base, key=key, docker_url=docker)
            for line in text.splitlines():
                click.echo(f"{comment}   {line}")
