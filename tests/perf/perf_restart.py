"""Restarts without a lost request: 20 clients with the OpenAI SDK, and `serve --replace` in the middle.

    python -m tests.perf.perf_restart [--requests N] [--restarts N] [--kills | --service] [--seed S]

The server counts requests: each must come once, and no client may see an error. The server never works on
more than its slots. The median of short answers is compared with a run without restarts. `--kills` kills each
new daemon (SIGKILL) at another moment instead of letting it live: two before it takes over, the others 0 to
500 ms after that. The SDK sends again what it had accepted by then, except answers that it had begun to
stream, which are counted apart.

`--service` installs the service in the home folder and restarts it by `service restart`; give it a home and a
systemd of its own:

    unshare -m sh -c 'mount -t tmpfs t /run; mkdir -p /run/systemd/system /run/user; HOME=$(mktemp -d)
        export HOME XDG_RUNTIME_DIR=/run/user; /usr/lib/systemd/systemd --user --unit=basic.target & sleep 2
        python -m tests.perf.perf_restart --service --restarts 2'

Exits with 1 if anything of this does not hold.
"""

import asyncio
import json
import os
import random
import re
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from openai import AsyncOpenAI, OpenAIError

from tests.fakes.daemon_process import COMMAND
from tests.fakes.llamacpp_server import free_port
from tests.perf.harness import options, quantiles

CLIENTS, SLOTS = 20, 4
SHORT, LONG = 10, 150
TOKEN_S = 0.004
KILLED_AFTER_S = (None, None, 0.0, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5)  # the handover; None: before it
HANDOVER = "another daemon takes the place"


@dataclass
class CountingServer:
    """An OpenAI server that counts the requests by their prompts, and how many it works on at once."""

    came: Counter[str] = field(default_factory=Counter)
    whole: Counter[str] = field(default_factory=Counter)
    running: int = 0
    most: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = re.search(rb"(?i)content-length: (\d+)", head)
                body = await reader.readexactly(int(length[1])) if length else b""
                await self._answer(head, body, writer)
        writer.close()

    async def _answer(self, head: bytes, body: bytes, writer: asyncio.StreamWriter) -> None:
        if not head.startswith(b"POST /v1/chat/completions"):
            models = b'{"object": "list", "data": [{"id": "m", "object": "model", "owned_by": "vllm"}]}'
            ok = head.startswith(b"GET /v1/models")
            writer.write(_whole(b"200 OK" if ok else b"404 Not Found", models if ok else b"{}"))
            return
        asked = json.loads(body)
        name, tokens = asked["messages"][0]["content"].split()[:2]
        self.came[name] += 1
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            if asked.get("stream"):
                kind = b"Content-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
                writer.write(b"HTTP/1.1 200 OK\r\n" + kind)
            for _ in range(int(tokens)):
                await asyncio.sleep(TOKEN_S)
                if asked.get("stream"):
                    writer.write(_chunk(_event({"content": "word "})))
                    await writer.drain()
                elif writer.transport.is_closing():
                    return
            if asked.get("stream"):
                writer.write(_chunk(_event({}, "stop")) + _chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")
            else:
                message = {"role": "assistant", "content": "word " * int(tokens)}
                choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
                usage = {
                    "prompt_tokens": 5,
                    "completion_tokens": int(tokens),
                    "total_tokens": 5 + int(tokens),
                }
                answer = {"id": "1", "object": "chat.completion", "created": 1, "model": "m"}
                writer.write(
                    _whole(b"200 OK", json.dumps(answer | {"choices": choices, "usage": usage}).encode())
                )
            await writer.drain()
            self.whole[name] += 1
        finally:
            self.running -= 1


def _whole(status: bytes, body: bytes) -> bytes:
    kind = b"Content-Type: application/json\r\nContent-Length: %d" % len(body)
    return b"HTTP/1.1 %b\r\n%b\r\n\r\n%b" % (status, kind, body)


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def _event(delta: dict[str, str], reason: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": reason}
    event = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
    return b"data: " + json.dumps(event).encode() + b"\n\n"


@dataclass
class Restarts:
    """Daemons that follow each other at one address, and what the clients saw."""

    home: str
    backend: str
    port: int = field(default_factory=free_port)
    errors: list[str] = field(default_factory=list)
    begun: set[str] = field(default_factory=set)  # streams of which a part has come
    broken: list[str] = field(default_factory=list)  # of these, those that broke off
    short_s: list[float] = field(default_factory=list)
    done: Counter[str] = field(default_factory=Counter)
    daemons: "list[asyncio.subprocess.Process]" = field(default_factory=list)

    async def start(self) -> "asyncio.subprocess.Process":
        flags = ("--backend", self.backend, "--slots", SLOTS, "--listen", f"127.0.0.1:{self.port}")
        words = [*COMMAND, *map(str, flags), "--no-self-test", "--replace"]
        places = dict.fromkeys(("HOME", "XDG_STATE_HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME"), self.home)
        with open(f"{self.home}/log", "ab") as log:  # noqa: ASYNC230, PTH123 - once
            daemon = await asyncio.create_subprocess_exec(*words, stderr=log, env=os.environ | places)
        self.daemons.append(daemon)
        return daemon

    async def is_up(self, pid: int) -> None:
        path = f"{self.home}/clairvoyant/daemon-{self.port}.json"
        for _ in range(600):
            with suppress(OSError, ValueError):
                if json.loads(open(path).read())["pid"] == pid:  # noqa: ASYNC230, PTH123, SIM115 - a short file
                    return
            await asyncio.sleep(0.02)
        raise RuntimeError("the daemon did not start:\n" + open(f"{self.home}/log").read())  # noqa: ASYNC230, PTH123, SIM115

    async def handover(self, number: int, after_s: float | None) -> None:
        """Wait for the handover of this number and `after_s` more; None: for a moment before any."""
        if after_s is None:
            await asyncio.sleep(0.3)
            return
        while open(f"{self.home}/log").read().count(HANDOVER) < number:  # noqa: ASYNC110, ASYNC230, PTH123, SIM115
            await asyncio.sleep(0.001)  # a log file tells nobody
        await asyncio.sleep(after_s)

    async def ask(self, number: int, requests: int, rng: random.Random) -> None:
        url = f"http://127.0.0.1:{self.port}/v1"
        async with AsyncOpenAI(base_url=url, api_key="none", timeout=600) as sdk:
            for at in range(number, requests, CLIENTS):
                long, stream = rng.random() < 0.2, rng.random() < 0.6
                name, tokens = f"r{at}", LONG if long else SHORT
                words = "tell a very long story in many chapters" if long else "yes or no?"
                began_s = time.monotonic()
                try:
                    text = await self._one(sdk, f"{name} {tokens} {words}", stream)
                    if text.split() != ["word"] * tokens:
                        self.errors.append(f"{name}: {len(text.split())} of {tokens} words")
                except OpenAIError as error:
                    if name in self.begun:
                        self.broken.append(name)
                        continue
                    self.errors.append(f"{name}: {type(error).__name__} {error}")
                else:
                    self.done[name] += 1
                    if not long:
                        self.short_s.append(time.monotonic() - began_s)
                await asyncio.sleep(rng.expovariate(1 / 0.1))

    async def _one(self, sdk: AsyncOpenAI, prompt: str, stream: bool) -> str:
        message = {"role": "user", "content": prompt}
        if not stream:
            answer = await sdk.chat.completions.create(model="m", messages=[message])  # type: ignore[list-item]
            return answer.choices[0].message.content or ""
        text, reason = "", None
        events: Any = await sdk.chat.completions.create(model="m", messages=[message], stream=True)  # type: ignore[list-item]
        async for event in events:
            self.begun.add(prompt.split()[0])
            text += event.choices[0].delta.content or ""
            reason = event.choices[0].finish_reason or reason
        return text if reason else text + " and no end"


@asynccontextmanager
async def counting() -> AsyncIterator[tuple[CountingServer, str]]:
    counted = CountingServer()
    server = await asyncio.start_server(counted.serve, "127.0.0.1", 0)
    try:
        yield counted, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


async def command(*words: object) -> None:
    """Run `clairvoyant` with these arguments; RuntimeError if it fails."""
    process = await asyncio.create_subprocess_exec(*COMMAND[:-1], *map(str, words))
    if await process.wait():
        raise RuntimeError(f"clairvoyant {words} failed")


async def measure_service(requests: int, restarts: int, seed: int) -> list[str]:
    """Restart the installed service while clients ask; return what did not hold."""
    async with counting() as (counted, backend):
        run = Restarts("", backend)
        flags = ("--backend", backend, "--slots", SLOTS, "--listen", f"127.0.0.1:{run.port}")
        await command("service", "install", "--yes", "--", *flags, "--no-self-test")
        rng = random.Random(seed)
        asking = asyncio.gather(
            *(run.ask(number, requests, random.Random(rng.random())) for number in range(CLIENTS))
        )
        for _ in range(restarts):
            await asyncio.sleep(2)
            await command("service", "restart")
        print(f"{len(run.done)} of {requests} answered when the last restart was over")
        await asking
        await command("service", "uninstall")
    again = {name: count for name, count in counted.came.items() if count > 1}
    print(f"{len(run.done)} of {requests} answered, at most {counted.most} at once on {SLOTS} slots")
    faults = [*run.errors, *[f"answered twice: {again}"] * bool(again)]
    return faults + [f"{counted.most} at once on {SLOTS} slots"] * (counted.most > SLOTS)


async def measure(requests: int, restarts: int, seed: int, *, kills: bool) -> tuple[list[str], float]:
    """Return what did not hold, and the median of the short requests in seconds."""
    with tempfile.TemporaryDirectory() as home:
        async with counting() as (counted, backend):
            run = Restarts(home, backend)
            await run.is_up((await run.start()).pid)
            rng = random.Random(seed)
            asking = [
                asyncio.create_task(run.ask(number, requests, random.Random(rng.random())))
                for number in range(CLIENTS)
            ]
            took_s = []
            for at in range(restarts):
                await asyncio.sleep(0.5)
                daemon, began_s = await run.start(), time.monotonic()
                if kills:
                    await run.handover(at + 1 - 2, KILLED_AFTER_S[at % len(KILLED_AFTER_S)])
                    daemon.send_signal(signal.SIGKILL)
                    await daemon.wait()
                else:
                    await run.is_up(daemon.pid)
                    took_s.append(time.monotonic() - began_s)
            await asyncio.gather(*asking)
            if kills:
                run.daemons[0].send_signal(signal.SIGTERM)
            else:
                run.daemons[-1].send_signal(signal.SIGTERM)
            codes = [await asyncio.wait_for(each.wait(), 60) for each in run.daemons]
            log = open(f"{home}/log").read()  # noqa: ASYNC230, PTH123, SIM115
    again = {name: count for name, count in counted.came.items() if count > 1}
    median_s, p95_s = quantiles(run.short_s, 0.5, 0.95)
    print(
        f"{len(run.done)} of {requests} answered, {len(run.errors)} errors, {len(run.broken)} broken off, "
        f"{len(again)} sent to the server "
        f"again, at most {counted.most} at once on {SLOTS} slots, "
        f"short P50 {median_s:.3f} s, P95 {p95_s:.3f} s; "
        f"restarts took {[round(each, 2) for each in took_s]} s; exit codes {codes}"
    )
    if os.environ.get("SHOW_LOG"):
        print(log)
    faults = list(run.errors)
    lost = requests - len(run.done) - (len(run.broken) if kills else 0)
    faults += [f"{lost} lost"] * bool(lost)
    faults += [f"answered twice: {again}"] * (bool(again) and not kills)
    faults += [f"{counted.most} requests at once on {SLOTS} slots"] * (counted.most > SLOTS and not kills)
    faults += [line for line in log.splitlines() if "Traceback" in line or "internal error" in line]
    return faults, median_s


def main() -> int:
    given = options(__doc__, requests=500, restarts=5, kills=False, service=False, seed=1)
    if given.service:
        faults = asyncio.run(measure_service(given.requests, given.restarts, given.seed))
        print("\n".join(faults) or "all holds")
        return bool(faults)
    faults, median_s = asyncio.run(measure(given.requests, given.restarts, given.seed, kills=given.kills))
    if not given.kills:
        _, usual_s = asyncio.run(measure(given.requests, 0, given.seed, kills=False))
        print(f"short P50 {median_s / usual_s:.2f} times that without restarts")
        faults += ["the median of short answers is more than 20 % higher"] * (median_s > 1.2 * usual_s)
    print("\n".join(faults) or "all holds")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
