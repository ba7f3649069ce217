"""When llama.cpp's slots share one KV cache, by its command line."""

import pytest

from clairvoyant_cli.backends.kinds.llamacpp import caches_prompts, shares_cache


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


@pytest.mark.parametrize(
    ("words", "caches"),
    [
        ("llama-server -m a.gguf", True),
        ("llama-server --cache-ram 512", True),
        ("llama-server --cache-ram=0", False),
        ("llama-server -cram 0 -np 2", False),
        ("", False),
    ],
)
def test_the_command_line_of_llamacpp_shows_its_host_cache(words: str, caches: bool) -> None:
    assert caches_prompts(words.split()) is caches
