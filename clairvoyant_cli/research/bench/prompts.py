"""The prompts a bench sends: the project's own, or a file of the user's."""

from functools import partial
from pathlib import Path
from typing import Annotated

import msgspec

from clairvoyant_cli.errors import ClairvoyantError, ExitCode
from clairvoyant_cli.files import LARGE_BYTES, read_file
from clairvoyant_cli.research.bench.demo_questions import Question
from predictor.record import LengthClass

SHIPPED = Path(__file__).with_name("prompts.jsonl")
"""Written for this project, with lengths set by judgement; no model was trained on them."""


WANTED = (
    'want {"prompt": text, "output_tokens": number}, and "class": "short" or "long", "max_tokens": number, '
    "if any"
)


class _Line(msgspec.Struct):
    prompt: str
    tokens: Annotated[int, msgspec.Meta(ge=0)] | None = None
    output_tokens: Annotated[int, msgspec.Meta(ge=0)] | None = None
    known_class: LengthClass | None = msgspec.field(default=None, name="class")
    max_tokens: Annotated[int, msgspec.Meta(ge=1)] | None = None

    @property
    def length(self) -> int | None:
        """The answer's length; its limit where nothing else is said."""
        told = self.output_tokens if self.tokens is None else self.tokens
        return self.max_tokens if told is None else told


def load_prompts(path: Path = SHIPPED) -> dict[LengthClass, list[Question]]:
    """Read prompts by length class: JSONL, one {"prompt": text, "output_tokens": answer length} a line.

    `tokens` is another name for `output_tokens`. "class" says what an answer counts as, whatever its length;
    "max_tokens" is the limit that its request asks for, and its length if no other is named.
    """
    refuse = partial(ClairvoyantError, exit_code=ExitCode.USAGE)
    lines = read_file(path, "the prompts", LARGE_BYTES).splitlines()
    pools: dict[LengthClass, list[Question]] = {each: [] for each in LengthClass}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            read = msgspec.json.decode(line, type=_Line)
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            raise refuse(f"{path}:{number}: {WANTED}: {error}") from None
        if read.length is None:
            raise refuse(f"{path}:{number}: {WANTED}: there is no number")
        question = Question("", read.prompt, max(1, read.length), read.known_class, read.max_tokens)
        pools[question.length_class].append(question)
    if not pools[LengthClass.SHORT] or not pools[LengthClass.LONG]:
        raise refuse(
            f"{path}: at least one short prompt (below 200 tokens) and one long one (800 or more) are needed"
        )
    return pools
