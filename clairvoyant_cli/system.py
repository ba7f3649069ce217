"""What differs between Linux, macOS and Windows, in one place: nothing else asks which of them it runs on.

Typed so that each system's branch is checked as that system: `mypy --platform win32`, darwin and linux.
"""

import os
import shlex
import signal
import socket
import stat
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import closing, suppress
from io import TextIOWrapper
from math import inf
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, TypeVar, cast

if sys.platform == "win32":
    import ctypes

    from clairvoyant_cli import windows
else:
    import resource
if sys.platform == "linux":
    from fcntl import ioctl
if TYPE_CHECKING:
    import asyncio  # which takes longer to import than `clairvoyant --help` may

MANY_FILES = 65_536
"""Each client costs two descriptors; the usual soft limits (256 on macOS) are soon reached."""

Result = TypeVar("Result")


# -- the event loop ---------------------------------------------------------------------------------


def run(main: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine on uvloop where it exists, on Windows on asyncio's Proactor."""
    with closing(main):  # an interrupt may come before it has begun
        return _runner()(main)


def _runner() -> Callable[[Coroutine[Any, Any, Result]], Result]:
    if sys.platform != "win32":
        with suppress(ImportError):
            import uvloop

            fast: Callable[[Coroutine[Any, Any, Result]], Result] = uvloop.run
            return fast
    from asyncio import run as plain

    return plain


async def start_accepting(
    make: "Callable[[], asyncio.Protocol]",
    listener: socket.socket,
    backlog: int,
    spawn: Callable[[Awaitable[None]], "asyncio.Task[None]"],
) -> Callable[[], object]:
    """Have a protocol made for each client that connects; return what ends that."""
    from asyncio import get_running_loop

    loop = get_running_loop()
    if sys.platform != "win32":
        return (await loop.create_server(make, sock=listener, backlog=backlog)).close
    loop.set_exception_handler(report_fault)
    return spawn(accept_always(make, listener)).cancel


async def accept_always(make: "Callable[[], asyncio.Protocol]", listener: socket.socket) -> None:
    """Accept clients for ever, whatever becomes of one of them.

    The Proactor's own server closes its listener for good when a client resets its connection before it is
    accepted (https://github.com/python/cpython/issues/93821).
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
    """Report what nobody has caught, but not that the other side of a connection is gone.

    The Proactor raises that where nobody can catch it: out of a pending accept, and when it shuts down a
    socket that the other side has reset (https://github.com/python/cpython/issues/83191).
    """
    error = context.get("exception")
    if getattr(error, "winerror", None) not in OTHER_SIDE_GONE:
        loop.default_exception_handler(context)


# -- signals ----------------------------------------------------------------------------------------

CTRL_CLOSE, CTRL_LOGOFF, CTRL_SHUTDOWN = 2, 5, 6  # wincon.h

CLOSING_S = 4.0
"""How long is left to end in good order when the console is closed: Windows ends the process after 5 s."""


def heed_signals(on_stop: Callable[[float], object], on_hangup: Callable[[], object]) -> None:
    """Have the running loop call `on_stop` when the process is asked to end, and `on_hangup` at a SIGHUP.

    `on_stop` is told how many seconds there are, `inf` where nobody sets a limit. On Windows Ctrl-C and
    Ctrl-Break ask to end, and so do a console that is closed and `ask_to_end`.
    """
    from asyncio import get_running_loop

    loop = get_running_loop()
    if sys.platform == "win32":
        # Not by `signal`: it returns to Windows at once, which ends the process of a closed console then.
        def heed(event: int) -> bool:
            return heed_console(event, lambda within_s: loop.call_soon_threadsafe(on_stop, within_s))

        handler = ctypes.WINFUNCTYPE(ctypes.c_int, ctypes.c_uint)(heed)
        _kept.append(handler)
        ctypes.windll.kernel32.SetConsoleCtrlHandler(handler, 1)

        def asked() -> None:
            with suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(on_stop, inf)

        windows.await_stop(os.getpid(), asked)
    else:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, on_stop, inf)
        loop.add_signal_handler(signal.SIGHUP, on_hangup)


def cancel_when_ended() -> None:
    """Have the running task cancelled when the process is asked to end, or its terminal is closed."""
    from asyncio import current_task

    task = current_task()
    assert task is not None  # noqa: S101 - called from one
    heed_signals(lambda _: task.cancel(), lambda: None if _hangups_ignored else task.cancel())


_hangups_ignored = sys.platform != "win32" and signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
"""As under nohup: looked at before anything is heeded."""

_kept: list[object] = []
"""What Windows calls, which must not be collected."""


def heed_console(event: int, ask: Callable[[float], object], last_s: float = CLOSING_S + 1.0) -> bool:
    """Pass on an event of the Windows console, on the thread that Windows makes for it; False if too late.

    When the console is closed, the process is ended as soon as this returns: it has `last_s` to end itself.
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


def is_alive(pid: int) -> bool:
    """Whether a process runs, of those that this account may stop."""
    if sys.platform == "win32":  # where a signal of 0 is a Ctrl-C
        import psutil

        return bool(psutil.pid_exists(pid))
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return True


def ask_to_end(pid: int) -> None:
    """Have a process that `heed_signals` end as it sees fit; nothing if it does not, or has ended."""
    if sys.platform == "win32":
        windows.ask_to_stop(pid)
    else:
        with suppress(OSError):
            os.kill(pid, signal.SIGTERM)


CURL = "curl.exe" if sys.platform == "win32" else "curl"
"""In Windows PowerShell `curl` is another program."""

USUAL_SHELL = "powershell" if sys.platform == "win32" else "sh"

REDIRECT = (
    "clairvoyant env | Out-String | Invoke-Expression"
    if sys.platform == "win32"
    else 'eval "$(clairvoyant env)"'
)
"""What sends the clients of this shell through the proxy."""


MODERN_TERMINALS = ("WT_SESSION", "TERM_PROGRAM", "TERM", "ConEmuPID", "ALACRITTY_LOG")
"""Variables by which Windows Terminal, Visual Studio Code, mintty, ConEmu ... tell that it is they."""


def draws_few_glyphs(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether the terminal is the old console of Windows, as far as one can tell, or Linux's own."""
    if sys.platform == "win32":
        return not any(name in environment for name in MODERN_TERMINALS)
    return environment.get("TERM") == "linux"


def print_anything() -> None:
    """Have what goes into a pipe or a file be UTF-8 on Windows, where it would be the code page's. Elsewhere
    a question mark stands for what the encoding of the user's choice does not have.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            if sys.platform == "win32" and not stream.isatty():
                stream.reconfigure(encoding="utf-8")
            elif stream.errors == "strict":
                stream.reconfigure(errors="replace")


def service_manager() -> str:
    """Return what keeps programs running here: "systemd", "launchd", "schtasks", "" if it is none of them."""
    return {"linux": "systemd", "darwin": "launchd", "win32": "schtasks"}.get(sys.platform, "")


def account() -> str:
    """Return what the system itself calls the account: its number, on Windows its SID."""
    if sys.platform == "win32":
        return windows.account_sid()
    return str(os.getuid())


def command_line(words: Sequence[str]) -> str:
    """Return a command as it is typed."""
    return subprocess.list2cmdline(words) if sys.platform == "win32" else shlex.join(words)


# -- sockets ----------------------------------------------------------------------------------------

_SIOCOUTQ = 0x5411  # include/uapi/linux/sockios.h
_SO_NWRITE = 0x1024  # bsd/sys/socket.h

if sys.platform == "linux":
    _TCP_INFO: int | None = socket.TCP_INFO
    ESTABLISHED, CLOSE_WAIT = 1, 8  # include/net/tcp_states.h
elif sys.platform == "darwin":
    _TCP_INFO = 0x106  # TCP_CONNECTION_INFO, bsd/netinet/tcp.h
    ESTABLISHED, CLOSE_WAIT = 4, 5  # bsd/netinet/tcp_fsm.h
else:
    _TCP_INFO = None
    ESTABLISHED, CLOSE_WAIT = 1, 8


def tcp_state(connection: socket.socket) -> int:
    """Return the state of a TCP connection, `ESTABLISHED` where the system does not tell; OSError if gone."""
    if _TCP_INFO is None:
        return ESTABLISHED
    return int(connection.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, 1)[0])


def unsent_bytes(connection: socket.socket) -> int:
    """Return how many bytes the kernel holds that the other side has not taken; 0 where it does not tell."""
    if sys.platform == "linux":
        return int(struct.unpack("i", ioctl(connection.fileno(), _SIOCOUTQ, bytes(4)))[0])
    if sys.platform == "darwin":
        return int(connection.getsockopt(socket.SOL_SOCKET, _SO_NWRITE))
    return 0


NO_LINGER = struct.pack("hh" if sys.platform == "win32" else "ii", 1, 0)
"""For SO_LINGER: what has not been sent is dropped, and the connection ends with a reset."""


def reset(connection: socket.socket) -> None:
    """Close the socket of a transport that has just lost its connection, to end it with a reset.

    The Proactor would first shut it down, and the other side could take that for an orderly end.
    """
    if sys.platform == "win32":
        cast(Any, connection)._sock.close()  # noqa: SLF001 - the transport offers no way past the shutdown


def claim_alone(listener: socket.socket) -> None:
    """Let a listener have a port that was in use a moment ago, but not one that is in use.

    On Windows SO_REUSEADDR means the contrary: a second program gets the port, too.
    """
    if sys.platform == "win32":
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_EXCLUSIVEADDRUSE, 1)
    else:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)


# -- files ------------------------------------------------------------------------------------------


def open_files_limit() -> int | None:
    """Return how many files the process may be allowed to open; None if there is no limit."""
    if sys.platform != "win32":
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        if hard != resource.RLIM_INFINITY:
            return hard
    return None


def raise_open_files() -> int:
    """Raise the limit of open files as far as may be, to `MANY_FILES`; return it."""
    if sys.platform != "win32":
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = MANY_FILES if hard == resource.RLIM_INFINITY else min(MANY_FILES, hard)
        if soft < wanted:
            with suppress(OSError, ValueError):
                resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return int(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    return MANY_FILES  # Windows limits handles by memory alone


def create_for_owner(path: Path) -> int:
    """Create a file that its owner alone may read; return its descriptor. FileExistsError if it is there."""
    if sys.platform == "win32":
        import msvcrt

        return msvcrt.open_osfhandle(windows.create_for_account(path), os.O_WRONLY)
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)


REMOVALS = 25 if sys.platform == "win32" else 1
"""How often a removal is tried: Windows refuses it while anybody, a virus scanner say, has the file open."""


def remove(path: Path) -> None:
    """Remove a file, if it is there; OSError if that cannot be done within half a second."""
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
    """Open a file, but wait for nothing: not for the writer of a pipe, say. An opener for `open`."""
    if sys.platform == "win32":
        return os.open(path, flags)
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY)


def is_open_to_others(path: Path, mode: int) -> bool:
    """Whether others than its owner may read a file of this `st_mode`."""
    if sys.platform == "win32":
        try:
            return bool(windows.strangers(windows.access_of(path), windows.account_sid()))
        except OSError:
            return True  # as far as one can see
    return bool(mode & (stat.S_IRWXG | stat.S_IRWXO))


def command_to_close(path: Path) -> str:
    """Return the command that makes a file its owner's alone."""
    if sys.platform == "win32":
        account = windows.account_sid()
        listed: frozenset[str] = frozenset()
        with suppress(OSError):
            listed = windows.strangers(windows.access_of(path), account, inherited=False)
        remove = "".join(f" /remove:g *{each}" for each in sorted(listed))
        # Quoted as PowerShell and cmd both understand it.
        return f'icacls "{path}" /inheritance:r /grant:r *{account}:F{remove}'
    return f"chmod 600 {quote(str(path))}"


def command_to_create(path: Path) -> str:
    """Return the command that makes an empty file for its owner alone; on Windows as alone as its folder."""
    return f'New-Item "{path}"' if sys.platform == "win32" else f"install -m 600 /dev/null {quote(str(path))}"


def command_to_edit(path: Path) -> str:
    """Return the command that opens a text file in an editor."""
    return f'notepad "{path}"' if sys.platform == "win32" else f"${{EDITOR:-vi}} {quote(str(path))}"


def command_to_own(path: Path) -> str:
    """Return the command that makes a folder this account's, to be run by an administrator."""
    if sys.platform == "win32":
        return f'takeown /F "{path}" /R'
    return f"chown -R $(id -un) {quote(str(path))}"
