"""A newcomer's first hour: every command of README, tutorial and how-tos, from the wheel alone.

    python -m tests.perf.perf_first_hour [--page tutorial.md] [--gguf FILE] [--environment VENV]

Builds the wheel, installs it into a fresh environment (or takes VENV, which has it), and goes through the
pages with an empty HOME each, in a network of its own (Linux, `unshare`) where a simulated Ollama sits on its
usual port: so every command is run as it stands on the page, and what a page shows after it is
compared, numbers aside. With a model, llama.cpp (xllamacpp) stands in
for `llama-server`. What comes out is compared to what the page says of it (`SAYS`). What this machine cannot
show is listed with its reason. It takes minutes, and the package registry twice.
"""

import argparse
import re
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread

from tests.fakes.daemon_process import child
from tests.fakes.llamacpp_server import LlamaServer
from tests.perf.harness import ROOT, options

HOW_TOS = sorted(f"docs/how-to/{page.name}" for page in ROOT.glob("docs/how-to/*.md"))
PAGES = ("README.md", "docs/tutorial.md", "docs/install.md", "docs/requests.md", *HOW_TOS)
BLOCK = re.compile(
    r"^(?P<words><!-- words of a model -->\n)?```(?P<kind>\w*)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE
)
OURS = re.compile(
    r"^(clairvoyant|eval|echo|curl|cat|sh|URL|kill|umask|key|git|python3?|uv|pipx|podman|docker|lms|mlx|vllm|llama)\b"
)
PUNCTUATION = re.compile(r"[│┃]")
DIFFERS = re.compile(
    r"\([0-9a-f]{8}\)|\b[0-9a-f]{5}-\d+\b|[\d.,]*\d[\d.,]*|/\S+/(?=clairvoyant\b)|[+-](?=\d)"
)
"""What differs from run to run and from machine to machine: ids, commits, numbers, folders."""

MODEL = "llama3.2", "replay:latest"
"""The pages' model, and that of the simulated Ollama."""

SERVING = re.compile(r"clairvoyant \S+: http://\S+ -> ")
PATIENCE_S = 600.0
ANSWERS = 220
"""Half of them Ada's."""

OTHER_MACHINES = ("192.168.1.20", "192.168.1.30")
"""Where the pages have other servers: a simulated Ollama listens there, too."""

SKIPPED = {
    r"^(uv tool|pipx|git pull|python3? -m venv)": "installs again; here the wheel is",
    r"^docker compose": "pulls images from the network",
    r"^lms |^mlx_lm|--backend (lmstudio|jan|mlx-lm)": "needs another server",
    r"clairvoyant service (start|stop|restart|status|logs|uninstall)": "changes the user's services",
    r"ollama run|goose session|--start .OLLAMA": "needs the program",
    r"clairvoyant batch|act (background|interactive)": "needs a batch of one's own",
    r"bench burst --report mine": "needs an hour",
    r"^vllm |^python -m sglang": "needs an engine on a GPU",
    r"^podman ": "needs podman; CI builds and starts the image",
    r"service install(?! --dry-run)": "changes the user's services",
    r"clairvoyant takeover": "moves the user's server",
    r"train |other-cases|--urgency mine": "needs cases of one's own",
    r"bench agents --url": "needs a running llama.cpp",
    r"6f3a1-12": "needs the id of a request that waits",
}
"""Commands that are left out, and why."""

INSTEAD = {
    "clairvoyant top": "clairvoyant status",
    "clairvoyant bench burst --report mine.html": "clairvoyant bench burst --report mine.html --requests 8",
    "clairvoyant bench burst --backend llama": "clairvoyant bench burst --quick --requests 6 --backend llama",
}
"""What is run in place of what needs a terminal, or an hour."""

SAYS = {
    r"^clairvoyant demo": r"(?:fcfs|sjf) .* after \d",
    r"^clairvoyant doctor": r"\d+ broken, \d+ warnings?",
    r"^echo \"\$OLLAMA_HOST \$OPENAI": r"http://127\.0\.0\.1:7117 http://127\.0\.0\.1:7117/v1",
    r"^clairvoyant top": r"serving on 127\.0\.0\.1:7117",
    r"bench burst .*--report quick.md": r"sooner|later|not significantly",
    r"^clairvoyant calibrate$": r"(?s)mu_short.*tau .*\(3 x mu_short\).*kept as",
    r"service install --dry-run": r"ExecStart=.*clairvoyant",
    r"env --client open-webui": r"http://\S+:7117/v1",
    r"^clairvoyant serve --slo": r"policy",
    r"kill -HUP": r"^$",
}
"""What a command must say, as its page promises."""

TRAFFIC = f"""
import httpx
from concurrent.futures import ThreadPoolExecutor
def ask(n):
    body = {{"model": "replay:latest", "messages": [{{"role": "user", "content": f"Tell me of {{n}}."}}],
             "stream": False, "options": {{"num_predict": 10 + n * 7 % 300}}}}
    who = {{"X-Clairvoyant-Client": "ada"}} if n % 2 else {{}}
    return httpx.post("http://127.0.0.1:7117/api/chat", json=body, headers=who, timeout=300).status_code
with ThreadPoolExecutor(4) as pool:
    assert set(pool.map(ask, range({ANSWERS}))) == {{200}}
"""


@dataclass
class Hour:
    """One page's hour: its HOME, its shell's directory, the daemon that stays in the foreground."""

    bin: Path
    home: Path
    gguf: Path | None
    llama: LlamaServer | None = None
    serving: "subprocess.Popen[str] | None" = None
    results: Counter[str] = field(default_factory=Counter)
    said: str = ""
    """What the last block printed; "" if it was left out."""

    @property
    def shell(self) -> dict[str, object]:
        path = f"{self.bin.absolute()}:/usr/local/bin:/usr/bin:/bin"
        variables = {"PATH": path, "HOME": str(self.home), "LANG": "C.UTF-8"}
        return {"cwd": self.home / "work", "env": variables, "text": True}

    def tell(self, verdict: str, command: str, why: str = "") -> None:
        self.results[verdict] += 1
        first = command.strip().splitlines()[0][:90]
        print(f"  {verdict:8} {first}{'   # ' + why if why else ''}", flush=True)

    def run(self, text: str) -> None:
        """Run some lines as the shell would, and compare what comes with what the page says."""
        any_code = re.search(r"^clairvoyant doctor", text, re.MULTILINE) is not None
        for given, instead in INSTEAD.items():
            text = re.sub(rf"^{given}", instead, text, flags=re.MULTILINE)
        text = text.replace(*MODEL)
        command = ["timeout", f"{PATIENCE_S:.0f}", "/bin/sh", "-u" if any_code else "-eu", "-c", text]
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "stdin": subprocess.DEVNULL}
        done = subprocess.run(command, **self.shell, **streams)  # type: ignore[call-overload]
        self.said += done.stdout
        wanted = [promise for command, promise in SAYS.items() if re.search(command, text, re.MULTILINE)]
        missing = [promise for promise in wanted if not re.search(promise, done.stdout, re.MULTILINE)]
        wrong = "Traceback" in done.stdout or missing or (done.returncode and not any_code)
        self.tell("FAILED" if wrong else "ok", text, f"wants {missing}" if missing else "")
        if wrong:
            last = "\n    ".join(done.stdout.splitlines()[-12:])
            print(f"    exit code {done.returncode}\n    {last}")

    def serve(self, command: str) -> None:
        """Start what stays in the foreground, in place of what did; it must say where it listens."""
        self.stop()
        streams = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
        started = ["/bin/sh", "-c", f"exec {command}"]
        serving = subprocess.Popen(started, **self.shell, **streams)  # type: ignore[call-overload]
        heard: list[str] = []
        for line in serving.stderr:
            heard.append(line)
            if SERVING.search(line):
                self.serving, self.said = serving, self.said + "".join(heard)
                Thread(target=serving.stderr.read, daemon=True).start()  # or it would wait for a reader
                self.tell("ok", command, "serves")
                return
        self.tell("FAILED", command, "".join(heard[-3:]).strip())

    def stop(self) -> None:
        """Send SIGTERM to what serves: it drains, and its exit code is 0."""
        if self.serving is not None:
            self.serving.send_signal(signal.SIGTERM)
            if self.serving.wait(timeout=PATIENCE_S):
                self.tell("FAILED", "SIGTERM", f"exit code {self.serving.returncode}")
            self.serving = None

    def compare(self, shown: str, *, words: bool) -> None:
        """Compare what the last block printed with what its page shows of it: each line, numbers aside."""
        printed = {alike(line) for line in self.said.splitlines()}
        missing = [line for line in shown.splitlines() if alike(line) not in printed]
        if words:  # a model says something else each time
            missing = [] if self.said.strip() else ["some words"]
        self.tell(
            "FAILED" if missing else "ok", f"shows: {shown}", f"not printed: {missing}" if missing else ""
        )
        if missing:
            print("    " + "\n    ".join(self.said.splitlines()[-20:]))

    def python(self, text: str) -> None:
        """Run a program of the page with the SDKs of this environment."""
        command = [sys.executable, "-c", text.replace(*MODEL)]
        done = subprocess.run(command, capture_output=True, **self.shell, check=False)  # type: ignore[call-overload]
        self.said = done.stdout
        self.tell("FAILED" if done.returncode else "ok", text, done.stderr[-300:])

    def start_llama(self, command: str) -> None:
        if self.gguf is None:
            self.tell("skipped", command, "needs a model; give --gguf")
            return
        model = self.home / "model.gguf"
        model.symlink_to(self.gguf.absolute())
        self.llama = LlamaServer(model, port=8080)
        self.llama.start()
        self.tell("ok", command, "xllamacpp serves the model")

    def follow(self, text: str) -> None:
        why = next((why for each, why in SKIPPED.items() if re.search(each, text, re.MULTILINE)), "")
        if "--backend llamacpp" in text and "--dry-run" not in text and self.llama is None:
            why = why or "needs a model; give --gguf"
        if why:
            self.tell("skipped", text, why)
        elif text.startswith("llama-server"):
            self.start_llama(text)
        elif text.startswith("clairvoyant serve"):
            self.serve(text)
        else:
            self.run(text)

    def walk(self, page: str) -> None:
        """Go through a page; before a trace is asked for, some questions are, so that there is a history."""
        print(page, flush=True)
        asked = False
        for block in BLOCK.finditer((ROOT / page).read_text()):
            if block["kind"] == "text":
                if self.said:
                    self.compare(block["text"], words=block["words"] is not None)
                continue
            self.said = ""
            if block["kind"] == "powershell":
                self.tell("skipped", block["text"], "needs Windows")
            if block["kind"] == "python":
                self.python(block["text"])
            for text in lines_of(block["text"]) if block["kind"] in ("", "sh") else ():
                if not OURS.search(text):
                    continue
                if page == "docs/requests.md" and self.serving is None:
                    self.serve("clairvoyant serve")
                if "history --trace" in text and self.serving is not None and not asked:
                    subprocess.run([self.bin / "python", "-c", TRAFFIC], **self.shell, check=True)  # type: ignore[call-overload]
                    asked = True
                self.follow(text)
        self.stop()
        if self.llama is not None:
            self.llama.stop()


def alike(line: str) -> str:
    """Return a line without what differs from run to run, its blanks as one."""
    return " ".join(DIFFERS.sub("#", PUNCTUATION.sub("", line)).split())


def lines_of(block: str) -> Iterator[str]:
    """Yield the commands of a block: those that serve alone, the others together as far as they go."""
    if "<<" in block:
        yield block
        return
    gathered: list[str] = []
    for line in block.replace("\\\n", " ").splitlines():
        bare = line.split("  #")[0].strip()
        serves = bare.startswith(("clairvoyant serve", "llama-server"))
        if serves or any(re.search(each, bare) for each in SKIPPED):
            if gathered:
                yield "\n".join(gathered)
            gathered = []
            yield bare
        elif bare:
            gathered.append(bare)
    if gathered:
        yield "\n".join(gathered)


def inside(given: argparse.Namespace, pages: list[str]) -> int:
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    for address in OTHER_MACHINES:
        subprocess.run(["ip", "address", "add", f"{address}/32", "dev", "lo"], check=True)
    total: Counter[str] = Counter()
    ollama = "--host 0.0.0.0 --port 11434 --decode 4000 --prefill 40000"
    with child("-m", "tests.fakes.replay_process", *ollama.split()):
        for page in pages:
            with tempfile.TemporaryDirectory() as home:
                hour = Hour(given.environment / "bin", Path(home), given.gguf)
                (hour.home / "work").mkdir()
                hour.walk(page)
                total += hour.results
    print(", ".join(f"{count} {verdict}" for verdict, count in sorted(total.items())))
    return 1 if total["FAILED"] else 0


def main() -> int:
    given = options(__doc__, page=list[str](), environment=Path, gguf=Path, inside=False)
    if given.inside:
        pages = [page for page in PAGES if not given.page or page.endswith(tuple(given.page))]
        return inside(given, pages)
    with tempfile.TemporaryDirectory() as directory:
        environment = given.environment or Path(directory) / "venv"
        if not environment.exists():
            uv = Path(sys.executable).with_name("uv")
            subprocess.run([uv, "build", "-q", "--wheel", "--out-dir", directory, ROOT], check=True)
            [wheel] = Path(directory).glob("*.whl")
            subprocess.run([uv, "venv", "-q", environment], check=True)
            subprocess.run(
                [uv, "pip", "install", "-q", "--python", environment, wheel, ROOT / "lab"], check=True
            )
        command = ["unshare", "-rn", sys.executable, "-m", "tests.perf.perf_first_hour", *sys.argv[1:]]
        return subprocess.run([*command, "--inside", "--environment", str(environment)], cwd=ROOT).returncode


if __name__ == "__main__":
    sys.exit(main())
