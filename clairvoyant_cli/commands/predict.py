"""`clairvoyant predict`: how long the answer to one prompt will be, and why."""

import json
import sys
from dataclasses import asdict

import click

from clairvoyant_cli.commands.options import json_option, predictor_option
from clairvoyant_cli.commands.setup import told_plainly


@click.command()
@click.argument("prompt", default="-")
@click.option("--system", default="", help="The system prompt that goes with it.")
@click.option("--max-tokens", type=click.IntRange(min=0), help="The client's cap on the answer.")
@predictor_option
@json_option("Print one JSON object.")
def command(prompt: str, system: str, max_tokens: int | None, directory: str, as_json: bool) -> None:
    """Predict the length of the answer to PROMPT ("-" or nothing: read it from standard input)."""
    import predictor
    from predictor.record import PromptView

    if prompt == "-":
        if sys.stdin.isatty():
            click.echo("type the prompt, then Ctrl-D (or give it as an argument)", err=True)
        prompt = sys.stdin.buffer.read().decode("utf-8", "replace")
    with told_plainly():
        loaded = predictor.load(directory)
    view = PromptView(prompt, system=system, max_tokens=max_tokens)
    prediction = loaded.predict(view)
    reasons = loaded.explain(view)
    if as_json:
        fields = {**asdict(prediction), "length_class": prediction.length_class.value, "reasons": reasons}
        fields.pop("memo")
        click.echo(json.dumps(fields))
        return
    click.echo(
        f"{prediction.length_class}  short {prediction.p_short:.0%}  medium {prediction.p_medium:.0%}  "
        f"long {prediction.p_long:.0%}"
    )
    click.echo(
        f"expected {prediction.expected_tokens:.0f} tokens, 9 in 10 below {prediction.q90_tokens:.0f}"
        f"  (predictor {prediction.source})"
    )
    for reason, effect in reasons:
        click.echo(f"  {effect:+.2f}  {reason}")
