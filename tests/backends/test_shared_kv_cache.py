"""When llama.cpp's slots share one KV cache, by its command line."""

import pytest

from clairvoyant_cli.backends.kinds.llamacpp import shares_cache


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("llama-server -m x.gguf", True),  # it chooses the number of slots, too
        ("llama-server -m x.gguf -np 4", False),
        ("llama-server --parallel=4 --kv-unified", True),
        ("llama-server -np 4 -kvu", True),
        ("llama-server -np -1 -no-kvu", False),
        ("", False),  # not to be seen
    ],
)
def test_the_command_line_tells(line: str, expected: bool) -> None:
    assert shares_cache(line.split()) is expected
