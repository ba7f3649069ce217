"""The prompts a bench sends: the project's own, or a file of the user's."""

from functools import partial
from pathlib import Path

import msgspec

from clairvoyant_cli.bench.questions import Question
from clairvoyant_cli.errors import ClairvoyantError, ExitCode
from predictor.record import LengthClass

SHIPPED = Path(__file__).with_name("prompts.jsonl")
"""Written for this project, with lengths set by judgement; no model was trained on them."""


class _Line(msgspec.Struct):
    prompt: str
    tokens: int | None = None
    output_tokens: int | None = None


def load_prompts(path: Path = SHIPPED) -> dict[LengthClass, list[Question]]:
    """Read prompts by length class: JSONL, one {"prompt": text, "tokens": answer length} a line.

    `output_tokens` is another name for `tokens`.
    """
    refuse = partial(ClairvoyantError, exit_code=ExitCode.USAGE)
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise refuse(f"cannot read the prompts {path}: {error.strerror}") from None
    pools: dict[LengthClass, list[Question]] = {each: [] for each in LengthClass}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            read = msgspec.json.decode(line, type=_Line)
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            raise refuse(f'{path}:{number}: want {{"prompt": text, "tokens": number}}: {error}') from None
        tokens = read.output_tokens if read.tokens is None else read.tokens
        if tokens is None:
            raise refuse(f'{path}:{number}: want {{"prompt": text, "tokens": number}}: there is no number')
        question = Question("", read.prompt, max(1, tokens))
        pools[question.length_class].append(question)
    if not pools[LengthClass.SHORT] or not pools[LengthClass.LONG]:
        raise refuse(f"{path}: at least one prompt below 200 tokens and one of 800 or more are needed")
    return pools
