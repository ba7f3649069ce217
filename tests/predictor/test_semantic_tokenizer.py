"""WordPiece as BERT cuts it; the expected pieces are those of the reference tokenizer of all-MiniLM-L6-v2."""

import random
from pathlib import Path

import pytest

from predictor.errors import ModelError
from predictor.loading import MODELS, SEMANTIC
from predictor.semantic.model import VOCABULARY
from predictor.semantic.tokenizer import HEAD_PIECES, MAX_PIECES, TAIL_PIECES, Tokenizer

SHIPPED = MODELS / SEMANTIC / VOCABULARY


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer(SHIPPED)


def _words(tokenizer: Tokenizer, text: str) -> list[str]:
    pieces = SHIPPED.read_text(encoding="utf-8").split("\n")
    return [pieces[place] for place in tokenizer.pieces(text)]


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        (
            "Summarize the café's naïve menu, s'il vous plaît!",
            "sum ##mar ##ize the cafe ' s naive menu , s ' il vo ##us pl ##ai ##t !",
        ),
        ("Straße İstanbul Ångström ﬁne ½", "st ##raße istanbul ang ##strom ﬁ ##ne ½"),
        (
            "请用一句话解释什么是通货膨胀。",
            "[UNK] [UNK] 一 [UNK] [UNK] [UNK] [UNK] [UNK] [UNK] [UNK] [UNK] [UNK] [UNK] [UNK] 。",
        ),
        ("がっこうで テスト", "か ##っ ##こ ##う ##て テ ##ス ##ト"),
        ("한국어 설명", "ᄒ ##ᅡ ##ᆫ ##ᄀ ##ᅮ ##ᆨ ##ᄋ ##ᅥ ᄉ ##ᅥ ##ᆯ ##ᄆ ##ᅧ ##ᆼ"),
        ("C++ and C#: $5 <b>x^2</b> ~50%", "c + + and c # : $ 5 < b > x ^ 2 < / b > ~ 50 %"),
        ("hi😀there ❤️ ok", "[UNK] [UNK] ok"),
        ("tab\tnew\nline\x00nul\u200bzero\xadsoft\u3000wide", "tab new linen ##ul ##zer ##oso ##ft wide"),
        (
            "unbelievableness pneumonoultramicroscopic",
            "unbelievable ##ness p ##ne ##um ##ono ##ult ##ram ##ic ##ros ##copic",
        ),
        ("Σίσυφος עברית हिन्दी ไทย", "σ ##ι ##σ ##υ ##φ ##ος ע ##ב ##ר ##י ##ת ह ##ि ##न ##द ##ी [UNK]"),
        ("“quotes” — dash… ¿qué?", "“ quotes ” — dash … ¿ que ?"),
        ("1234567890 3.14 2,000-word", "123 ##45 ##6 ##7 ##8 ##90 3 . 14 2 , 000 - word"),
    ],
)
def test_text_is_cut_as_the_reference_cuts_it(tokenizer: Tokenizer, text: str, pieces: str) -> None:
    assert _words(tokenizer, text) == pieces.split()


def test_a_word_too_long_to_be_one_is_unknown(tokenizer: Tokenizer) -> None:
    assert _words(tokenizer, "x" * 101) == ["[UNK]"]
    assert "[UNK]" not in _words(tokenizer, "x" * 100)


def test_of_a_long_text_both_ends_are_read(tokenizer: Tokenizer) -> None:
    middle = tokenizer.read(f"{'hello ' * 200}{'cat ' * 5000}{'world ' * 200}")
    assert len(middle) == MAX_PIECES
    assert middle[1 : 1 + HEAD_PIECES] == tokenizer.pieces("hello " * HEAD_PIECES)
    assert middle[-1 - TAIL_PIECES : -1] == tokenizer.pieces("world " * TAIL_PIECES)


def test_a_short_text_is_read_whole(tokenizer: Tokenizer) -> None:
    start, *pieces, end = tokenizer.read("What is the capital of France?")
    assert pieces == tokenizer.pieces("What is the capital of France?")
    assert tokenizer.read("") == [start, end]


def test_any_text_can_be_read(tokenizer: Tokenizer) -> None:
    generator = random.Random(1)
    for _ in range(200):
        text = "".join(chr(generator.randrange(0x11000)) for _ in range(60))
        assert 2 <= len(tokenizer.read(text)) <= MAX_PIECES


@pytest.mark.parametrize("text", ["", "one\ntwo\n", "[UNK]\n[CLS]\n"])
def test_a_file_that_is_no_vocabulary_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "vocab.txt"
    path.write_text(text)
    with pytest.raises(ModelError, match="cannot be read as a vocabulary"):
        Tokenizer(path)
