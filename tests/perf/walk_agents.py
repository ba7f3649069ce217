"""Walks real coding agents through the proxy, with the settings that `clairvoyant env --client NAME` prints.

    AGENTS_DIR=DIR python -m tests.perf.walk_agents [--agent NAME]... [--policy bounded]... [--keep FOLDER]

Each agent works on a small task before a scripted model: directly, then through `serve`. Taps on both sides
of the proxy show whether bodies and answers are the same, and the direct run whether the agent gets as far.
AGENTS_DIR has the agents, in folders of npm (`*/*/node_modules`) or Python (`*/*/bin`); FOLDER gets their
homes, outputs and the daemon's log.
"""

import asyncio
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from tests.fakes.daemon_process import daemon_process
from tests.fakes.raw_http import Message, read_message
from tests.fakes.scripted_model import ScriptedModel
from tests.fakes.wiretap import Wiretap, wiretap
from tests.perf.harness import clairvoyant, options

TASK = "Read notes.txt and tell me in one line what it says."
AGENTS = {
    "opencode": "opencode run TASK",
    "kilo": "kilo run --auto TASK",
    "codex": "codex exec --skip-git-repo-check TASK",
    "claude-code": "claude -p TASK",
    "qwen-code": "qwen -y -p TASK",
    "kimi-code": "kimi -p TASK",
    "pi": "pi -p TASK",
    "vibe": "vibe -p TASK",
    "goose": "goose run -t TASK",
    "cline": "cline TASK",
    "continue": "cn --auto -p TASK",
    "aider": "aider --no-git --yes-always --no-fancy-input --no-check-update --message TASK",
    "gptme": "gptme -n TASK",
    "llm": "llm -T llm_version TASK",
    "mini-swe-agent": "mini -y --exit-immediately -l 0 -t TASK",
    "openhands": "openhands --headless --always-approve -t TASK",
    "smolagents": "smolagent",
}
"""What to run; the first word is the program. How it is started, if it needs more, is in the settings."""

QUIET = dict(
    each.split("=")
    for each in (
        "TERM=dumb NO_COLOR=1 LANG=C.UTF-8 OPENCODE_DISABLE_AUTOUPDATE=1 OPENCODE_DISABLE_MODELS_FETCH=1"
        " OPENCODE_DISABLE_LSP_DOWNLOAD=1 KILO_DISABLE_AUTOUPDATE=1 KILO_DISABLE_MODELS_FETCH=1"
        " CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1 DISABLE_AUTOUPDATER=1 CONTINUE_TELEMETRY_ENABLED=0"
        " AIDER_ANALYTICS_DISABLE=1 AIDER_SHOW_MODEL_WARNINGS=0 LITELLM_LOCAL_MODEL_COST_MAP=True"
        " MSWEA_CONFIGURED=true PI_OFFLINE=1"
    ).split()
)
"""Keeps the agents from updates, telemetry and questions."""

SMOLAGENTS = "from smolagents import *\nprint(ToolCallingAgent(tools=[], model={}).run({!r}))\n"
PLACES = ("*/*/node_modules/.bin", "*/*/node_modules/*/bin", "*/*/node_modules/*/*/bin", "*/*/bin")
LIMIT_S = 120.0
EMPTY = re.compile(rb'"content": ?""|response\.(created|in_progress)|message_start|"type": ?"ping"')
"""Events that a proxy may send while a client waits."""


@dataclass
class Outcome:
    """How an agent's run ended, the routes that it asked for answers, and what differed at the proxy."""

    finished: bool
    asked: Counter[str] = field(default_factory=Counter)
    differences: list[str] = field(default_factory=list)


def program(name: str) -> Path | None:
    root = Path(os.environ["AGENTS_DIR"])
    found = (each / name for place in PLACES for each in sorted(root.glob(place)))
    return next((each for each in found if each.exists()), None)


def settings(name: str, url: str, home: Path) -> tuple[dict[str, str], list[list[str]], list[str], str]:
    """Do what `env` prints; return variables, commands to run first, how to start, and a line of Python."""
    text = clairvoyant("env", "--shell", "sh", "--url", url, "--client", name)
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


async def work(name: str, url: str, place: Path) -> Outcome:
    """Let an agent do the task with a home of its own."""
    home, folder = place / "home", place / "project"
    folder.mkdir(parents=True)
    home.mkdir()
    (folder / "notes.txt").write_text("four\n")
    variables, first, start, python = settings(name, url, home)
    words = [TASK if word == "TASK" else word for word in AGENTS[name].split()]
    node, wanted = program("node"), program(words[0])
    assert wanted is not None
    command = [str(wanted), *start[1:], *words[1:]]
    if name == "smolagents":
        (place / "task.py").write_text(SMOLAGENTS.format(python, TASK))
        command = [str(wanted.parent / "python"), str(place / "task.py")]
    path = [str(wanted.parent), *([str(node.parent)] if node else []), "/usr/local/bin:/usr/bin:/bin"]
    environment = QUIET | variables | {"HOME": str(home), "PATH": ":".join(path)}
    streams: dict[str, Any] = {
        "stdin": subprocess.DEVNULL,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.STDOUT,
    }
    output = b""
    for each in [*first, command]:
        process = await asyncio.create_subprocess_exec(
            *each, cwd=folder, env=environment, start_new_session=True, **streams
        )
        try:
            output += (await asyncio.wait_for(process.communicate(), LIMIT_S))[0]
        except TimeoutError:
            os.killpg(process.pid, 9)
            output += b"took too long"
    for rest in psutil.process_iter():  # what it left running
        with suppress(psutil.Error):
            if rest.environ().get("HOME") == str(home):
                rest.kill()
    (place / "output").write_bytes(output)
    return Outcome(await process.wait() == 0 and b"Task done" in output)


Exchange = tuple[Message, Message | None]


async def exchanges(tap: Wiretap) -> list[Exchange]:
    """Return the requests for answers, and the answers, that passed a tap."""
    found: list[Exchange] = []
    for each in tap.connections:
        asked, answered = asyncio.StreamReader(limit=2**26), asyncio.StreamReader(limit=2**26)
        for reader, data in ((asked, each.sent), (answered, each.received)):
            reader.feed_data(bytes(data))
            reader.feed_eof()
        with suppress(asyncio.IncompleteReadError):
            while True:
                request, answer = await read_message(asked), None
                found.append((request, None))
                while answer is None or 100 <= answer.status < 200:
                    answer = await read_message(answered, method=request.line.split()[0])
                found[-1] = (request, answer)
    return [
        each
        for each in found
        if re.match(rb"POST \S*/(chat/completions|responses|messages)[ ?]", each[0].line)
    ]


def said(answer: Message | None) -> list[bytes]:
    """Return the events that say something; a Responses stream has the id of its first event throughout."""
    if answer is None or not (answer.whole or answer.body.endswith(b"[DONE]\n\n")):
        return [b"broken off"]
    events = re.sub(rb"\bresp_[\w-]+", b"resp_", answer.body).strip().split(b"\n\n")
    return [b"%d" % answer.status, *(each for each in events if not EMPTY.search(each))]


def differences(before: list[Exchange], behind: list[Exchange]) -> list[str]:
    """Compare what passed before the proxy with what passed behind it.

    Answers that the proxy broke off behind it aside: an interrupted prompt is sent again.
    """
    found = [] if before else ["no request came"]
    for asked, answered in before:
        same = [each for each in behind if (each[0].line, each[0].body) == (asked.line, asked.body)]
        if not same:
            found.append(f"{asked.line.decode()}: did not reach the server unchanged")
        elif said(answered) not in [said(answer) for _, answer in same]:
            found.append(f"{asked.line.decode()}: the answer differs, status {answered and answered.status}")
    return found


async def walk(name: str, target: str, place: Path, policy: str | None) -> Outcome:
    """Let an agent work: directly, or through a daemon with a policy."""
    async with wiretap(target) as behind:
        if policy is None:
            outcome = await work(name, behind.base_url, place)
            before = await exchanges(behind)
        else:
            await asyncio.to_thread(place.mkdir, parents=True)
            flags = ("--policy", policy, "--slots", "1")
            with daemon_process(behind.base_url, *flags, home=place) as daemon:
                async with wiretap(daemon.base_url) as tap:
                    outcome = await work(name, tap.base_url, place)
                (place / "log").write_text("\n".join(daemon.lines))
            before = await exchanges(tap)
            outcome.differences = differences(before, await exchanges(behind))
    outcome.asked = Counter(each.target.decode().partition("?")[0] for each, _ in before)
    return outcome


async def main() -> int:
    given = options(__doc__, agent=list[str](), policy=list[str](), keep=Path)
    names = [name for name in given.agent or AGENTS if program(AGENTS[name].split()[0])]
    print("not installed:", ", ".join(sorted({*(given.agent or AGENTS)} - {*names})) or "none")
    server = await asyncio.start_server(ScriptedModel().play, "127.0.0.1", 0, limit=2**26)
    target = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    root, wrong = given.keep or Path(tempfile.mkdtemp(prefix="agents-")), 0
    for name in names:
        direct = await walk(name, target, root / "direct" / name, None)
        for policy in [None, *(given.policy or ["boost"])]:
            got = await walk(name, target, root / policy / name, policy) if policy else direct
            if (got.finished, got.asked) != (direct.finished, direct.asked):
                got.differences.append(f"finished {got.finished}, asks {got.asked}; direct {direct.asked}")
            ended = "finished" if got.finished else "NOT finished"
            print(f"{policy or 'direct':10} {name:15} {ended}, {got.asked.total()} requests", flush=True)
            print(*(f"    {each}\n" for each in got.differences), sep="", end="", flush=True)
            wrong += bool(got.differences)
    server.close()
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
