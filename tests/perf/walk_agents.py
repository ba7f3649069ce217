"""Walks real coding agents through the proxy, with the settings that `clairvoyant env --client NAME` prints.

    AGENTS_DIR=DIR python -m tests.perf.walk_agents [AGENT ...] [--at-once N] [--hold S] ...

Each agent works on a small task before a scripted model: directly, then through `serve`. Taps on both sides
of the proxy show whether bodies, headers and streams are the same, and the direct run whether the agent gets
as far. `--at-once` runs several at the same time, with a person who chats. `--hold` keeps the slot occupied
for so many seconds first. AGENTS_DIR has the agents, in folders of npm (`*/*/node_modules`) or Python
(`*/*/bin`).
"""

import argparse
import asyncio
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil

from tests.fakes.daemon_process import daemon_process
from tests.fakes.raw_http import Message, read_message
from tests.fakes.scripted_model import ScriptedModel
from tests.fakes.wiretap import Wiretap, wiretap

TASK = "Read notes.txt and tell me in one line what it says."
AGENTS = {
    "opencode": ["opencode", "run", TASK],
    "kilo": ["kilo", "run", "--auto", TASK],
    "codex": ["codex", "exec", "--skip-git-repo-check", TASK],
    "claude-code": ["claude", "-p", TASK],
    "qwen-code": ["qwen", "-y", "-p", TASK],
    "kimi-code": ["kimi", "-p", TASK],
    "pi": ["pi", "-p", TASK],
    "vibe": ["vibe", "-p", TASK],
    "goose": ["goose", "run", "-t", TASK],
    "cline": ["cline", TASK],
    "continue": ["cn", "--auto", "-p", TASK],
    "aider": [
        "aider",
        "--no-git",
        "--yes-always",
        "--no-fancy-input",
        "--no-check-update",
        "--message",
        TASK,
    ],
    "gptme": ["gptme", "-n", TASK],
    "llm": ["llm", "-T", "llm_version", TASK],
    "mini-swe-agent": ["mini", "-y", "--exit-immediately", "-l", "0", "-t", TASK],
    "openhands": ["openhands", "--headless", "--always-approve", "-t", TASK],
    "smolagents": ["smolagent", "PROGRAM"],
}
"""What to run; the first word is the program. How it is started, if it needs more, is in the settings."""

QUIET = {
    "TERM": "dumb",
    "NO_COLOR": "1",
    "LANG": "C.UTF-8",
    "OPENCODE_DISABLE_AUTOUPDATE": "1",
    "OPENCODE_DISABLE_MODELS_FETCH": "1",
    "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
    "KILO_DISABLE_AUTOUPDATE": "1",
    "KILO_DISABLE_MODELS_FETCH": "1",
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "DISABLE_AUTOUPDATER": "1",
    "CONTINUE_TELEMETRY_ENABLED": "0",
    "AIDER_ANALYTICS_DISABLE": "1",
    "AIDER_SHOW_MODEL_WARNINGS": "0",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "MSWEA_CONFIGURED": "true",
    "PI_OFFLINE": "1",
}
"""Keeps the agents from updates, telemetry and questions."""

SMOLAGENTS = "from smolagents import *\nprint(ToolCallingAgent(tools=[], model={}).run({!r}))\n"
PLACES = ("*/*/node_modules/.bin", "*/*/node_modules/*/bin", "*/*/node_modules/*/*/bin", "*/*/bin")
CHANGED_HEADERS = {b"host", b"date", b"server", b"connection", b"keep-alive"}
EMPTY = re.compile(rb'"content": ?""|response\.(created|in_progress)|message_start|"type": ?"ping"')
"""Events that a proxy may send while a client waits."""


@dataclass
class Outcome:
    """How an agent's run ended: its exit code, its time, and the requests it made for answers."""

    code: int
    took_s: float
    asked: Counter[str]
    output: str
    differences: list[str] = field(default_factory=list)

    @property
    def finished(self) -> bool:
        return self.code == 0 and "Task done" in self.output


def program(name: str) -> Path | None:
    root = Path(os.environ["AGENTS_DIR"])
    found = (each / name for place in PLACES for each in sorted(root.glob(place)))
    return next((each for each in found if each.exists()), None)


def settings(name: str, url: str, home: Path) -> tuple[dict[str, str], list[list[str]], list[str], str]:
    """Do what `env` prints; return variables, commands to run first, how to start, and a line of Python."""
    command = [
        sys.executable,
        "-m",
        "clairvoyant_cli",
        "env",
        "--shell",
        "sh",
        "--url",
        url,
        "--client",
        name,
    ]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    variables = dict(re.findall(r'^export (\w+)="(.*)"$', text, re.MULTILINE))
    first: list[list[str]] = []
    start: list[str] = []
    files: dict[Path, list[str]] = {}
    lines: list[str] = []
    for line in re.findall(r"^#(?:   (.*))?$", text, re.MULTILINE):
        if found := re.fullmatch(r"In ~/(\S+):", line):
            lines = files[home / found[1]] = []
        elif line.startswith("Run: "):
            first.append(shlex.split(line.removeprefix("Run: ")))
        elif line.startswith("Start: "):
            start = shlex.split(line.removeprefix("Start: "))
        elif not line.startswith("In "):
            lines.append(line)
    for path, content in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(content) + "\n")
    return variables, first, start, "\n".join(lines)


async def work(name: str, url: str, place: Path, limit_s: float) -> Outcome:
    """Let an agent do the task with a home of its own."""
    home, folder = place / "home", place / "project"
    folder.mkdir(parents=True)
    home.mkdir()
    (folder / "notes.txt").write_text("four\n")
    variables, first, start, python = settings(name, url, home)
    node, wanted = program("node"), program(AGENTS[name][0])
    assert wanted is not None
    argv = [str(wanted), *start[1:], *AGENTS[name][1:]]
    if name == "smolagents":
        (place / "task.py").write_text(SMOLAGENTS.format(python, TASK))
        argv = [str(wanted.parent / "python"), str(place / "task.py")]
    path = [str(wanted.parent), *([str(node.parent)] if node else []), "/usr/local/bin:/usr/bin:/bin"]
    environment = QUIET | variables | {"HOME": str(home), "PATH": ":".join(path)}
    output = b""
    began = time.monotonic()
    for command in [*first, argv]:
        process = await asyncio.create_subprocess_exec(
            *command,
            cwd=folder,
            env=environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(limit_s):
                said, _ = await process.communicate()
        except TimeoutError:
            os.killpg(process.pid, 9)
            said = b"took too long"
        output += said
    _end_rest(home)
    (place / "output").write_bytes(output)
    code = process.returncode if process.returncode is not None else await process.wait()
    return Outcome(code, time.monotonic() - began, Counter(), output.decode(errors="replace"))


def _end_rest(home: Path) -> None:
    """End what an agent left running."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get("HOME") == str(home):
                process.kill()


Exchange = tuple[Message, Message | None]


async def exchanges(tap: Wiretap) -> list[Exchange]:
    """Return the requests and the answers that passed a tap."""
    found: list[Exchange] = []
    for each in tap.connections:
        asked, answered = asyncio.StreamReader(limit=2**26), asyncio.StreamReader(limit=2**26)
        for reader, data in ((asked, each.sent), (answered, each.received)):
            reader.feed_data(bytes(data))
            reader.feed_eof()
        try:
            while True:
                request = await read_message(asked)
                answer = None
                found.append((request, None))
                while answer is None or 100 <= answer.status < 200:
                    answer = await read_message(answered, method=request.line.split()[0])
                found[-1] = (request, answer)
        except asyncio.IncompleteReadError:
            pass
    return found


def asks(message: Message) -> bool:
    return bool(re.match(rb"POST \S*/(chat/completions|responses|messages)[ ?]", message.line))


def ended(answer: Message | None) -> bool:
    """Whether an answer is whole. Some agents leave at `[DONE]`, before the end of the last chunk."""
    return answer is not None and (answer.whole or answer.body.endswith(b"[DONE]\n\n"))


def headers(message: Message) -> list[tuple[bytes, bytes]]:
    return [
        (key, value)
        for key, value in message.headers
        if key.lower() not in CHANGED_HEADERS and not key.lower().startswith(b"x-clairvoyant")
    ]


def differences(before: list[Exchange], behind: list[Exchange]) -> list[str]:
    """Compare what passed before the proxy with what passed behind it, and take that out of `behind`.

    Empty events aside, and answers that the proxy broke off behind: an interrupted prompt is sent again.
    """
    found = []
    for asked, answered in before:
        name = asked.line.decode()
        if asks(asked) and not ended(answered):
            found.append(f"{name}: the agent left, or was left, before the end of the answer")
            continue
        same = [each for each in behind if (each[0].line, each[0].body) == (asked.line, asked.body)]
        whole = next((each for each in same if ended(each[1])), None)
        if whole is None or answered is None:
            if asks(asked):
                status = answered and answered.status
                found.append(f"{name}: did not reach the server unchanged (answer {status})")
            continue
        behind.remove(whole)
        got, given = headers(asked), headers(whole[0])
        if got != given:
            found.append(f"{name}: request headers {sorted(set(got) ^ set(given))}")
        assert whole[1] is not None
        if answered.body != whole[1].body:
            # Empty events came first, and the head with them, before the server had said anything.
            if answered.status != 200 or _events(answered.body) != _events(whole[1].body):
                found.append(f"{name}: answers differ, status {answered.status}/{whole[1].status}")
        elif (answered.status, headers(answered)) != (whole[1].status, headers(whole[1])):
            unlike = sorted(set(headers(answered)) ^ set(headers(whole[1])))
            found.append(f"{name}: status {answered.status}/{whole[1].status}, headers {unlike}")
    return found


def _events(body: bytes) -> list[bytes]:
    """Return the events that say something; a Responses stream has the id of its first event throughout."""
    events = re.sub(rb"\bresp_[\w-]+", b"resp_", body).strip().split(b"\n\n")
    return [each for each in events if not EMPTY.search(each)]


@asynccontextmanager
async def person(
    url: str, answers: list[str], more: dict[str, str] | None = None, every_s: float = 2.0
) -> AsyncIterator[None]:
    """Chat until the block ends; `answers` gets what each answer came to."""
    body = {
        "model": "your-model",
        "stream": True,
        "messages": [{"role": "user", "content": "What is a slot?"}],
    }

    async def chat() -> None:
        async with httpx.AsyncClient(base_url=url, timeout=3600) as client:
            while True:
                headers = {"X-Person": "yes"} | (more or {})
                answer = await client.post("/v1/chat/completions", json=body, headers=headers)
                answers.append(f"{answer.status_code} {answer.text.rstrip().endswith('[DONE]')}")
                await asyncio.sleep(every_s)

    task = asyncio.create_task(chat())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def through(
    names: tuple[str, ...],
    policy: str,
    target: str,
    model: ScriptedModel,
    place: Path,
    options: argparse.Namespace,
) -> dict[str, Outcome]:
    """Run agents at the same time through one proxy."""
    async with AsyncExitStack() as stack:
        behind = await stack.enter_async_context(wiretap(target))
        (place / "daemon").mkdir(parents=True)
        flags = ("--policy", policy, "--slots", "1", *(["--preempt", "off"] if options.hold else []))
        flags += ("--keep-alive", options.keep_alive)
        daemon = stack.enter_context(daemon_process(behind.base_url, *flags, home=place / "daemon"))
        taps = {name: await stack.enter_async_context(wiretap(daemon.base_url)) for name in names}
        chats: list[str] = []
        if options.hold:
            model.held.clear()
            await stack.enter_async_context(
                person(daemon.base_url, chats, {"X-Hold": str(options.hold)}, 1e6)
            )
            await model.held.wait()
        if options.at_once > 1:
            await stack.enter_async_context(person(daemon.base_url, chats))
        runs = [work(name, taps[name].base_url, place / name, options.limit) for name in names]
        outcomes = dict(zip(names, await asyncio.gather(*runs), strict=True))
        (place / "log").write_text("\n".join(daemon.lines))
    server_side = [each for each in await exchanges(behind) if not each[0].value("x-person")]
    for name, outcome in outcomes.items():
        before = await exchanges(taps[name])
        outcome.asked = Counter(_shape(each) for each, _ in before if asks(each))
        outcome.differences += differences(before, server_side)
        outcome.differences += [] if outcome.asked else ["no request came"]
    if twice := [each for each, answer in server_side if asks(each) and ended(answer)]:
        outcomes[names[0]].differences.append(f"{len(twice)} requests were answered twice")
    if wrong := [each for each in chats if each != "200 True"]:
        outcomes[names[0]].differences.append(f"the person got {wrong}")
    return outcomes


def _shape(request: Message) -> str:
    return request.line.split()[1].decode().partition("?")[0]


async def main(options: argparse.Namespace) -> int:
    names = [name for name in options.agents or AGENTS if program(AGENTS[name][0])]
    print("not installed:", ", ".join(name for name in AGENTS if not program(AGENTS[name][0])))
    model = ScriptedModel(options.first_token)
    server = await asyncio.start_server(model.play, "127.0.0.1", 0, limit=2**26)
    target = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    wrong = 0
    root = Path(options.keep or tempfile.mkdtemp(prefix="agents-"))
    direct: dict[str, Outcome] = {}
    for name in names:
        async with wiretap(target) as tap:
            direct[name] = await work(name, tap.base_url, root / "direct" / name, options.limit)
        direct[name].asked = Counter(_shape(each) for each, _ in await exchanges(tap) if asks(each))
        _print("direct", name, direct[name])
    for policy in options.policy or ["bounded", "srpt", "fair-srpt"]:
        size = options.at_once
        for group in [tuple(names[i : i + size]) for i in range(0, len(names), size)]:
            place = root / policy / "+".join(group)
            for name, got in (await through(group, policy, target, model, place, options)).items():
                if got.finished != direct[name].finished:
                    got.differences.append("ends otherwise than direct")
                if got.asked != direct[name].asked:
                    got.differences.append(f"asks {got.asked}, direct {direct[name].asked}")
                _print(policy, name, got)
                wrong += bool(got.differences)
    server.close()
    return 1 if wrong else 0


def _print(arm: str, name: str, got: Outcome) -> None:
    ended = "finished" if got.finished else f"NOT finished, exit {got.code}"
    print(f"{arm:10s} {name:15s} {ended}, {got.asked.total()} requests, {got.took_s:.1f} s", flush=True)
    for each in got.differences:
        print(f"    {each}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("agents", nargs="*", choices=[*AGENTS, []])
    parser.add_argument("--policy", action="append")
    parser.add_argument("--at-once", type=int, default=1, help="agents at the same time, with a person")
    parser.add_argument("--first-token", type=float, default=0.05, help="seconds to an answer's first token")
    parser.add_argument("--hold", type=float, default=0.0, help="seconds that the slot is occupied at first")
    parser.add_argument("--keep-alive", default="auto", help="as of `serve`")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds for one agent")
    parser.add_argument("--keep", help="folder for homes, outputs and logs")
    sys.exit(asyncio.run(main(parser.parse_args())))
