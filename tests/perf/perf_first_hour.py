"""A newcomer's first hour: every command of README, tutorial and how-tos, from the wheel alone.

    python tests/perf/perf_first_hour.py [--page tutorial.md] [--gguf FILE] [--windows "wine python.exe"]

Builds the wheel, installs it into a fresh environment, and goes through the pages with an empty HOME each, in
a network of its own (Linux, `unshare`) where a simulated Ollama sits on its usual port: so every command is
run as it stands on the page. With a model, llama.cpp (xllamacpp) stands in for `llama-server`; a folder made
as the Containerfile says for `podman`; and for Windows a Python for it that a command of yours runs (Wine),
where the wheel is installed. What comes out is compared to what the page says of it (`SAYS`). What this
machine cannot show is listed with its reason. It takes minutes, and the package registry twice.
"""

import argparse
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.fakes.llamacpp_server import LlamaServer  # noqa: E402
from tests.perf.containerfile import build  # noqa: E402

PAGES = (
    "README.md",
    "docs/tutorial.md",
    *sorted(f"docs/how-to/{p.name}" for p in ROOT.glob("docs/how-to/*.md")),
)
BLOCK = re.compile(r"^```(?P<kind>\w*)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE)
OURS = re.compile(r"^(clairvoyant|eval|echo|curl|kill|umask|key|python3?|uv|pipx|podman|vllm|llama)\b")
SERVING = re.compile(r"clairvoyant \S+: http://\S+ -> ")
PATIENCE_S = 600.0
ANSWERS = 220
"""Half of them Ada's."""

OTHER_MACHINES = ("192.168.1.20", "192.168.1.30")
"""Where the pages have other servers: a simulated Ollama listens there, too."""

SKIPPED = {
    r"^(uv tool|pipx|python3? -m venv)": "installs again; here the wheel is",
    r"^vllm |^python -m sglang": "needs an engine on a GPU",
    r"^podman unshare": "needs podman; here all belongs to one user",
    r"service install(?! --dry-run)": "changes the user's services",
    r"clairvoyant takeover": "moves the user's server",
    r"train |other-cases|--urgency mine": "needs cases of one's own",
    r"bench agents --url": "needs a running llama.cpp",
    r"6f3a1-12": "needs the id of a request that waits",
}
"""Commands that are left out, and why."""

INSTEAD = {
    "clairvoyant top": "clairvoyant top --once",
    "clairvoyant bench burst --report mine.html": "clairvoyant bench burst --report mine.html --requests 8",
    "clairvoyant bench burst --backend llama": "clairvoyant bench burst --quick --requests 6 --backend llama",
}
"""What is run in place of what needs a terminal, or an hour."""

ON_WINDOWS = {
    r"service (?!install --dry-run)": "changes the user's tasks",
    r"--backend lmstudio": "needs LM Studio",
}
"""Commands of PowerShell that are left out, and why."""

SAYS = {
    r"^clairvoyant demo": r"(?:fcfs|sjf) .* after \d",
    r"^clairvoyant doctor": r"\d+ broken, \d+ warnings?",
    r"^echo \"\$OLLAMA_HOST": r"http://127\.0\.0\.1:7117 http://127\.0\.0\.1:7117/v1",
    r"^clairvoyant top": r"serving on 127\.0\.0\.1:7117",
    r"bench burst .*--report quick.md": r"sooner|later|not significantly",
    r"^clairvoyant calibrate$": r"(?s)mu_short.*tau .*\(3 x mu_short\).*kept as",
    r"service install --dry-run": r"ExecStart=.*clairvoyant",
    r"env --client open-webui": r"http://\S+:7117/v1",
    r"^clairvoyant serve --slo": r"policy",
    r"kill -HUP": r"^$",
}
"""What a command must say, as its page promises."""


@dataclass
class Hour:
    """One page's hour: its HOME, its shell's directory, the daemon that stays in the foreground."""

    bin: Path
    home: Path
    gguf: Path | None = None
    image: Path | None = None
    windows: list[str] = field(default_factory=list)
    llama: LlamaServer | None = None
    serving: "subprocess.Popen[str] | None" = None
    results: Counter[str] = field(default_factory=Counter)

    @property
    def environment(self) -> dict[str, str]:
        """What a new account's shell has."""
        return {"PATH": f"{self.bin}:/usr/local/bin:/usr/bin:/bin", "HOME": str(self.home), "LANG": "C.UTF-8"}

    def tell(self, verdict: str, command: str, why: str = "") -> None:
        """Print what became of a command, and count it."""
        self.results[verdict] += 1
        first = command.strip().splitlines()[0][:90]
        print(f"  {verdict:8} {first}{'   # ' + why if why else ''}", flush=True)

    def run(self, text: str) -> None:
        """Run some lines as the shell would, and compare what comes with what the page says."""
        any_code = re.search(r"^clairvoyant doctor", text, re.MULTILINE) is not None
        for given, instead in INSTEAD.items():
            text = re.sub(rf"^{given}", instead, text, flags=re.MULTILINE)
        try:
            done = subprocess.run(
                ["/bin/sh", "-eu" if not any_code else "-u", "-c", text],
                cwd=self.home / "work",
                env=self.environment,
                capture_output=True,
                text=True,
                timeout=PATIENCE_S,
                check=False,
                stdin=subprocess.DEVNULL,
            )
        except subprocess.TimeoutExpired:
            self.tell("FAILED", text, f"not done after {PATIENCE_S:.0f} s")
            return
        said = done.stdout + done.stderr
        wanted = [promise for command, promise in SAYS.items() if re.search(command, text, re.MULTILINE)]
        missing = [promise for promise in wanted if not re.search(promise, said, re.MULTILINE)]
        wrong = "Traceback" in said or missing or (done.returncode and not any_code)
        self.tell("FAILED" if wrong else "ok", text, f"wants {missing}" if missing else "")
        if wrong:
            print(f"    exit code {done.returncode}\n    " + "\n    ".join(said.splitlines()[-12:]))

    def serve(self, command: str, instead: list[str] | None = None, **variables: str) -> None:
        """Start what stays in the foreground, in place of what did; it must say where it listens."""
        self.stop()
        serving = subprocess.Popen(
            instead or ["/bin/sh", "-c", f"exec {command}"],
            cwd=self.home / "work",
            env=(dict(os.environ) if self.windows else self.environment) | variables,
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
        )
        assert serving.stderr is not None
        heard: list[str] = []
        for line in serving.stderr:
            heard.append(line)
            if SERVING.search(line):
                self.serving = serving
                Thread(target=serving.stderr.read, daemon=True).start()  # or it would wait for a reader
                self.tell("ok", command, "serves")
                return
        self.tell("FAILED", command, "".join(heard[-3:]).strip())

    def stop(self) -> None:
        """Send SIGTERM to what serves: it drains, and its exit code is 0."""
        if self.serving is not None:
            self.serving.send_signal(signal.SIGTERM)
            if self.serving.wait(timeout=PATIENCE_S) and not self.windows:
                self.tell("FAILED", "SIGTERM", f"exit code {self.serving.returncode}")
            self.serving = None

    def start_llama(self, command: str) -> None:
        """Have llama.cpp serve on its usual port."""
        if self.gguf is None:
            self.tell("skipped", command, "needs a model; give --gguf")
            return
        model = self.home / "model.gguf"
        model.symlink_to(self.gguf.absolute())
        self.llama = LlamaServer(model, port=8080)
        self.llama.start()
        self.tell("ok", command, "xllamacpp serves the model")

    def build_image(self, command: str) -> None:
        """Find what the Containerfile made before there was no network."""
        made = None if self.image is None else build(ROOT, self.image, run=False)
        built = made is not None and Path(made.entry[0]).exists()
        self.tell("ok" if built else "FAILED", command, "a folder, as the Containerfile says")

    def run_image(self, command: str) -> None:
        """Start what the image starts, with the keys that were made and the flags of the command."""
        assert self.image is not None
        image = build(ROOT, self.image, run=False)
        for name in ("keys", "token"):
            shutil.copy(self.home / "work" / name, image.root / name)
        given = command.partition(" clairvoyant ")[2].replace("host.containers.internal", "127.0.0.1")
        self.serve(command, [*image.entry, *given.split()], **image.variables)

    def run_on_windows(self, line: str) -> None:
        """Run a line of PowerShell whose first command is ours; what that pipes into is left out."""
        ours = [*self.windows, "-m", "clairvoyant_cli", *shlex.split(line.partition(" | ")[0])[1:]]
        why = next((why for each, why in (ON_WINDOWS | SKIPPED).items() if re.search(each, line)), "")
        if why or not line.startswith("clairvoyant "):
            self.tell("skipped", line, why or "needs another program")
        elif line.startswith("clairvoyant serve"):
            self.serve(line, ours)
        else:
            ours += ["--once"] if ours[-1] == "top" else []
            done = subprocess.run(ours, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
            said = done.stdout + done.stderr
            wrong = "Traceback" in said or (done.returncode and "doctor" not in line)
            self.tell("FAILED" if wrong else "ok", line, "on Windows")
            if wrong:
                print(f"    exit code {done.returncode}\n    " + "\n    ".join(said.splitlines()[-12:]))

    def end(self) -> None:
        """Stop all that runs."""
        self.stop()
        if self.llama is not None:
            self.llama.stop()

    def traffic(self) -> None:
        """Ask some questions through the daemon, so that there is a history."""
        ask = f"""
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
        subprocess.run([self.bin / "python", "-c", ask], env=self.environment, check=True)


def lines_of(block: str) -> Iterator[str]:
    """Yield the commands of a block: those that serve alone, the others together as far as they go."""
    if "<<" in block:
        yield block
        return
    gathered: list[str] = []
    for line in block.replace("\\\n", " ").splitlines():
        bare = line.split("  #")[0].strip()
        alone = bare.startswith(("clairvoyant serve", "llama-server", "podman")) or any(
            re.search(each, bare) for each in SKIPPED
        )
        if alone and gathered:
            yield "\n".join(gathered)
            gathered = []
        if alone:
            yield bare
        elif bare:
            gathered.append(bare)
    if gathered:
        yield "\n".join(gathered)


def walk(page: str, hour: Hour) -> None:
    """Go through a page."""
    print(page, flush=True)
    asked = False
    blocks = [*BLOCK.finditer((ROOT / page).read_text())]
    for line in "".join(each["text"] for each in blocks if each["kind"] == "powershell").splitlines():
        if hour.windows:
            hour.run_on_windows(line.partition("  #")[0])
        else:
            hour.tell("skipped", line, "needs Windows; give --windows")
    for block in (each for each in blocks if each["kind"] in ("", "sh")):
        for text in lines_of(block["text"]):
            if not OURS.search(text):
                continue
            if "history --trace" in text and hour.serving is not None and not asked:
                hour.traffic()
                asked = True
            step(text, hour)
    hour.end()


def step(text: str, hour: Hour) -> None:
    """Follow one line, or some that belong together."""
    why = next((why for each, why in SKIPPED.items() if re.search(each, text, re.MULTILINE)), "")
    if "--backend llamacpp" in text and "--dry-run" not in text and hour.llama is None:
        why = why or "needs a model; give --gguf"
    if why:
        hour.tell("skipped", text, why)
        return
    for beginning, follow in {
        "llama-server": hour.start_llama,
        "podman build": hour.build_image,
        "podman run": hour.run_image,
        "clairvoyant serve": hour.serve,
        "": hour.run,
    }.items():
        if text.startswith(beginning):
            follow(text)
            return


@contextmanager
def simulated_ollama(environment: Path) -> Iterator[None]:
    """Run one on its usual port, at all addresses."""
    command = [str(environment / "bin" / "python"), "-m", "tests.fakes.replay_process"]
    more = ["--host", "0.0.0.0", "--port", "11434"]  # noqa: S104 - in a network of its own
    more += ["--decode", "4000", "--prefill", "40000"]
    running = subprocess.Popen([*command, *more], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert running.stdout is not None
    running.stdout.readline()
    try:
        yield
    finally:
        running.terminate()
        running.wait()


def inside(args: argparse.Namespace, pages: list[str]) -> int:
    """Walk the pages in a network that is ours alone."""
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    for address in OTHER_MACHINES:
        subprocess.run(["ip", "address", "add", f"{address}/32", "dev", "lo"], check=True)
    total: Counter[str] = Counter()
    with simulated_ollama(args.environment):
        for page in pages:
            with tempfile.TemporaryDirectory() as home:
                windows = shlex.split(args.windows) if page.endswith("windows.md") else []
                hour = Hour(args.environment / "bin", Path(home), args.gguf, args.image, windows)
                (hour.home / "work").mkdir()
                walk(page, hour)
                total += hour.results
    print(", ".join(f"{count} {verdict}" for verdict, count in sorted(total.items())))
    return 1 if total["FAILED"] else 0


def main() -> int:
    """Build, install, and walk."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--page", action="append", help="the end of a page's path; all of them, if none")
    parser.add_argument("--environment", type=Path, help="where the wheel is installed already")
    parser.add_argument("--gguf", type=Path, help="a small model for llama.cpp")
    parser.add_argument("--windows", default="", help="what runs a Python for Windows with the wheel")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--image", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    pages = [page for page in PAGES if not args.page or page.endswith(tuple(args.page))]
    if args.inside:
        return inside(args, pages)
    with tempfile.TemporaryDirectory() as directory:
        environment = args.environment or Path(directory) / "venv"
        if not environment.exists():
            uv = Path(sys.executable).with_name("uv")
            subprocess.run([uv, "build", "-q", "--wheel", "--out-dir", directory, ROOT], check=True)
            [wheel] = Path(directory).glob("*.whl")
            subprocess.run([uv, "venv", "-q", environment], check=True)
            subprocess.run([uv, "pip", "install", "-q", "--python", environment, wheel], check=True)
        image = Path(directory) / "image"
        if any(page.endswith("container.md") for page in pages):
            build(ROOT, image)
        command = ["unshare", "-rn", sys.executable, __file__, "--inside"]
        command += ["--environment", str(environment), "--image", str(image)]
        return subprocess.run([*command, *sys.argv[1:]], env=os.environ, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
