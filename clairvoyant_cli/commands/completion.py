"""`clairvoyant completion`: prints the script that completes commands in a shell."""

import click
from click.shell_completion import get_completion_class


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Print the script that completes commands and flags in a shell.

    In ~/.bashrc: eval "$(clairvoyant completion bash)". In ~/.zshrc: eval "$(clairvoyant completion
    zsh)". In ~/.config/fish/config.fish: clairvoyant completion fish | source
    """
    script = get_completion_class(shell)
    assert script is not None  # noqa: S101 - the choices are click's
    click.echo(script(ctx.find_root().command, {}, "clairvoyant", "_CLAIRVOYANT_COMPLETE").source())
