"""A server's answers: only digests and lengths are kept, and the study knows their prompts again."""

import json
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest
from click.testing import CliRunner

from clairvoyant_cli.commands import study
from clairvoyant_cli.errors import ClairvoyantError

pytest.importorskip("xgboost")


class _Server(BaseHTTPRequestHandler):
    """Answers essays at length, and anything else shortly."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        tokens = 400 if "essay" in asked["messages"][0]["content"] else 30
        told = {"usage": {"completion_tokens": tokens}, "choices": [{"finish_reason": "stop"}]}
        body = json.dumps(told).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as the base class has it
        """Say nothing."""


@pytest.fixture
def url() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), _Server) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_lengths_are_measured_and_ranked_without_a_text_kept(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from predictor.research.training import answer_lengths

    prompts = [f"Write an essay about whale {n}" for n in range(30)] + [
        f"Who is whale {n}?" for n in range(30)
    ]
    file, lengths = tmp_path / "prompts.jsonl", tmp_path / "lengths.jsonl"
    file.write_text("\n".join(json.dumps({"prompt": prompt, "output_tokens": 100}) for prompt in prompts))
    for _ in range(2):  # what is known is not asked again
        monkeypatch.setattr(sys, "argv", ["answer_lengths", url, str(file), "--out", str(lengths)])
        answer_lengths.main()
    kept = lengths.read_text()
    assert len(kept.splitlines()) == len(prompts)
    assert "whale" not in kept
    result = CliRunner().invoke(study.command, ["answers", str(file), "--lengths", str(lengths), "--json"])
    rows = {row[0]: row for row in json.loads(result.stdout)["rows"]}
    assert rows["learning"][2] > 0.95


def test_the_study_needs_lengths(tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "x", "output_tokens": 1}')
    result = CliRunner().invoke(study.command, ["answers", str(file)])
    assert isinstance(result.exception, ClairvoyantError)


def test_of_a_real_models_answers_only_lengths_are_published() -> None:
    published = Path(__file__).parents[2] / "docs" / "bench" / "smollm2-lengths.jsonl"
    rows = [json.loads(line) for line in published.read_text("utf-8").splitlines()]
    assert {tuple(row) for row in rows} == {("digest", "output_tokens", "ended")}
    assert len({row["digest"] for row in rows}) == len(rows)
    assert all(len(row["digest"]) == 16 and 0 < row["output_tokens"] <= 512 for row in rows)
