"""How many tokens llama.cpp's host cache holds: by the command line, and by the model's own file."""

from math import inf
from pathlib import Path
from typing import Any

import pytest

from clairvoyant_cli.backends.kv_cache_size import bytes_a_token, cache_tokens
from clairvoyant_cli.backends.process_inspection import Started
from tests.fakes.tiny_gguf import HEADS, LAYERS, WIDTH, write_tiny_model

MIB = 1024 * 1024
A_TOKEN = LAYERS * WIDTH * 2  # values: keys and values of all heads
LLAMA = {
    "general.architecture": "llama",
    "llama.block_count": 30,
    "llama.embedding_length": 576,
    "llama.attention.head_count": 9,
    "llama.attention.head_count_kv": 3,
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    assert WIDTH % HEADS == 0
    return write_tiny_model(tmp_path_factory.mktemp("models") / "tiny.gguf")


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("-m tiny.gguf --cache-ram 40", 40 * MIB / (2 * A_TOKEN)),
        ("--model=tiny.gguf -cram 40 -c 8192 -np 1", 40 * MIB / (2 * A_TOKEN)),
        ("-m tiny.gguf --cache-ram 40 -ctk q8_0 -ctv f32", 40 * MIB / (A_TOKEN * (34 / 32 + 4) / 2)),
        ("-m tiny.gguf", 8192 * MIB / (2 * A_TOKEN)),
        ("--cache-ram 0", 0.0),
        ("--cache-ram -1", inf),
        ("-m none.gguf", inf),
        ("-m tiny.gguf -ctk odd", inf),
        ("-m tiny.gguf -cram x", inf),
    ],
)
def test_the_command_line_and_the_file_tell(model: Path, flags: str, expected: float) -> None:
    started = Started(["llama-server", *flags.split()], str(model.parent))
    assert cache_tokens(started, "tiny.gguf") == pytest.approx(expected)


def test_a_variable_tells_as_a_flag_does(model: Path) -> None:
    started = Started(["llama-server", "-m", str(model)], "", {"LLAMA_ARG_CACHE_RAM": "20"})
    assert cache_tokens(started) == pytest.approx(20 * MIB / (2 * A_TOKEN))
    assert cache_tokens(Started(["llama-server"])) == inf


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({}, 23_040.0),
        ({"llama.attention.key_length": 128}, 34_560.0),
        ({"llama.attention.head_count_kv": [3] * 15 + [0] * 15}, 11_520.0),
        ({"llama.attention.sliding_window": 1024}, None),
        ({"llama.attention.sliding_window": 0}, 23_040.0),
        ({"llama.attention.kv_lora_rank": 512}, None),
        ({"llama.ssm.state_size": 16}, None),
    ],
)
def test_what_a_token_takes(more: dict[str, Any], expected: float | None) -> None:
    assert bytes_a_token(LLAMA | more, "f16", "f16") == expected


def test_files_that_are_no_models_tell_nothing(tmp_path: Path, model: Path) -> None:
    for number, data in enumerate((b"", b"GGUF", model.read_bytes()[:90], b"GGUF" + b"\xff" * 99)):
        (tmp_path / f"{number}.gguf").write_bytes(data)
        assert cache_tokens(Started(["llama-server", "-m", f"{number}.gguf"], str(tmp_path))) == inf
