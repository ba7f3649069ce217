"""What a socket is asked directly, beneath asyncio's transports."""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import suppress
from enum import Enum, auto

from clairvoyant_cli.system import CLOSE_WAIT, ESTABLISHED, NO_LINGER, reset, tcp_state, unsent_bytes

KEEP_ALIVE = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 4}
"""Idle seconds before the first probe, seconds between two, and unanswered probes: two minutes in all."""


READ_BYTES = 64 * 1024


def unread(transport: asyncio.BaseTransport) -> Iterator[bytes]:
    """Yield what the kernel has received for a transport that is in `connection_lost`, without TLS."""
    peer = transport.get_extra_info("socket")
    if peer is None or transport.get_extra_info("ssl_object") is not None:
        return
    with suppress(OSError), peer.dup() as again:
        again.setblocking(False)
        while data := again.recv(READ_BYTES):
            yield data


def has_unread(transport: asyncio.BaseTransport) -> bool:
    """Return whether the kernel has received something that the transport has not read."""
    peer = transport.get_extra_info("socket")
    if peer is None:
        return False
    with suppress(OSError), peer.dup() as again:
        again.setblocking(False)
        return bool(again.recv(1, socket.MSG_PEEK))
    return False


class Peer(Enum):
    """What the kernel knows of the other side: there, has ended its side, or gone altogether."""

    OPEN = auto()
    HALF_CLOSED = auto()
    GONE = auto()


def peer_of(transport: asyncio.BaseTransport) -> Peer:
    """Return whether the other side is still connected, even if unread data precedes its FIN. Where the
    system does not tell, it counts as connected.
    """
    peer = transport.get_extra_info("socket")
    if peer is None or peer.family not in (socket.AF_INET, socket.AF_INET6):
        return Peer.OPEN
    try:
        state = tcp_state(peer)
    except OSError:
        return Peer.GONE
    if state == ESTABLISHED:
        return Peer.OPEN
    return Peer.HALF_CLOSED if state == CLOSE_WAIT else Peer.GONE


def unacknowledged(transport: asyncio.BaseTransport) -> int:
    """Return how many sent bytes the peer has not acknowledged; 0 where the system does not tell."""
    peer = transport.get_extra_info("socket")
    if peer is None:
        return 0
    try:
        return unsent_bytes(peer)
    except OSError:
        return 0


def keep_alive(transport: asyncio.BaseTransport) -> None:
    """Enable TCP keep-alive: a laptop that sleeps sends no FIN."""
    peer = transport.get_extra_info("socket")
    if peer is None or peer.family not in (socket.AF_INET, socket.AF_INET6):
        return
    if (transport.get_extra_info("peername") or ("",))[0] in ("127.0.0.1", "::1"):
        return  # a local process that ends closes its sockets
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in KEEP_ALIVE.items():
        # macOS and older systems know some of them only; their defaults hold then.
        number = getattr(socket, option, None)
        if number is not None:
            peer.setsockopt(socket.IPPROTO_TCP, number, value)


def end_with_reset(transport: asyncio.BaseTransport) -> None:
    """Have the connection end with a reset when it is closed, not with an orderly end."""
    peer = transport.get_extra_info("socket")
    if peer is not None:
        with suppress(OSError):
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, NO_LINGER)


def reset_now(transport: asyncio.BaseTransport) -> None:
    """See from `connection_lost`, just before its socket is closed, that it does end with a reset."""
    peer = transport.get_extra_info("socket")
    if peer is not None:
        reset(peer)
