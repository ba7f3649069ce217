"""Keys, tokens, hosts and origins; and the configuration they stand in."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from clairvoyant_cli.config import ServeConfig, load_serve_config
from clairvoyant_cli.errors import ClairvoyantError
from clairvoyant_cli.files import SMALL_BYTES
from clairvoyant_cli.proxy.access.keys import (
    read_clients,
    read_keys,
    read_secret,
)


def secret(path: Path, text: str, mode: int = 0o600) -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


def test_keys_are_kept_as_hashes(tmp_path: Path) -> None:
    clients = read_keys(secret(tmp_path / "keys", "ann: key-of-ann \n\n# nobody\nsomebodys-key\n"))
    assert list(clients.keys.values()) == ["ann", "key-4"]
    assert "of-ann" not in repr(clients)
    assert clients.owner_of(b"key-of-ann") == "ann"
    assert clients.owner_of(b"key-of-an") is None


@pytest.mark.posix
@pytest.mark.parametrize(
    ("text", "mode", "starts"),
    [
        ('[clients.ann]\nkey = "key-of-ann"\n', 0o640, False),
        ('[clients.ann]\nkey = "key-of-ann"\n', 0o600, True),
        ('[clients.ann]\nkey = "key-of-ann"\n', 0o440, True),  # a secret that Kubernetes mounts
        ('[clients.ann]\nkey = "key-of-ann"\n', 0o444, True),  # one that Docker mounts
        ("[clients.ann]\nweight = 2\n", 0o644, True),
    ],
)
def test_a_clients_file_is_the_owners_alone_if_it_holds_keys(
    tmp_path: Path, text: str, mode: int, starts: bool
) -> None:
    path = secret(tmp_path / "clients.toml", text, mode)
    if starts:
        assert list(read_clients(path).rules) == ["ann"]
        return
    with pytest.raises(ClairvoyantError, match="chmod 600"):
        read_clients(path)


@pytest.mark.posix
def test_a_file_of_keys_is_the_owners_alone(tmp_path: Path) -> None:
    with pytest.raises(ClairvoyantError, match="chmod 600"):
        read_keys(secret(tmp_path / "keys", "ann:key-of-ann", 0o644))


def test_a_file_that_is_no_text_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_bytes(b"ann:key-of-ann\nben:\xff\xfe-secret\n")
    path.chmod(0o600)
    with pytest.raises(ClairvoyantError) as wrong:
        read_keys(path)
    assert "line 2" in str(wrong.value)
    assert "secret" not in str(wrong.value)


def _fifo(path: Path) -> None:
    os.mkfifo(path, 0o600)


def _device(path: Path) -> None:
    path.symlink_to("/dev/null")


def _endless(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(SMALL_BYTES + 1)
    path.chmod(0o600)


@pytest.mark.posix
@pytest.mark.parametrize("reader", [read_keys, read_clients])
@pytest.mark.parametrize(
    ("make", "words"),
    [
        (_fifo, "is not a regular file"),
        (_device, "is not a regular file"),
        (Path.mkdir, "Is a directory"),
        (_endless, "is larger than 4 MiB"),
    ],
)
def test_only_files_are_read_that_cannot_keep_the_daemon(
    tmp_path: Path, reader: Callable[[Path], object], make: Callable[[Path], None], words: str
) -> None:
    path = tmp_path / "clients"
    make(path)
    with pytest.raises(ClairvoyantError) as wrong:
        reader(path)  # one that waits for a writer is ended by the test's timeout
    said = str(wrong.value)
    assert words in said
    assert "\n" not in said


@pytest.mark.parametrize(
    ("text", "mode"), [("x", 0o640), ("x", 0o604), ("  \n", 0o600), ("one\ntwo", 0o600), ("a\x00b", 0o600)]
)
def test_a_secret_must_be_the_owners_alone(tmp_path: Path, text: str, mode: int) -> None:
    with pytest.raises(ClairvoyantError):
        read_secret(secret(tmp_path / "secret", text, mode), "test")


def test_defaults_then_file_then_environment_then_flags(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text('[serve]\ntau = 5\nslots = 2\nlisten = "127.0.0.1:1"\n')
    env = {"CLAIRVOYANT_SERVE_SLOTS": "3", "CLAIRVOYANT_SERVE_SHOW_PROMPTS": "yes", "OTHER": "x"}
    config = load_serve_config({"listen": "127.0.0.1:2"}, file=file, env=env)
    assert (config.tau, config.slots, config.listen, config.show_prompts) == (5.0, 3, "127.0.0.1:2", True)
    assert config.queue_capacity == ServeConfig().queue_capacity
