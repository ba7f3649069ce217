"""Makes the databases of earlier versions in `databases/`, each by the code of one commit, from git history.

    python -m tests.profiles.make_databases [COMMIT...]

That code stores a profile with a sample, and its daemon records three requests before a simulated Ollama. The
result is kept as SQL text, which shows what changes and has no free pages.
"""

import os
import re
import signal
import sqlite3
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import httpx

from tests.fakes.daemon_process import ROOT, child

FOLDER = Path(__file__).parent / "databases"
COMMITS = {
    "efb0154b": "the first that learns, schema 3",
    "0e517f9d": "the last of schema 3",
    "c7df763f": "the last of schema 4, with clocks and a tally",
    "6adcea7c": "the last of schema 5",
    "d1d17288": "the last of schema 6",
    "0e1bf9fe": "the last of schema 7",
    "a1e798f3": "the last of schema 8",
    "e155cd05": "the last of schema 9",
    "d854d080": "schema 10",
    "ba5a2913": "the last of schema 11",
    "f20c4161": "the last of schema 12",
    "9d75c5a2": "the last of schema 13",
    "90e6ab95": "the first of schema 14",
    "626008f7": "the last of schema 14",
    "4a43c1a2": "the last of schema 15",
}
PROMPTS = ("Name a colour.", "What is yeast?", "Spell cat.")
STORE_PROFILE = """
import sys
from dataclasses import fields
from pathlib import Path
from profiles import records, store
from profiles.database import writing

values = dict(
    name="gemma@ollama", measured_at=1.7e9, plan="standard", method="measured", concurrency=5,
    host=records.Host("A CPU", 8, 16, ("A GPU",), "550.1", "Linux 6.1", "x86_64"),
    served=records.Served("ollama", "gemma3:4b", "http://127.0.0.1:11434", version="0.40.0"),
    mu_short_s=records.Estimate(40.0, 35.0, 45.0, 100), tau_s=120.0, decode_tokens_per_s=30.0,
    prefill_tokens_per_s=500.0, ttft_s=0.4, load_s=3.0, slots=1,
)
if hasattr(records, "Continuation"):
    values["continuations"] = (records.Continuation("raw", 12, 12, 0.03, 0.02),)
names = {field.name for field in fields(records.Profile)}
with writing(Path(sys.argv[1])) as connection:
    profile = records.Profile(**{name: value for name, value in values.items() if name in names})
    store.save(connection, profile, [records.Sample("service", "a colour", 5, 9, 0.0, 0.1, 0.5)])
"""


def make(commit: str, folder: Path) -> None:
    """Write the database of a commit's code to `databases/`, as SQL."""
    tree, db = folder / "tree", folder / "c.db"
    tree.mkdir()
    archive = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True, check=True)
    subprocess.run(["tar", "-x", "-C", tree], input=archive.stdout, check=True)
    names = ("HOME", "XDG_STATE_HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME")
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(tree)} | dict.fromkeys(names, str(folder))
    subprocess.run([sys.executable, "-c", STORE_PROFILE, db], cwd=tree, env=environment, check=True)
    with child("-m", "tests.fakes.replay_process", "--slots", "2", "--decode", "2000") as backend:
        command = [sys.executable, "-m", "clairvoyant_cli", "serve", "--backend", backend]
        command += ["--listen", "127.0.0.1:0", "--db", str(db), "--record-prompts"]
        daemon = subprocess.Popen(
            command, cwd=tree, env=environment, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert daemon.stderr is not None
        url = next(found[1] for line in daemon.stderr if (found := re.search("(http://127[^ ,]+) ->", line)))
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda prompt: ask(url, prompt), PROMPTS))
        daemon.send_signal(signal.SIGTERM)
        daemon.communicate(timeout=60)
    with closing(sqlite3.connect(db)) as connection:
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        lines = [*connection.iterdump(), f"PRAGMA user_version = {version};"]
    (FOLDER / f"{version:02}-{commit}.sql").write_text("\n".join(lines) + "\n", encoding="utf-8")


def ask(url: str, prompt: str) -> None:
    body = {"model": "replay", "messages": [{"role": "user", "content": prompt}], "stream": False}
    httpx.post(f"{url}/api/chat", json=body, timeout=60, trust_env=False).raise_for_status()


if __name__ == "__main__":
    for each in sys.argv[1:] or COMMITS:
        with tempfile.TemporaryDirectory() as made:
            make(each, Path(made))
