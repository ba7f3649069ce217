"""Cues to how much of a running answer is left: counts of its text so far, and hashed words.

Of the text, the beginning, the last hundred tokens and the open line are kept while the answer runs.
"""

import re
from math import log
from zlib import crc32

import numpy as np
import numpy.typing as npt

LOOK_TOKENS = 32
BUCKETS = 1 << 14
WORD_VALUE = 0.2  # how freely the weight of a word may change, where that of a cue of unit spread is 1
AGE_ONLY = 6  # the first cues: the prediction and the age

_HEAD, _TAIL, _END, _NEAR = 300, 400, 130, 25
_NAMES = "two three four five six seven eight nine ten twelve fifteen twenty"
_NUMBERS = dict(zip(_NAMES.split(), (*range(2, 11), 12, 15, 20), strict=True))
_ANNOUNCED = re.compile(rf"\b(\d{{1,2}}|{'|'.join(_NUMBERS)})\b(?=[\w\s'-]{{0,40}}\b\w+s\b)", re.IGNORECASE)
_ITEM = re.compile(r"\s{0,3}(?:\*\*|#+ )?(?:\w+ )?(\d{1,2})[.):]")
_BULLET = re.compile(r"\s*[-*•] ")
_HEADING = re.compile(r"#{1,6} |\*\*[^*\n]+\*\*:?$")
_WORD = re.compile(r"\w+|[^\w\s]+|\n+")
_CLOSING = [
    re.compile(rf"\b(?:{phrases})\b", re.IGNORECASE)
    for phrases in (
        r"in conclusion|in summary|to sum up|overall|to summari[sz]e|conclusion",
        r"let me know|hope (?:this|that)|feel free|good luck|enjoy|happy to help",
        r"finally|lastly|remember|by following|with these",
        r"answer is|boxed|therefore",
        r"sincerely|regards|yours|the end",
        r"explanation|this (?:code|function|script|program)|example usage|note that",
    )
]

Floats = npt.NDArray[np.float32]


class AnswerSoFar:
    """Counts of an answer's text so far."""

    def __init__(self, prompt: str) -> None:
        self._asked, self._prompt = _announced(prompt[-_HEAD:]), log(1 + len(prompt))
        self._characters = self._ended = 0
        self._head = self._tail = self._line = ""
        self._lines = self._bullets = self._headings = self._fences = 0
        self._paragraphs = 1
        self._item = self._item_at = self._fence_at = self._paragraph_at = self._first_paragraph = 0

    def add(self, text: str) -> None:
        """Take the text that has come since."""
        self._characters += len(text)
        self._head = (self._head + text)[:_HEAD] if len(self._head) < _HEAD else self._head
        self._tail = (self._tail + text)[-_TAIL:]
        *lines, self._line = (self._line + text).split("\n")
        for line in lines:
            self._note(line)

    def _note(self, line: str) -> None:
        self._lines += 1
        if line.lstrip().startswith("```"):
            self._fences, self._fence_at = self._fences + 1, self._ended
        elif not line.strip():
            self._paragraphs, self._paragraph_at = self._paragraphs + 1, self._ended
            self._first_paragraph = self._first_paragraph or self._ended
        elif found := _ITEM.match(line):
            self._item, self._item_at = min(int(found[1]), 50), self._ended
        self._bullets += _BULLET.match(line) is not None
        self._headings += _HEADING.match(line) is not None
        self._ended += len(line) + 1

    def cues(self, age: float, mean: float, q90: float) -> list[float]:
        """Return the cues after `age` tokens of `mean` expected; the first `AGE_ONLY` do without the text."""
        tail, characters, line = self._tail, self._characters, self._line
        item, item_at = self._item, self._item_at
        if found := _ITEM.match(line):
            item, item_at = min(int(found[1]), 50), self._ended
        wanted = _announced(self._head) or self._asked
        due = max(wanted - item, 0) if item and wanted else 0
        stripped, end = tail.rstrip()[-1:], tail[-_END:]
        paragraph = characters - self._paragraph_at
        row = [
            log(age), log(mean), log(age / mean), log(max(q90 / mean, 1.0)), log(1 + max(mean - age, 0.0)),
            age / mean,
            item, wanted, due, item / wanted if wanted else 0.0, log(1 + due * age / max(item, 1)),
            item > 0, 0 < wanted <= item, log(1 + characters - item_at) if item else 0.0,
            self._bullets, self._headings, self._fences % 2, self._fences,
            log(1 + characters - self._fence_at),
            log(self._paragraphs), log(1 + paragraph), log(1 + characters / self._paragraphs),
            log(1 + self._first_paragraph), log(1 + self._lines), log(1 + len(line)),
            log(1 + tail.count("\n")),
            stripped in ".!?\"'`)", tail.endswith("\n"), stripped == ":", tail.count("|"),
            tail.count("$") + tail.count("\\"), tail.count("{") - tail.count("}"), self._asked > 0,
            self._prompt,
            not tail.isascii(), log(1 + characters / age),
        ]  # fmt: skip
        for phrases in _CLOSING:
            row += [phrases.search(end) is not None, phrases.search(tail) is not None]
        return [float(each) for each in row]

    def words(self) -> list[int]:
        """Return the buckets of the first words, and of the last hundred tokens' words and pairs of words."""
        found = _WORD.findall(self._tail.lower())
        near = found[-_NEAR:]
        grams = [*found, *[f"near {each}" for each in near], *map("{} {}".format, near, near[1:])]
        grams += [f"last {each}" for each in found[-1:]]
        grams += [f"first {each}" for each in _WORD.findall(self._head[:80].lower())]
        return list({crc32(gram.encode("utf-8", "replace")) % BUCKETS for gram in grams})


def bent(dense: Floats) -> Floats:
    """Return standardised cues, (n, m), their halves above the mean and products with two others."""
    dense = np.clip(dense, -4.0, 4.0)
    text = dense[:, AGE_ONLY:]
    parts = [dense, np.maximum(dense, 0.0), text * dense[:, :1], text * dense[:, 2:3]]
    result: Floats = np.hstack(
        [*parts, dense[:, :AGE_ONLY] * dense[:, 2:3], dense[:, :AGE_ONLY] * dense[:, 3:4]]
    )
    return result


def _announced(text: str) -> int:
    """Return the number of items that a text announces, 0 if none."""
    found = (_NUMBERS.get(each.lower()) or int(each) for each in _ANNOUNCED.findall(text))
    return next((number for number in found if 2 <= number <= 50), 0)
