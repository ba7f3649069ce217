"""Windows API calls for `clairvoyant_cli.system`: access lists, the account, and stopping a process.

Access lists are in SDDL (learn.microsoft.com, "Security Descriptor String Format"), which does not depend on
the language of Windows. `ctypes.CDLL` works because 64-bit Windows has one calling convention.
"""

import ctypes
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import Structure, byref, c_int, c_uint32, c_void_p, c_wchar_p, sizeof, wstring_at
from functools import cache
from pathlib import Path

EVERYBODY = "S-1-1-0"

SIDS = {"WD": EVERYBODY, "AU": "S-1-5-11", "BU": "S-1-5-32-545", "IU": "S-1-5-4", "BG": "S-1-5-32-546"}
"""SIDs of groups with short names in SDDL, which Windows commands do not accept."""

NOT_OTHERS = frozenset({"SY", "BA", "LA", "OW"})  # SYSTEM, administrators and the owner
_ACE = re.compile(r"\((?P<type>[A-Z]+);(?P<flags>[A-Z]*);[^;()]*;[^;()]*;[^;()]*;(?P<trustee>[^;()]+)")
_DENIES_OR_REPORTS = frozenset({"D", "OD", "XD", "AU", "OU", "XU", "AL", "OL", "ML", "SP", "TL", "RA"})

_FILE_OBJECT = 1  # SE_OBJECT_TYPE
_OWNER_AND_DACL = 1 | 4  # SECURITY_INFORMATION
_TOKEN_QUERY, _TOKEN_USER = 8, 1
_GENERIC_WRITE, _CREATE_NEW, _FILE_ATTRIBUTE_NORMAL = 0x4000_0000, 1, 0x80
_SHARE_ALL = 1 | 2 | 4
_SDDL_REVISION = 1
_EVENT_MODIFY_STATE = 2
_FOREVER = 0xFFFF_FFFF
_INVALID_HANDLE = c_void_p(-1).value


def strangers(sddl: str, account: str, *, inherited: bool = True) -> frozenset[str]:
    """Return who has access besides the owner, `account` (a SID), SYSTEM and administrators.

    `sddl` has the owner and the access list; a missing or invalid list means `EVERYBODY`. Without
    `inherited`, entries inherited from a folder are skipped.
    """
    owner = re.match(r"O:(?P<sid>S-[-0-9]+|[A-Z]{2})", sddl)
    _, there, listed = sddl.partition("D:")
    entries = list(_ACE.finditer(listed))
    if not there or "NO_ACCESS_CONTROL" in listed or listed.count("(") != len(entries):
        return frozenset({EVERYBODY})
    own = NOT_OTHERS | {account} | ({owner["sid"]} if owner else set())
    idle = {"IO"} if inherited else {"IO", "ID"}
    allowed = {
        ace["trustee"]
        for ace in entries
        if ace["type"] not in _DENIES_OR_REPORTS and not idle.intersection(re.findall("..", ace["flags"]))
    }
    return frozenset(SIDS.get(each, each) for each in allowed - own)


def access_of(path: Path) -> str:
    """Return owner and access list of a file as SDDL; OSError if unreadable."""
    descriptor, text = c_void_p(), c_void_p()
    advapi = _library("advapi32")
    failed = advapi.GetNamedSecurityInfoW(
        c_wchar_p(str(path)), _FILE_OBJECT, _OWNER_AND_DACL, None, None, None, None, byref(descriptor)
    )
    if failed:
        raise OSError(f"its access list cannot be read (Windows error {failed})")
    with _freed(descriptor):
        done = advapi.ConvertSecurityDescriptorToStringSecurityDescriptorW(
            descriptor, _SDDL_REVISION, _OWNER_AND_DACL, byref(text), None
        )
        _demand(done, "its access list cannot be read")
        with _freed(text):
            return wstring_at(text)


@cache
def account_sid() -> str:
    """Return the SID of this process's account."""
    kernel, advapi = _library("kernel32"), _library("advapi32")
    token, text = c_void_p(), c_void_p()
    kernel.GetCurrentProcess.restype = c_void_p
    done = advapi.OpenProcessToken(c_void_p(kernel.GetCurrentProcess()), _TOKEN_QUERY, byref(token))
    _demand(done, "the account is not known")
    try:
        # TOKEN_USER: a pointer to the SID behind it, of 68 bytes at most
        found = ctypes.create_string_buffer(256)
        done = advapi.GetTokenInformation(token, _TOKEN_USER, found, sizeof(found), byref(c_uint32()))
        _demand(done, "the account is not known")
        done = advapi.ConvertSidToStringSidW(c_void_p.from_buffer(found), byref(text))
        _demand(done, "the account is not known")
        with _freed(text):
            return wstring_at(text)
    finally:
        kernel.CloseHandle(token)


class _SecurityAttributes(Structure):
    _fields_ = (("length", c_uint32), ("descriptor", c_void_p), ("inherit", c_int))


def create_for_account(path: Path) -> int:
    """Create a file for this account, SYSTEM and administrators; return its handle.

    FileExistsError if it exists. The access list applies from creation and inherits nothing.
    """
    who = ("SY", "BA", account_sid())
    sddl = "D:P" + "".join(f"(A;;FA;;;{each})" for each in who)
    descriptor = c_void_p()
    done = _library("advapi32").ConvertStringSecurityDescriptorToSecurityDescriptorW(
        c_wchar_p(sddl), _SDDL_REVISION, byref(descriptor), None
    )
    _demand(done, "it cannot be kept from others")
    with _freed(descriptor):
        attributes = _SecurityAttributes(sizeof(_SecurityAttributes), descriptor, 0)
        kernel = _library("kernel32")
        kernel.CreateFileW.restype = c_void_p
        handle: int | None = kernel.CreateFileW(
            *(c_wchar_p(str(path)), _GENERIC_WRITE, _SHARE_ALL, byref(attributes), _CREATE_NEW),
            *(_FILE_ATTRIBUTE_NORMAL, None),
        )
    if handle is None or handle == _INVALID_HANDLE:
        if path.exists():
            raise FileExistsError(f"{path} exists already")
        raise OSError(f"{path} cannot be created")
    return handle


def await_stop(pid: int, on_stop: Callable[[], None]) -> None:
    """Start a thread that calls `on_stop` when `ask_to_stop` is called for `pid`, this process."""
    kernel = _library("kernel32")
    kernel.CreateEventW.restype = c_void_p
    event = c_void_p(kernel.CreateEventW(None, False, False, c_wchar_p(_event_name(pid))))

    def wait() -> None:
        while kernel.WaitForSingleObject(event, _FOREVER) == 0:
            on_stop()

    if event:
        threading.Thread(target=wait, name="stop", daemon=True).start()


def ask_to_stop(pid: int) -> bool:
    """Ask a process of this account to stop; False if it does not use `await_stop`."""
    kernel = _library("kernel32")
    kernel.OpenEventW.restype = c_void_p
    event = c_void_p(kernel.OpenEventW(_EVENT_MODIFY_STATE, False, c_wchar_p(_event_name(pid))))
    if not event:
        return False
    try:
        return bool(kernel.SetEvent(event))
    finally:
        kernel.CloseHandle(event)


def _event_name(pid: int) -> str:
    # Global: works across the account's sessions (remote desktop).
    return f"Global\\clairvoyant-stop-{pid}"


@cache
def _library(name: str) -> ctypes.CDLL:
    return ctypes.CDLL(name)


def _demand(done: int, message: str) -> None:
    if not done:
        raise OSError(message)


@contextmanager
def _freed(pointer: c_void_p) -> Iterator[None]:
    try:
        yield
    finally:
        _library("kernel32").LocalFree(pointer)
