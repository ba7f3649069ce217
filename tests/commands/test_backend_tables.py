"""The tables `[[backends]]` of the configuration: what they say, and what is said of one that is wrong."""

import re
from pathlib import Path
from typing import Any

import pytest

from clairvoyant_cli.config import BackendConfig, ServeConfig, load_serve_config
from clairvoyant_cli.errors import ClairvoyantError, ExitCode

GPU = '[[backends]]\nname = "gpu"\nurl = "http://gpu:11434"\n'
TWO = f"""
[serve]
policy = "boost"

{GPU}
kind = "ollama"
slots = 4
key_file = "gpu.key"
weight = 2

[[backends]]
name = "laptop"
url = "llamacpp"
"""


def read(text: str, folder: Path, flags: dict[str, object] | None = None) -> ServeConfig:
    file = folder / "config.toml"
    file.write_text(text)
    return load_serve_config(flags or {}, file=file, env={})


def test_each_table_is_a_backend(tmp_path: Path) -> None:
    config = read(TWO, tmp_path)
    assert config.policy == "boost"
    assert config.servers() == config.backends
    assert config.backends == (
        BackendConfig("gpu", "http://gpu:11434", "ollama", 4, str(tmp_path / "gpu.key"), 2.0),
        BackendConfig("laptop", "llamacpp"),
    )


@pytest.mark.parametrize("text", ["", "[serve]\n", "backends = []\n"])
def test_without_tables_there_is_the_one_backend_that_is_set(text: str, tmp_path: Path) -> None:
    assert read(text, tmp_path).servers() == (BackendConfig(),)
    config = read(text, tmp_path, {"backend": "jan", "slots": 2, "backend_key_file": "key"})
    assert config.servers() == (BackendConfig(None, "jan", None, 2, "key"),)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (GPU.replace("[[backends]]", "[backends]"), "backends must be tables, as in [[backends]]"),
        ("backends = 3", "backends must be tables, as in [[backends]]"),
        ("backends = [3]", "backends must be tables, as in [[backends]]"),
        (
            "[[backend]]\n",
            "unknown section [backend]; there are [serve], [[backends]], [stable_prefix] and [top]",
        ),
        ("[serve]\nbackends = []\n", "unknown key 'backends' in [serve]; did you mean backend?"),
        ("[[backends]]\n", "[[backends]] table 1 has no name; give it one"),
        ('[[backends]]\nname = "gpu"\n', "[[backends]] table 1 has no url; give it one"),
        (f"{GPU}slot = 2\n", "[[backends]] table 1: unknown key 'slot'; did you mean slots?"),
        (f'{GPU}slots = "two"\n', "[[backends]] table 1: slots must be a whole number, not 'two'"),
        (f"{GPU}slots = 0\n", "[[backends]] table 1: slots must be at least 1"),
        (f"{GPU}slots = 1025\n", "[[backends]] table 1: slots must be at most 1024"),
        (f"{GPU}weight = 0\n", "[[backends]] table 1: weight must be 0.01 to 100"),
        (f'{GPU}kind = "olama"\n', "[[backends]] table 1: kind must be one of ollama, llamacpp,"),
        (f'{GPU}key_file = "a\\u0000b"\n', "[[backends]] table 1: key_file must not hold a NUL"),
        (GPU.replace('"gpu"', "3"), "[[backends]] table 1: name must be text, not 3"),
        (GPU.replace('"gpu"', '""'), "[[backends]] table 1: name must be one word"),
        (GPU.replace('"gpu"', '"the gpu"'), "[[backends]] table 1: name must be one word"),
        (GPU.replace('"gpu"', '"g\\u001b[31m"'), "[[backends]] table 1: name must be one word"),
        (GPU.replace('"gpu"', f'"{"g" * 65}"'), "[[backends]] table 1: name must be one word of at most 64"),
        (GPU.replace("http://gpu:11434", "olama"), "[[backends]] table 1: url must be ollama, llamacpp,"),
        (GPU.replace("gpu:11434", "[::1"), "[[backends]] table 1: url must be ollama, llamacpp,"),
        (f"{GPU}{GPU.replace('11434', '1')}", "table 2 has the same name as table 1; give each its own"),
        (
            GPU + GPU.replace("gpu", "mac") + GPU.replace('"gpu"', '"box"'),
            "table 3 has the same url as table 1; give each its own",
        ),
        (f'[serve]\nbackend = "ollama"\n{GPU}', "backend and [[backends]] exclude each other"),
        (f"[serve]\nslots = 2\n{GPU}", "slots and [[backends]] exclude each other"),
        (f'[serve]\nbackend_key_file = "k"\n{GPU}', "backend_key_file and [[backends]] exclude each other"),
    ],
)
def test_what_is_wrong_with_a_table_is_said_in_a_line(text: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(ClairvoyantError) as wrong:
        read(text, tmp_path)
    message = str(wrong.value)
    assert words in message
    assert wrong.value.exit_code is ExitCode.USAGE
    assert "\n" not in message
    if "exclude" not in words:
        assert message.startswith(str(tmp_path / "config.toml"))


def test_backend_may_be_given_again_and_named() -> None:
    config = ServeConfig(backend="mac=ollama,http://10.0.0.2:8000/v1,http://10.0.0.3:1/?a=b", slots=2)
    assert config.servers() == (
        BackendConfig("mac", "ollama", slots=2),
        BackendConfig("10.0.0.2:8000", "http://10.0.0.2:8000/v1", slots=2),
        BackendConfig("10.0.0.3:1", "http://10.0.0.3:1/?a=b", slots=2),
    )
    assert ServeConfig(backend="mac=ollama").servers() == (BackendConfig("mac", "ollama"),)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"backend": "ollama,jan,ollama"}, "backend names ollama twice; give each its own name"),
        ({"backend": "a=ollama,b=ollama"}, "backend names ollama twice; give each its own url"),
        ({"backend": "a b=ollama"}, "name must be one word"),
        ({"backend": "ollama,olama"}, "no backend 'olama'"),
        ({"backend": "ollama,"}, "no backend ''"),
        ({"backend": "ollama,jan", "backend_key_file": "k"}, "backend_key_file goes with one backend"),
    ],
)
def test_what_is_wrong_with_several_is_said_in_a_line(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ClairvoyantError, match=re.escape(words)):
        ServeConfig(**given)
