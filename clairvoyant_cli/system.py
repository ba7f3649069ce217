"""Wraps all differences between Linux, macOS and Windows. No other module checks the platform.

Each branch is type-checked with `mypy --platform linux`, darwin and win32.
"""

import errno
import os
import re
import shlex
import signal
import socket
import stat
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import closing, suppress
from io import TextIOWrapper
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, cast

if sys.platform == "win32":
    import ctypes

    from clairvoyant_cli import windows
else:
    import resource
if sys.platform == "linux":
    from fcntl import ioctl
if TYPE_CHECKING:
    import asyncio  # imported lazily: too slow for `clairvoyant --help`

MANY_FILES = 65_536
"""Target for the open-file limit. Each client needs two; the default soft limit on macOS is 256."""

Result = TypeVar("Result")


def trim_memory() -> None:
    """Return what was freed to the system; glibc keeps some megabytes of what loading modules took."""
    if sys.platform == "linux":
        from ctypes import CDLL

        with suppress(OSError, AttributeError):  # musl has no such function
            CDLL(None).malloc_trim(0)


# -- the event loop ---------------------------------------------------------------------------------


def run(main: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine on uvloop if installed, else on asyncio."""
    from asyncio import run as runner

    if sys.platform != "win32":
        with suppress(ImportError):
            from uvloop import run as runner
    with closing(main):  # in case an interrupt comes before it starts
        return runner(main)


async def start_accepting(
    make: "Callable[[], asyncio.Protocol]",
    listener: socket.socket,
    backlog: int,
    spawn: Callable[[Coroutine[Any, Any, None]], "asyncio.Task[None]"],
) -> Callable[[], object]:
    """Start a protocol for each client that connects; return a function that stops accepting."""
    from asyncio import get_running_loop

    loop = get_running_loop()
    if sys.platform != "win32":
        return (await loop.create_server(make, sock=listener, backlog=backlog)).close
    loop.set_exception_handler(report_fault)
    return spawn(accept_always(make, listener)).cancel


async def accept_always(make: "Callable[[], asyncio.Protocol]", listener: socket.socket) -> None:
    """Accept clients for ever.

    The Proactor's own server stops when a client resets its connection before it is accepted
    (https://github.com/python/cpython/issues/93821).
    """
    from asyncio import get_running_loop, sleep

    loop = get_running_loop()
    while True:
        try:
            connection, _ = await loop.sock_accept(listener)
            await loop.connect_accepted_socket(make, connection)
        except OSError:
            await sleep(0)


OTHER_SIDE_GONE = (59, 64, 1236, 10053, 10054, 10057)
"""ERROR_UNEXP_NET_ERR, ERROR_NETNAME_DELETED, ERROR_CONNECTION_ABORTED, WSAECONNABORTED, WSAECONNRESET,
WSAENOTCONN (winerror.h)."""


def report_fault(loop: "asyncio.AbstractEventLoop", context: dict[str, Any]) -> None:
    """Log uncaught errors of the event loop, except resets by the other side.

    The Proactor raises those where they cannot be caught (https://github.com/python/cpython/issues/83191).
    """
    error = context.get("exception")
    if getattr(error, "winerror", None) not in OTHER_SIDE_GONE:
        loop.default_exception_handler(context)


# -- signals ----------------------------------------------------------------------------------------

CTRL_CLOSE, CTRL_LOGOFF, CTRL_SHUTDOWN = 2, 5, 6  # wincon.h

CLOSING_S = 4.0  # time to shut down when the console is closed; Windows kills the process after 5 s


def heed_signals(on_stop: Callable[[float], object], on_hangup: Callable[[], object]) -> None:
    """Call `on_stop` in the running loop on SIGTERM and SIGINT, and `on_hangup` on SIGHUP.

    `on_stop` gets the seconds that are left, usually `inf`. On Windows it is called for Ctrl-C, Ctrl-Break, a
    closed console and `ask_to_end`.
    """
    from asyncio import get_running_loop

    loop = get_running_loop()
    if sys.platform == "win32":
        # Not with `signal`: its handler returns at once, and Windows then kills the process.
        def heed(event: int) -> bool:
            return heed_console(event, lambda within_s: loop.call_soon_threadsafe(on_stop, within_s))

        handler = ctypes.WINFUNCTYPE(ctypes.c_int, ctypes.c_uint)(heed)
        _kept.append(handler)
        ctypes.windll.kernel32.SetConsoleCtrlHandler(handler, 1)

        def asked() -> None:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(on_stop, inf)

        windows.await_stop(os.getpid(), asked)
    else:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, on_stop, inf)
        loop.add_signal_handler(signal.SIGHUP, on_hangup)


def cancel_when_ended() -> None:
    """Cancel the running task when the process is asked to end or its terminal is closed."""
    from asyncio import current_task

    if task := current_task():
        heed_signals(lambda _: task.cancel(), lambda: None if _hangups_ignored else task.cancel())


_hangups_ignored = sys.platform != "win32" and signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
"""Whether SIGHUP was ignored at the start, as under nohup."""

_kept: list[object] = []  # callbacks of Windows, kept from garbage collection


def heed_console(event: int, ask: Callable[[float], object], last_s: float = CLOSING_S + 1.0) -> bool:
    """Handle an event of the Windows console, on the thread of Windows; False if the loop has ended.

    For a closed console it waits `last_s`, because Windows kills the process when it returns.
    """
    closes = event in (CTRL_CLOSE, CTRL_LOGOFF, CTRL_SHUTDOWN)
    try:
        ask(CLOSING_S if closes else inf)
    except RuntimeError:  # the loop has ended
        return False
    if closes:
        threading.Event().wait(last_s)
    return True


# -- processes and shells ---------------------------------------------------------------------------


def process_start(pid: int) -> float:
    """Return when a process started, 0 if none is running: its number may be used again for another.

    On Linux it is in ticks since the boot, as seconds since the epoch change when the clock is set.
    """
    if sys.platform == "linux":
        with suppress(OSError):
            state, *numbers = Path(f"/proc/{pid}/stat").read_text("latin-1").rpartition(")")[2].split()
            return 0.0 if state == "Z" else float(numbers[18])  # proc_pid_stat(5): the 22nd field
        return 0.0
    import psutil

    with suppress(psutil.Error):
        process = psutil.Process(pid)
        return 0.0 if process.status() == psutil.STATUS_ZOMBIE else float(process.create_time())
    return 0.0


def ask_to_end(pid: int) -> None:
    """Ask a process that uses `heed_signals` to end; no effect on others."""
    if sys.platform == "win32":
        windows.ask_to_stop(pid)
    else:
        with suppress(OSError):
            os.kill(pid, signal.SIGTERM)


def background() -> dict[str, Any]:
    """Return the arguments of `Popen` for a process that no signal of this terminal reaches."""
    if sys.platform == "win32":
        return {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP | subprocess.CREATE_NO_WINDOW}
    return {"start_new_session": True}


def kill_group(pid: int) -> None:
    """Kill what a `background` process that has just ended left behind; nothing on Windows."""
    if sys.platform != "win32":
        with suppress(OSError):
            os.killpg(pid, signal.SIGKILL)


def run_in_front(words: Sequence[str], environment: Mapping[str, str]) -> "subprocess.Popen[bytes]":
    """Start a command on this terminal, and pass on to it the signals that reach this process alone."""
    process = subprocess.Popen(words, env=environment)
    of_terminal = ("SIGINT", "SIGQUIT") if any(map(os.isatty, range(3))) else ()

    def forward(number: int, _: object) -> None:
        # The terminal sends its own signals to the command, too: a second Ctrl-C would stop it at once.
        if sys.platform != "win32" and signal.Signals(number).name not in of_terminal:
            process.send_signal(number)

    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGBREAK"):
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) != signal.SIG_IGN:  # as nohup sets it
            signal.signal(number, forward)
    return process


def exit_like(code: int) -> NoReturn:
    """Exit with a child's code, or by the signal that ended it."""
    if sys.platform != "win32" and code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the child has left its own core
        with suppress(OSError):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code - (code >> 31 << 32))  # a C int: Windows has codes beyond it


CURL = "curl.exe" if sys.platform == "win32" else "curl"
"""In Windows PowerShell, `curl` is an alias of another command."""

USUAL_SHELL = "powershell" if sys.platform == "win32" else "sh"

REDIRECT = {  # the command that sends the clients of this shell through the proxy
    "powershell": "clairvoyant env | Out-String | Invoke-Expression",
    "sh": 'eval "$(clairvoyant env)"',
}[USUAL_SHELL]
MODERN_TERMINALS = ("WT_SESSION", "TERM_PROGRAM", "TERM", "ConEmuPID", "ALACRITTY_LOG")
"""Variables that Windows Terminal, Visual Studio Code, mintty, ConEmu and others set."""


def draws_few_glyphs(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether the terminal is probably the legacy Windows console, or the Linux console."""
    if sys.platform == "win32":
        return not any(name in environment for name in MODERN_TERMINALS)
    return environment.get("TERM") == "linux"


def print_anything() -> None:
    """Make printing never fail: UTF-8 for pipes and files on Windows, else "?" for missing characters."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            if sys.platform == "win32" and not stream.isatty():
                stream.reconfigure(encoding="utf-8")
            elif stream.errors == "strict":
                stream.reconfigure(errors="replace")


def service_manager() -> str:
    """Return the service manager: "systemd", "launchd", "schtasks", or "" for none."""
    return {"linux": "systemd", "darwin": "launchd", "win32": "schtasks"}.get(sys.platform, "")


def service_manager_runs() -> bool:
    """Return whether this account has a running service manager."""
    if sys.platform != "linux":
        return bool(service_manager())
    with suppress(OSError):
        asked = subprocess.run(["systemctl", "--user", "show-environment"], capture_output=True, check=False)
        return not asked.returncode
    return False


def account() -> str:
    """Return the user id, on Windows the SID."""
    if sys.platform == "win32":
        return windows.account_sid()
    return str(os.getuid())


def command_line(words: Sequence[str]) -> str:
    """Return a command line with quoting."""
    return subprocess.list2cmdline(words) if sys.platform == "win32" else shlex.join(words)


_PLAIN = re.compile(r"[\w./:\\+=-]+", re.ASCII)
_EXPANDED = re.compile("[`$%\u201c\u201d\u201e]")


def for_shell(*words: str) -> str:
    """Return a command line that people can paste: on Windows into PowerShell, which also ends a string at
    curly quotes, or into cmd. There, a word with one of `"$%\\`` arrives changed, but nothing in it runs.
    """
    if sys.platform != "win32":
        return shlex.join(words)
    quoted = (_EXPANDED.sub(r"`\g<0>", word).replace('"', '""') for word in words)
    return " ".join(
        word if _PLAIN.fullmatch(word) else f'"{each}"' for word, each in zip(words, quoted, strict=True)
    )


def split_command(command: str) -> list[str]:
    """Split a command line as `command_line` joins it; ValueError for a quote that does not end."""
    lexer = shlex.shlex(command, posix=True, punctuation_chars=False)
    lexer.whitespace_split, lexer.commenters = True, ""
    if sys.platform == "win32":
        lexer.escape, lexer.quotes = "", '"'
    return list(lexer)


GUARD = 'exec 3<&0; (read _ <&3 || { kill -TERM "-$1"; sleep 10; kill -KILL "-$1"; }) >/dev/null 2>&1 &'


def group_guard(leader: int) -> int | None:
    """Start a process that ends the group of a `background` process if this one is killed; None on Windows.

    Returns the other end of its input, which this process alone has: a line there dismisses it, the end of
    the input without one means that this process is gone. It is no child, so nobody has to wait for it.
    """
    if sys.platform == "win32":
        return None
    theirs, ours = os.pipe()
    try:
        words = ["/bin/sh", "-c", GUARD, "clairvoyant-guard", str(leader)]
        subprocess.run(words, stdin=theirs, check=False, **background())
    finally:
        os.close(theirs)
    return ours


# -- sockets ----------------------------------------------------------------------------------------

_SIOCOUTQ = 0x5411  # include/uapi/linux/sockios.h
_SO_NWRITE = 0x1024  # bsd/sys/socket.h

_TCP_INFO: int | None = None
ESTABLISHED, CLOSE_WAIT = 1, 8  # include/net/tcp_states.h
if sys.platform == "linux":
    _TCP_INFO = socket.TCP_INFO
elif sys.platform == "darwin":
    _TCP_INFO = 0x106  # TCP_CONNECTION_INFO, bsd/netinet/tcp.h
    ESTABLISHED, CLOSE_WAIT = 4, 5  # bsd/netinet/tcp_fsm.h

LOOPBACK_S = 0.0 if sys.platform == "linux" else 200e-6
"""How long a byte takes to another socket of this process; Linux carries it within send()."""


def tcp_state(connection: socket.socket) -> int:
    """Return the state of a TCP connection, `ESTABLISHED` if unknown; OSError if gone."""
    if _TCP_INFO is None:
        return ESTABLISHED
    return int(connection.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, 1)[0])


def unsent_bytes(connection: socket.socket) -> int:
    """Return the bytes in the kernel's send buffer; 0 if unknown."""
    if sys.platform == "linux":
        return int(struct.unpack("i", ioctl(connection.fileno(), _SIOCOUTQ, bytes(4)))[0])
    if sys.platform == "darwin":
        return int(connection.getsockopt(socket.SOL_SOCKET, _SO_NWRITE))
    return 0


NO_LINGER = struct.pack("hh" if sys.platform == "win32" else "ii", 1, 0)
"""For SO_LINGER: drop unsent data and end the connection with a reset."""


def reset(connection: socket.socket) -> None:
    """Reset the connection of a transport that is being closed.

    The Proactor would shut it down first, which looks like an orderly end to the other side.
    """
    if sys.platform == "win32":
        cast(Any, connection)._sock.close()  # noqa: SLF001 - the transport has no API for it


def claim_alone(listener: socket.socket) -> None:
    """Let a listener take a port in TIME_WAIT, but not one in use.

    On Windows SO_REUSEADDR would allow a second program on the port.
    """
    if sys.platform == "win32":
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_EXCLUSIVEADDRUSE, 1)
    else:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)


def send_sockets(channel: socket.socket, sockets: Sequence[socket.socket]) -> bool:
    """Pass one byte and open sockets to the process at the other end of a Unix socket; False if it has no
    room now. Nothing is passed on Windows.
    """
    if sys.platform != "win32":
        try:
            socket.send_fds(channel, [b"+"], [each.fileno() for each in sockets])
        except BlockingIOError:
            return False
    return True


def receive_sockets(channel: socket.socket, most: int) -> list[socket.socket] | None:
    """Return what `send_sockets` passed, None if the other side is gone; BlockingIOError to try later."""
    if sys.platform == "win32":
        return None
    data, descriptors, _, _ = socket.recv_fds(channel, 1, most)
    return [socket.socket(fileno=each) for each in descriptors] if data else None


def unix_listener(folder: str) -> socket.socket | None:
    """Return a socket that one process can connect to, named `s`, in a private folder; None on Windows."""
    if sys.platform == "win32":
        return None
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(os.path.join(folder, "s"))  # noqa: PTH118 - a short path, as long ones are refused
    listener.listen(1)
    listener.setblocking(False)
    return listener


def unix_connection(path: str) -> socket.socket | None:
    """Connect to a `unix_listener` by its path; OSError if that fails, None on Windows."""
    if sys.platform == "win32":
        return None
    channel = socket.socket(socket.AF_UNIX)
    try:
        channel.setblocking(False)
        channel.connect(path)
    except OSError:
        channel.close()
        raise
    return channel


# -- files ------------------------------------------------------------------------------------------


def raise_open_files() -> int:
    """Raise the soft limit of open files, up to `MANY_FILES`; return it."""
    if sys.platform != "win32":
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = MANY_FILES if hard == resource.RLIM_INFINITY else min(MANY_FILES, hard)
        if soft < wanted:
            with suppress(OSError, ValueError):
                resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return int(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    return MANY_FILES  # on Windows only memory limits handles


def create_for_owner(path: Path) -> int:
    """Create a file for its owner only (0600); return its descriptor. FileExistsError if it exists."""
    if sys.platform == "win32":
        import msvcrt

        return msvcrt.open_osfhandle(windows.create_for_account(path), os.O_WRONLY)
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)


REMOVALS = 25 if sys.platform == "win32" else 1
"""Attempts to remove a file: Windows refuses while another program, such as a scanner, has it open."""


def remove(path: Path) -> None:
    """Remove a file if it exists; OSError if that fails for half a second."""
    for left in reversed(range(REMOVALS)):
        try:
            path.unlink(missing_ok=True)
        except PermissionError:
            if not left:
                raise
            time.sleep(0.02)
        else:
            return


def open_without_waiting(path: str, flags: int) -> int:
    """Open a file without waiting, e.g. for the writer of a pipe. An opener for `open`."""
    if sys.platform == "win32":
        return os.open(path, flags)
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY)


def lock_now(file: int) -> bool:
    """Lock an open file for this process, which ends the lock, too; False if another has locked it.

    On a file system without locks nothing is locked.
    """
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(file, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in (errno.EAGAIN, errno.EACCES, errno.EDEADLK)
    return True


def is_open_to_others(path: Path, mode: int) -> bool:
    """Return whether others than the owner may read a file with this `st_mode`, or write it.

    A file that nobody may write is accepted: container platforms mount secrets with mode 0440 or 0444.
    """
    if sys.platform == "win32":
        try:
            return bool(windows.strangers(windows.access_of(path), windows.account_sid()))
        except OSError:
            return True
    mounted = not mode & (stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH)
    return not mounted and bool(mode & (stat.S_IRWXG | stat.S_IRWXO))


def command_to_close(path: Path) -> str:
    """Return the command that restricts a file to its owner."""
    if sys.platform == "win32":
        account = windows.account_sid()
        listed: frozenset[str] = frozenset()
        with suppress(OSError):
            listed = windows.strangers(windows.access_of(path), account, inherited=False)
        remove = "".join(f" /remove:g *{each}" for each in sorted(listed))
        return f"{for_shell('icacls', str(path))} /inheritance:r /grant:r *{account}:F{remove}"
    return for_shell("chmod", "600", str(path))


def command_to_create(path: Path) -> str:
    """Return the command that creates an empty file for its owner (on Windows: with the folder's rights)."""
    create = ("New-Item",) if sys.platform == "win32" else ("install", "-m", "600", "/dev/null")
    return for_shell(*create, str(path))
