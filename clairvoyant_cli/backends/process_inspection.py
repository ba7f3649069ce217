"""What a server's own process on this machine shows: how it was started."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress

import psutil


def listening(names: Sequence[str], port: int) -> Iterator[psutil.Process]:
    """Yield the accessible processes with such names that listen on the port."""
    for process in psutil.process_iter(["name"]):
        if not (process.info["name"] or "").startswith(tuple(names)):
            continue
        try:
            sockets = process.net_connections("tcp")
        except (psutil.Error, OSError):
            continue
        if any(each.status == psutil.CONN_LISTEN and each.laddr.port == port for each in sockets):
            yield process


def command_line(processes: Iterable[psutil.Process]) -> list[str]:
    """Return the command line of the first process that has a readable one; empty if there is none."""
    for process in processes:
        with suppress(psutil.Error, OSError):
            return list(process.cmdline())
    return []


def words_of(names: Sequence[str], port: int) -> list[str]:
    """Return the command line of such a process; empty if there is none."""
    return command_line(listening(names, port))


def values_of(words: Sequence[str], *flags: str) -> Iterator[str]:
    """Yield what a command line gives a flag: the next word, or the rest of the same one."""
    for at, word in enumerate(words):
        flag, equals, value = word.partition("=")
        if flag in flags:
            yield value if equals else "".join(words[at + 1 : at + 2])
