"""docs/: the generated pages are current, links resolve, and shell snippets run."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from clairvoyant_lab.commands import COMMANDS as LABORATORY

from tests.perf.perf_first_hour import alike

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
WRITTEN = [
    page for page in PAGES if page.name not in ("reference.md", "metrics.md") and page.parent.name != "bench"
]
SNIPPET = re.compile(
    r"(?P<mark><!-- not run: (?P<why>.+?) -->\n)?```sh\n(?P<text>.*?)```(?:\n\n```text\n(?P<shown>.*?)```)?",
    re.DOTALL,
)


def snippets() -> list[tuple[str, str, str]]:
    return [
        (str(page.relative_to(DOCS)), found["text"], found["shown"] or "")
        for page in WRITTEN
        for found in SNIPPET.finditer(page.read_text())
        if not found["mark"]
    ]


def test_the_reference_is_current() -> None:
    done = subprocess.run(
        [sys.executable, "docs/generate.py", "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{done.stderr}; run: python docs/generate.py"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_resolve(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: page.name)
def test_shell_snippets_run_or_give_a_reason_not_to(page: Path) -> None:
    text = page.read_text()
    assert len(SNIPPET.findall(text)) == text.count("```sh\n")
    for command in re.findall(r"^clairvoyant ([a-z]+)\b", text, re.MULTILINE):
        known = f"### clairvoyant {command}" in (DOCS / "reference.md").read_text()
        assert known or (command in LABORATORY and "lab/README.md" in text), command


@pytest.mark.parametrize(("page", "snippet", "shown"), snippets())
def test_snippets_run_and_print_what_the_page_shows(
    page: str, snippet: str, shown: str, tmp_path: Path
) -> None:
    script = tmp_path / "bin" / "clairvoyant"
    script.parent.mkdir()
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m clairvoyant_cli "$@"\n')
    script.chmod(0o755)
    (tmp_path / "work").mkdir()
    environment = {
        "PATH": f"{script.parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "HOME": str(tmp_path),
        "LANG": "C.UTF-8",
    }
    done = subprocess.run(
        ["/bin/sh", "-eu", "-c", snippet],
        cwd=tmp_path / "work",
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{page}: {snippet}\n{done.stderr}"
    printed = {alike(line) for line in done.stdout.splitlines()}
    for line in shown.splitlines():
        assert alike(line) in printed, f"{page}: {line}\n{done.stdout}"
