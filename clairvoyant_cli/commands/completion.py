"""`clairvoyant completion`: prints shell completion scripts."""

import click
from click.shell_completion import get_completion_class

VARIABLE = "_CLAIRVOYANT_COMPLETE"  # set by the completion scripts; read by click
WHERE = {
    "bash": 'eval "$(clairvoyant completion bash)"      # in ~/.bashrc',
    "zsh": 'eval "$(clairvoyant completion zsh)"       # in ~/.zshrc, after compinit',
    "fish": "clairvoyant completion fish | source      # in ~/.config/fish/config.fish",
}


@click.command(epilog="\b\n" + "\n".join(WHERE.values()))
@click.argument("shell", type=click.Choice(list(WHERE)))
@click.pass_context
def command(context: click.Context, shell: str) -> None:
    """Print the completion script for your shell."""
    found = get_completion_class(shell)
    assert found is not None  # noqa: S101 - click has all three
    click.echo(found(context.find_root().command, {}, "clairvoyant", VARIABLE).source())
