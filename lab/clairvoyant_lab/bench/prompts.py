"""Reads the prompts that a bench sends: the project's own, or a file of the user's."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import msgspec

from clairvoyant_cli.demo import questions as demo
from clairvoyant_cli.errors import ClairvoyantError, ExitCode
from clairvoyant_cli.files import LARGE_BYTES, read_file
from predictor.record import LengthClass

FORMAT = (
    'want {"prompt": text, "output_tokens": number}, and "class": "short" or "long", "max_tokens": number, '
    "if any"
)


@dataclass(frozen=True, slots=True)
class Question(demo.Question):
    """A question of a bench."""

    known_class: LengthClass | None = None  # overrides the class of its answer's length
    max_tokens: int | None = None  # the limit of the request where the bench does not set the length

    @property
    def length_class(self) -> LengthClass:
        return self.known_class or LengthClass.of(self.tokens)


class _Line(msgspec.Struct):
    prompt: str
    title: str = ""
    tokens: Annotated[int, msgspec.Meta(ge=0)] | None = None
    output_tokens: Annotated[int, msgspec.Meta(ge=0)] | None = None
    known_class: LengthClass | None = msgspec.field(default=None, name="class")
    max_tokens: Annotated[int, msgspec.Meta(ge=1)] | None = None


def load_prompts(path: Path = demo.QUESTIONS) -> dict[LengthClass, list[Question]]:
    """Read prompts by length class: JSONL, one {"prompt": text, "output_tokens": answer length} a line.

    `tokens` is another name for `output_tokens`. "class" overrides the class of the length; "max_tokens" is
    the limit of the request, and the length if no other is given. ClairvoyantError if a line is invalid, or
    there is no short or no long prompt.
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
            raise refuse(f"{path}:{number}: {FORMAT}: {error}") from None
        given = (each for each in (read.tokens, read.output_tokens, read.max_tokens) if each is not None)
        length = next(given, None)
        if length is None:
            raise refuse(f"{path}:{number}: {FORMAT}: there is no number")
        question = Question(read.prompt, max(1, length), read.title, read.known_class, read.max_tokens)
        pools[question.length_class].append(question)
    if not pools[LengthClass.SHORT] or not pools[LengthClass.LONG]:
        raise refuse(
            f"{path}: at least one short prompt (below 200 tokens) and one long one (800 or more) are needed"
        )
    return pools
