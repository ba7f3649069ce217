"""Names the programs of this machine, which are its clients where there are no keys.

Rule 1: the system tells which process has the other end of a connection; claims in a request do not count.
Rule 2: nothing waits for a name but the first request of a connection, at most `WAIT_S`. A request whose
program is known later belongs to it from then on.
Rule 3: one search at a time runs in a thread. It names all connections that were opened before it.
Rule 4: only the names of a program and its folder are kept: no path, argument or process id.
"""

import asyncio
import os
import re
import socket
import struct
import sys
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import PurePath
from typing import NamedTuple
from weakref import WeakKeyDictionary

from clairvoyant_cli.http.limits import ConnectedClient, Ends
from clairvoyant_cli.protocols.printable import NAME_CHARS, shortened

WAIT_S = 0.1
"""How long a request waits for the name of its program. That of one that was started or found lately takes
0.3 ms, of another 5 us for each of the first files of all processes."""

MOST_BYTES = 65_536  # of a command line that are read: it may have megabytes

INTERPRETERS = re.compile(r"(python|pypy|node|nodejs|bun|deno|ruby|perl|php|java)[\d.]*w?")
PACKAGE = re.compile(r".*[/\\]node_modules[/\\](?:@[^/\\]+[/\\]|\.bin[/\\])?([^/\\]+)")
MODULE_OPTIONS = ("-m", "-jar")
CODE_OPTIONS = ("-c", "-e", "--eval", "-p", "--print", "-r", "-")  # code, not a file
VALUE_OPTIONS = ("-W", "-X", "--import", "--require", "--loader", "-cp", "-classpath")


HOME_ASSISTANT = "Home Assistant"
SERVICES = {"homeassistant": HOME_ASSISTANT, "hass": HOME_ASSISTANT}
"""Programs that are one client wherever they run, by the names of their scripts and modules."""


class Program(NamedTuple):
    """A program, and the last part of the folder that it runs in, "" for a home or a root."""

    name: str
    folder: str = ""

    @property
    def client(self) -> str:
        """The name of the client that it is."""
        return f"{self.name} ({self.folder})" if self.folder else self.name


Find = Callable[[Collection[Ends]], Mapping[Ends, Program]]


class Programs:
    """The programs behind the open connections, which `find` looks up on a thread."""

    def __init__(self, find: Find | None = None) -> None:
        self._named: WeakKeyDictionary[ConnectedClient, asyncio.Future[Program | None]] = WeakKeyDictionary()
        self._find = find or find_programs
        self._due: dict[Ends, asyncio.Future[Program | None]] = {}
        self._runs = False

    def search(self, connection: ConnectedClient) -> "asyncio.Future[Program | None]":
        """Return what will have the program of a connection, or None if it cannot be found; the search for
        it begins unless it has before.
        """
        if (named := self._named.get(connection)) is None:
            named = self._named[connection] = asyncio.get_running_loop().create_future()
            self._due[connection.ends] = named
            self._begin()
        return named

    def _begin(self) -> None:
        if self._due and not self._runs:
            due, self._due, self._runs = self._due, {}, True
            searched = asyncio.get_running_loop().run_in_executor(None, self._find, list(due))
            searched.add_done_callback(partial(self._found, due))

    def _found(
        self,
        due: "dict[Ends, asyncio.Future[Program | None]]",
        searched: "asyncio.Future[Mapping[Ends, Program]]",
    ) -> None:
        failed = searched.cancelled() or searched.exception() is not None
        programs = {} if failed else searched.result()
        for ends, named in due.items():
            named.set_result(programs.get(ends))
        self._runs = False
        self._begin()


def program_of(words: Sequence[str], folder: str) -> Program | None:
    """Return the program of a command line that runs in a folder; None for an empty command line.

    A script or module counts by its own name, a Node program by its package's.
    """
    name = PurePath(words[0].partition(": ")[0]).name.removesuffix(".exe") if words else ""
    if INTERPRETERS.fullmatch(name):
        name = _script(words[1:]) or name
    if not name:
        return None
    if name in SERVICES:
        return Program(SERVICES[name])
    inside = "" if folder == os.path.expanduser("~") else PurePath(folder).name
    return Program(shortened(name, NAME_CHARS // 2), shortened(inside, NAME_CHARS // 2 - 3))


def _script(words: Sequence[str]) -> str:
    """Return the name of what an interpreter runs, "" for code in its command line or input."""
    rest = iter(words)
    for word in rest:
        if word in MODULE_OPTIONS:
            return PurePath(next(rest, "")).name
        if word in CODE_OPTIONS:
            return ""
        if word in VALUE_OPTIONS:
            next(rest, "")
        elif not word.startswith("-") and word != "run":  # as in `bun run FILE`
            package = PACKAGE.match(word)
            return package[1] if package else PurePath(word).name
    return ""


def find_programs(wanted: Collection[Ends]) -> Mapping[Ends, Program]:
    """Return the programs that have opened connections from this machine, those that can be told."""
    with suppress(OSError):
        return dict(_by_proc(wanted))
    return dict(_by_psutil(wanted))


def _by_proc(wanted: Collection[Ends]) -> Iterable[tuple[Ends, Program]]:
    """Go from ports to sockets, and from sockets to processes: those found lately first, then the newest."""
    if sys.platform != "linux":
        raise OSError
    sockets: dict[str, Ends] = {}
    for ends in wanted:
        account, inode = _socket_of(ends)
        if inode:
            sockets[f"socket:[{inode}]"] = ends
            if account != os.getuid():
                yield ends, Program(_account(account))  # unless its process can be read
    with open("/proc/loadavg", "rb") as file:
        newest = int(file.read().split()[-1])
    pids = map(int, filter(str.isdigit, os.listdir("/proc")))
    for pid in (*_found_lately, *sorted(pids, key=lambda pid: (newest - pid) % MOST_PIDS)):
        if not sockets:
            return
        with suppress(OSError), os.scandir(f"/proc/{pid}/fd") as files:  # another account's, or gone
            for each in files:
                if (found := _its_socket(each.path, sockets)) is not None:
                    if pid not in _found_lately:
                        _found_lately.appendleft(pid)
                    with open(f"/proc/{pid}/cmdline", "rb") as file:
                        words = os.fsdecode(file.read(MOST_BYTES)).rstrip("\0").split("\0")
                    if program := program_of(words, os.readlink(f"/proc/{pid}/cwd")):
                        yield found, program


def _its_socket(path: str, sockets: dict[str, Ends]) -> Ends | None:
    """Return the ends of the socket that an open file is, which is then no longer among those wanted."""
    with suppress(OSError):
        return sockets.pop(os.readlink(path), None)
    return None


MOST_PIDS = 1 << 22  # PID_MAX_LIMIT, include/linux/threads.h
_found_lately: deque[int] = deque(maxlen=32)

_SOCK_DIAG_BY_FAMILY = 20  # include/uapi/linux/sock_diag.h
_REQUEST = struct.Struct("=IHHII BBBBI 2s2s16s16sI8s")  # struct nlmsghdr, inet_diag_req_v2
_REPLY = struct.Struct("=16x 52x 12x II")  # struct nlmsghdr, inet_diag_msg: account and inode


def _socket_of(ends: Ends) -> tuple[int, int]:
    """Return the account and the inode of the socket at the first of the ends, 0 if there is none.

    By sock_diag(7): /proc/net/tcp takes 10 ms, as it goes through the whole hash table of the kernel.
    """
    if sys.platform != "linux":
        raise OSError
    family, hosts = socket.AF_INET, [host.removeprefix("::ffff:") for host, _ in ends]
    if ":" in hosts[0]:
        family = socket.AF_INET6
    places = [socket.inet_pton(family, host) for host in hosts]
    ports = [struct.pack("!H", port) for _, port in ends]
    asked = _REQUEST.pack(
        _REQUEST.size, _SOCK_DIAG_BY_FAMILY, 1, 0, 0, family, socket.IPPROTO_TCP, 0, 0, ~0 & 0xFFFFFFFF,
        *ports, *places, 0, b"\xff" * 8,
    )  # fmt: skip
    with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, 4) as link:  # NETLINK_SOCK_DIAG
        link.sendto(asked, (0, 0))
        reply = link.recv(4096)
    return _REPLY.unpack_from(reply) if len(reply) >= _REPLY.size else (0, 0)


def _account(number: int) -> str:
    if sys.platform != "linux":
        raise OSError
    import pwd

    with suppress(KeyError):
        return f"account {pwd.getpwuid(number).pw_name}"
    return f"account {number}"


def _by_psutil(wanted: Collection[Ends]) -> Iterable[tuple[Ends, Program]]:
    import psutil

    left = set(wanted)
    for ends, pid in _connections():
        if ends in left:
            left.discard(ends)
            with suppress(psutil.Error):
                process, folder = psutil.Process(pid), ""
                with suppress(psutil.Error):
                    folder = process.cwd()
                if program := program_of(process.cmdline() or [process.name()], folder):
                    yield ends, program
        if not left:
            return


def _connections() -> Iterable[tuple[Ends, int]]:
    """Yield the connections of all processes; on macOS without root, those of this account."""
    import psutil

    try:
        found = [(each, each.pid) for each in psutil.net_connections("tcp")]
    except psutil.AccessDenied:
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                found += [(each, process.pid) for each in process.net_connections("tcp")]
    for each, pid in found:
        if each.raddr and pid:
            yield (tuple(each.laddr), tuple(each.raddr)), pid
