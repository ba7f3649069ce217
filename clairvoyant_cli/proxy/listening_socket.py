"""The listening socket, and how many clients the process can serve."""

import errno
import socket

from clairvoyant_cli.errors import ClairvoyantError, ExitCode
from clairvoyant_cli.system import claim_alone

BACKLOG = 2048

TAKEN = "the port is taken (clairvoyant status shows whether by another clairvoyant)"

OWN_DESCRIPTORS = 100
"""Kept for the listener, the database, probes, spare and resting connections to the backend."""


def listen(host: str, port: int, flag: str = "--listen") -> socket.socket:
    """Return a listening socket; ClairvoyantError that names the flag if the address is unavailable."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    claim_alone(listener)
    # Inherited by its connections; uvloop sets it on each, asyncio only where a socket names its protocol.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        why = TAKEN if error.errno == errno.EADDRINUSE else error.strerror
        raise ClairvoyantError(
            f"cannot listen on {host}:{port}: {why}; choose another with {flag}", ExitCode.USAGE
        ) from None
    listener.listen(BACKLOG)
    listener.setblocking(False)
    return listener


def max_connections(wanted: int | None, open_files: int) -> int:
    """Return how many clients are admitted: each may need a connection to the backend, too."""
    room = max(8, (open_files - OWN_DESCRIPTORS) // 2)
    return room if wanted is None else min(wanted, room)
