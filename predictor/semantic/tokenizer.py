"""BERT's uncased WordPiece: text to the ids of word pieces (Devlin et al., 2019, section 3).

A word that the vocabulary holds is one piece; another is cut greedily into the longest pieces there are.
Nothing is remembered from one text to the next.
"""

from pathlib import Path
from unicodedata import category, normalize

from predictor.errors import ModelError

UNKNOWN, START, END = "[UNK]", "[CLS]", "[SEP]"

HEAD_PIECES = 88
TAIL_PIECES = 36  # of a longer text only its two ends are read: that is where an instruction stands
MAX_PIECES = HEAD_PIECES + TAIL_PIECES + 2  # the longest reading, its start and its end marked
END_CHARACTERS = 1000  # of a text longer than two ends of this length only the ends are looked at
_MAX_WORD = 100  # characters; a longer word is unknown

_CHINESE = (
    *((0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F)),
    *((0x2B740, 0x2B81F), (0x2B920, 0x2CEAF), (0xF900, 0xFAFF), (0x2F800, 0x2FA1F)),
)


class _Places(dict[int, str]):
    """What each character becomes: a blank, nothing, a word of its own, or itself in lower case."""

    def __missing__(self, code: int) -> str:
        self[code] = plain = _plain(chr(code))
        return plain


_places = _Places()


class Tokenizer:
    """Texts to ids, over one vocabulary."""

    def __init__(self, vocabulary: Path) -> None:
        """Read a vocabulary, one piece a line; ModelError if it cannot be used."""
        try:
            pieces = vocabulary.read_text(encoding="utf-8").split("\n")
            self._ids = {piece: place for place, piece in enumerate(pieces) if piece}
            self._unknown, self._start, self._end = (self._ids[mark] for mark in (UNKNOWN, START, END))
        except (OSError, ValueError, KeyError) as error:
            raise ModelError(f"{vocabulary} cannot be read as a vocabulary ({error})") from None

    def read(self, text: str) -> list[int]:
        """Return the ids of a prompt's pieces, at most `MAX_PIECES`, its start and its end marked."""
        if len(text) > 2 * END_CHARACTERS:
            head, tail = self.pieces(text[:END_CHARACTERS]), self.pieces(text[-END_CHARACTERS:])
        else:
            head, tail = self.pieces(text), []
        pieces = head + tail
        if len(pieces) > HEAD_PIECES + TAIL_PIECES:
            pieces[HEAD_PIECES:-TAIL_PIECES] = ()
        return [self._start, *pieces, self._end]

    def pieces(self, text: str) -> list[int]:
        """Return the ids of all pieces of a text."""
        ids: list[int] = []
        known = self._ids.get
        for word in normalize("NFD", text).translate(_places).split(" "):
            if word:
                place = known(word)
                if place is None:
                    ids.extend(self._cut(word))
                else:
                    ids.append(place)
        return ids

    def _cut(self, word: str) -> list[int]:
        if len(word) > _MAX_WORD:
            return [self._unknown]
        found: list[int] = []
        start, mark = 0, ""
        while start < len(word):
            for end in range(len(word), start, -1):
                place = self._ids.get(mark + word[start:end])
                if place is not None:
                    break
            else:
                return [self._unknown]
            found.append(place)
            start, mark = end, "##"
        return found


def _plain(character: str) -> str:
    if character in "\t\n\r":
        return " "
    kind = category(character)
    if kind[0] == "C" or kind == "Mn" or character == "\ufffd":
        return ""
    if character.isspace():
        return " "
    if kind[0] == "P" or "!" <= character <= "/" or ":" <= character <= "@" or character in "[\\]^_`{|}~":
        return f" {character} "
    code = ord(character)
    if any(first <= code <= last for first, last in _CHINESE):
        return f" {character} "
    return character.lower()
