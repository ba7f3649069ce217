"""`clairvoyant completion`: what makes a shell complete commands and flags."""

import os

import click
from click.shell_completion import (
    CompletionItem,
    ShellComplete,
    add_completion_class,
    get_completion_class,
)

VARIABLE = "_CLAIRVOYANT_COMPLETE"
"""Set by the scripts: what click is to complete for."""

WHERE = {
    "bash": 'eval "$(clairvoyant completion bash)"      # in ~/.bashrc',
    "zsh": 'eval "$(clairvoyant completion zsh)"       # in ~/.zshrc, after compinit',
    "fish": "clairvoyant completion fish | source      # in ~/.config/fish/config.fish",
    "powershell": "clairvoyant completion powershell | Out-String | Invoke-Expression    # in $PROFILE",
}


class PowerShell(ShellComplete):
    """Windows PowerShell 5 and PowerShell 7 on any system, which click does not know.

    The words before the one to complete go over in COMP_WORDS, one a line, so that nothing has to be quoted.
    Where nothing comes back PowerShell completes files by itself.
    """

    name = "powershell"
    source_template = """\
Register-ArgumentCompleter -Native -CommandName %(prog_name)s -ScriptBlock {
    param($word, $command, $cursor)
    $before = $command.CommandElements | Where-Object { $_.Extent.EndOffset -lt $cursor } | ForEach-Object {
        if ($_ -is [System.Management.Automation.Language.StringConstantExpressionAst]) { $_.Value }
        else { $_.Extent.Text }
    }
    $env:COMP_WORDS = $before -join "`n"
    $env:COMP_WORD = $word
    $env:%(complete_var)s = 'powershell_complete'
    try {
        %(prog_name)s | Where-Object { $_ } | ForEach-Object {
            $value, $help = $_ -split "`t", 2
            [System.Management.Automation.CompletionResult]::new($value, $value, 'ParameterValue', $help)
        }
    }
    finally { Remove-Item Env:COMP_WORDS, Env:COMP_WORD, Env:%(complete_var)s -ErrorAction SilentlyContinue }
}
"""

    def get_completion_args(self) -> tuple[list[str], str]:
        """Return the words before, without the program's name, and the one to complete."""
        return os.environ.get("COMP_WORDS", "").split("\n")[1:], os.environ.get("COMP_WORD", "")

    def format_completion(self, item: CompletionItem[str]) -> str:
        """Return a word, and what to show beside it, which PowerShell wants not to be empty."""
        return f"{item.value}\t{' '.join((item.help or item.value).split())}"

    def complete(self) -> str:
        """Return the completions, a line each; none for files and directories."""
        words, incomplete = self.get_completion_args()
        items = self.get_completions(words, incomplete)
        return "\n".join(self.format_completion(item) for item in items if item.type == "plain")


add_completion_class(PowerShell)


@click.command(epilog="\b\n" + "\n".join(WHERE.values()))
@click.argument("shell", type=click.Choice(list(WHERE)))
@click.pass_context
def command(context: click.Context, shell: str) -> None:
    """Print the completion script for your shell."""
    found = get_completion_class(shell)
    assert found is not None  # noqa: S101 - click knows three, and the fourth is ours
    click.echo(found(context.find_root().command, {}, "clairvoyant", VARIABLE).source())
