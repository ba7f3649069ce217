"""Finds the server to move: its process, who started it, and whether it is answering."""

import os
import re
import socket
import subprocess
import time
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import psutil

from clairvoyant_cli.addresses import is_loopback, joined
from clairvoyant_cli.backends.adapters import adapter_of
from clairvoyant_cli.backends.discovery import locate_server
from clairvoyant_cli.backends.prober import Prober
from clairvoyant_cli.errors import ClairvoyantError, InputError
from clairvoyant_cli.protocols.probes import is_clairvoyant
from clairvoyant_cli.proxy.access.origins import ORIGIN
from clairvoyant_cli.system import claim_alone, command_line

KEPT = re.compile(r"(OLLAMA|LLAMA|GGML|CUDA|NVIDIA|HIP|ROCR|HSA|GPU|VK|LD|DYLD)_\w+|HOME", re.ASCII)
"""Variables that a server was started with and needs again."""

SECRET = re.compile(r"(KEY|TOKEN|SECRET|PASSWORD)$")
APPS = ("ollama app", "ollama.app")  # on Windows and macOS; it restarts its server
CONTAINERS = ("docker", "libpod", "containerd", "kubepods")

CONNECT_S = 5.0

SAMPLES, SAMPLE_S, BUSY_S = 10, 0.1, 0.02
"""A server is idle when no client is connected, or its processes compute less than this in all samples: an
idle Ollama uses nothing."""


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A server that answers. `process` is None if the system does not show it, `unit` "" if it has none."""

    kind: str
    title: str
    host: str
    port: int
    models: frozenset[str]
    process: psutil.Process | None
    unit: str

    @property
    def address(self) -> str:
        return joined(self.host, self.port)

    @property
    def origins(self) -> list[str]:
        """The web pages that it answers besides its defaults (OLLAMA_ORIGINS)."""
        told = ""
        if self.unit:
            words = ["systemctl", "show", "--property=Environment", "--value", self.unit]
            told = subprocess.run(words, capture_output=True, text=True, check=False).stdout
        elif self.process is not None:
            with suppress(psutil.Error):
                told = " ".join(f"{name}={value}" for name, value in self.process.environ().items())
        listed = "".join(re.findall(r"OLLAMA_ORIGINS=(\S*)", told)[:1])
        return [each for each in listed.split(",") if ORIGIN.fullmatch(each)]

    @property
    def app(self) -> tuple[str, ...]:
        """The command of the desktop app that started it; empty if none did."""
        with suppress(psutil.Error):  # macOS does not show what launchd is
            if self.process is not None and (parent := self.process.parent()) is not None:
                words = tuple(parent.cmdline())
                return words if any(app in "".join(words[:1]).lower() for app in APPS) else ()
        return ()

    def processes(self) -> list[psutil.Process]:
        """Return its processes, and before them the desktop app, which would start it again."""
        with suppress(psutil.Error):
            if self.process is not None:
                app = [self.process.parent()] if self.app else []
                return [*app, self.process, *self.process.children(recursive=True)]
        return []

    def command(self, port: int | None = None) -> str:
        """Return the command that starts it, at a port of 127.0.0.1 if one is given.

        ClairvoyantError if it cannot be seen, or holds a secret, which a command line would show to others.
        """
        try:
            assert self.process is not None  # noqa: S101 - refused before
            words, folder, environment = self.process.cmdline(), self.process.cwd(), self.process.environ()
            if not Path(words[0]).is_absolute():
                words[0] = self.process.exe()
        except psutil.Error as error:
            raise ClairvoyantError(f"cannot see how {self.title} was started ({error})") from None
        kept = {name: value for name, value in environment.items() if KEPT.fullmatch(name)}
        secret = next((name for name in kept if SECRET.search(name)), None)
        if secret is not None:
            raise ClairvoyantError(f"{self.title} has {secret} in its environment; use a key file instead")
        if self.kind == "ollama":
            kept["OLLAMA_HOST"] = self.address if port is None else f"127.0.0.1:{port}"
        elif port is not None:
            words = [*words, "--host", "127.0.0.1", "--port", str(port)]  # llama.cpp takes the last ones
        return command_line([*(f"{name}={value}" for name, value in kept.items()), f"PWD={folder}", *words])

    def is_answering(self) -> bool:
        """Whether a client is connected while the server computes; looks for a second or two."""
        try:
            before_s = self._computed_s()
            for _ in range(SAMPLES):
                # All connections: of its own a process shows only those that it has accepted.
                clients = (each for each in _connections() if each.status == psutil.CONN_ESTABLISHED)
                if not any(each.laddr.port == self.port and self._is_of(each.laddr.ip) for each in clients):
                    return False
                time.sleep(SAMPLE_S)
            return self.process is None or self._computed_s() - before_s > BUSY_S
        except psutil.Error:
            return False

    def _is_of(self, address: str) -> bool:
        """Whether a connection to an address on this server's port is one to this server."""
        return self.host in ("0.0.0.0", "::") or address.removeprefix("::ffff:") == self.host  # noqa: S104

    def _computed_s(self) -> float:
        """Return the processor time of its processes without the desktop app, in seconds."""
        spent = (each.cpu_times() for each in self.processes()[bool(self.app) :])
        return sum(float(each.user + each.system) for each in spent)


async def find_running(kind: str, url: str | None) -> RunningServer:
    """Find a server at its usual ports, or at a URL; ClairvoyantError if none answers or it cannot move."""
    adapter = adapter_of(kind)
    async with Prober() as prober:
        found, answering = await locate_server(url or kind, prober)
        if not answering or found.adapter is not adapter:
            raise ClairvoyantError(
                f"no {adapter.title} answers at {found.url}; start it: {adapter.start_command}"
            )
        models = await adapter.offered_models(prober.asking(found.url)) or ()
    parts = urlsplit(found.url)
    host, port = parts.hostname or "", parts.port or 80
    if not is_loopback(host):
        raise InputError(f"{found.url} is on another machine; run clairvoyant takeover there")
    listener = _reached(host, port)
    process = None if listener is None or not listener.pid else psutil.Process(listener.pid)
    host = host if listener is None else listener.laddr.ip
    listed = frozenset(model.name for model in models)
    return RunningServer(kind, adapter.title, host, port, listed, process, _unit(kind, process))


async def fault(kind: str, url: str, models: frozenset[str] | None = None, *, proxied: bool) -> str:
    """Return what is wrong if a server should answer at a URL, `proxied` or by itself; "" if nothing is.

    With `models`, it must list these.
    """
    async with Prober() as prober:
        ask, adapter = prober.asking(url), adapter_of(kind)
        if is_clairvoyant((await ask("/_clairvoyant/health")).body) is not proxied:
            return f"the proxy {'does not answer' if proxied else 'still answers'} at {url}"
        if proxied and models is None:
            return ""
        if await adapter.identify(ask, url, "") is None:
            return f"{adapter.title} does not answer at {url}"
        offered = {model.name for model in await adapter.offered_models(ask) or ()}
    return "" if models in (None, offered) else f"{adapter.title} lists other models at {url} than before"


def free_port_after(port: int, but: Collection[int] = ()) -> int:
    """Return the next port of 127.0.0.1 that nothing listens on, and that is not in `but`."""
    for each in range(port + 1, 65536):
        if each in but:
            continue
        with socket.socket() as probe, suppress(OSError):
            claim_alone(probe)
            probe.bind(("127.0.0.1", each))
            return each
    raise ClairvoyantError(f"no port above {port} is free")


def _connections() -> list[Any]:
    """Return the TCP connections as psutil has them; this account's if the system shows no others."""
    with suppress(psutil.Error, OSError):
        return list(psutil.net_connections("tcp"))
    own = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            found = process.net_connections("tcp")
            own += [SimpleNamespace(**each._asdict(), pid=process.pid) for each in found]
    return own


def _reached(host: str, port: int) -> Any:
    """Return the listening socket that a connection to an address reaches; None if the system shows none.

    Others may listen on the same port of other addresses. A socket of the very address gets the connection
    before one of all addresses, and one of its family before one of both.
    """
    with socket.create_connection((host, port), CONNECT_S) as connection:
        address = str(connection.getpeername()[0])
    rank = [address, f"::ffff:{address}", "0.0.0.0", "::"]  # noqa: S104 - compared
    if ":" in address:
        rank = [address, "::"]
    listening = [
        each
        for each in _connections()
        if each.status == psutil.CONN_LISTEN and each.laddr.port == port and each.laddr.ip in rank
    ]
    # Of one socket that several processes hold, the one whose process is shown.
    return min(listening, key=lambda each: (rank.index(each.laddr.ip), not each.pid), default=None)


def _unit(kind: str, process: psutil.Process | None) -> str:
    """Return the systemd unit of a process; "" if it has none."""
    if process is None:  # another account's
        with suppress(OSError):
            asked = subprocess.run(["systemctl", "is-active", "--quiet", f"{kind}.service"], check=False)
            if not asked.returncode:
                return f"{kind}.service"
        return ""
    groups = _control_groups(process.pid)
    if any(each in groups and each not in _control_groups(os.getpid()) for each in CONTAINERS):
        raise ClairvoyantError(
            f"{kind} runs in a container; publish its port elsewhere and use serve --listen"
        )
    units = [line.rpartition("/")[2] for line in groups.splitlines() if line.endswith(".service")]
    return f"{'user unit ' if '/user@' in groups else ''}{units[0]}" if units else ""


def _control_groups(pid: int) -> str:
    with suppress(OSError):  # only Linux has them
        return Path(f"/proc/{pid}/cgroup").read_text()
    return ""
