"""The file by which `status` and `top` find a running daemon; only its owner can read it."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import msgspec

from clairvoyant_cli.proxy.access.keys import Access
from clairvoyant_cli.state.client import RunningDaemon, state_dir
from clairvoyant_cli.system import create_for_owner, remove


@contextmanager
def announced(base_url: str, port: int, access: Access) -> Iterator[None]:
    """Publish a daemon while the block runs, with its run token if it has one."""
    token = access.run_token if access.admin_token is None else None
    path = state_dir() / f"daemon-{port}.json"
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        remove(path)
        with os.fdopen(create_for_owner(path), "wb") as file:
            file.write(msgspec.json.encode(RunningDaemon(base_url, os.getpid(), token)))
    except OSError as error:  # a read-only home must not stop the service
        if token is not None and access.clients.keys:
            news = "cannot write %s (%s), so this daemon cannot be controlled; give --admin-token-file"
            logging.getLogger("clairvoyant").warning(news, path, error.strerror or error)
    try:
        yield
    finally:
        with suppress(OSError):
            remove(path)
