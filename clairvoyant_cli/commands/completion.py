"""`clairvoyant completion`: prints shell completion scripts."""

import os

import click
from click.shell_completion import CompletionItem, ShellComplete, add_completion_class, get_completion_class

VARIABLE = "_CLAIRVOYANT_COMPLETE"
"""Set by the completion scripts; read by click."""

WHERE = {
    "bash": 'eval "$(clairvoyant completion bash)"      # in ~/.bashrc',
    "zsh": 'eval "$(clairvoyant completion zsh)"       # in ~/.zshrc, after compinit',
    "fish": "clairvoyant completion fish | source      # in ~/.config/fish/config.fish",
    "powershell": "clairvoyant completion powershell | Out-String | Invoke-Expression    # in $PROFILE",
}


class PowerShell(ShellComplete):
    """Completion for Windows PowerShell 5 and PowerShell 7, which click does not support.

    COMP_WORDS has the words before the cursor, one per line, so that nothing needs quoting. Without results
    PowerShell completes file names.
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
        """Return the words before the cursor, without the program name, and the incomplete word."""
        return os.environ.get("COMP_WORDS", "").split("\n")[1:], os.environ.get("COMP_WORD", "")

    def format_completion(self, item: CompletionItem[str]) -> str:
        """Return a completion and its tooltip, which must not be empty."""
        return f"{item.value}\t{' '.join((item.help or item.value).split())}"

    def complete(self) -> str:
        """Return the completions, one per line; none for files and directories."""
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
    assert found is not None  # noqa: S101 - three built in, PowerShell added above
    click.echo(found(context.find_root().command, {}, "clairvoyant", VARIABLE).source())
