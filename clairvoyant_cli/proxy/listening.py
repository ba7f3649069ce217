"""The listening socket, and how many clients the process has room for."""

import resource
import socket
from contextlib import suppress

from clairvoyant_cli.errors import ClairvoyantError, ExitCode

BACKLOG = 2048

OWN_DESCRIPTORS = 100
"""Kept for the listener, the database, probes, spare and resting connections to the backend."""


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens; ClairvoyantError if the address cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # Inherited by its connections; uvloop sets it on each, asyncio only where a socket names its protocol.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        why = "the port is taken" if error.errno == 98 or "in use" in str(error) else error.strerror
        raise ClairvoyantError(
            f"cannot listen on {host}:{port}: {why}; choose another with --listen", ExitCode.USAGE
        ) from None
    listener.listen(BACKLOG)
    listener.setblocking(False)
    return listener


def raise_open_files() -> int:
    """Raise the limit of open files as far as may be; return it."""
    # Each client costs two file descriptors; the usual soft limits (256 on macOS) are soon reached.
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 65_536 if hard == resource.RLIM_INFINITY else min(65_536, hard)
    if soft < wanted:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return int(resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def max_connections(wanted: int | None, open_files: int) -> int:
    """Return how many clients are admitted: each may need a connection to the backend, too."""
    room = max(8, (open_files - OWN_DESCRIPTORS) // 2)
    return room if wanted is None else min(wanted, room)
