"""Requests as they were sent, recorded or in files, are predicted, judged and learned as `serve` does."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from clairvoyant_lab.commands import evaluate, train
from clairvoyant_lab.commands.request_lines import recorded_requests, view_of, view_of_line
from click.testing import CliRunner, Result

import predictor
from clairvoyant_cli.commands import history
from clairvoyant_cli.config import ServeConfig
from clairvoyant_cli.errors import ClairvoyantError
from clairvoyant_cli.protocols.request_parsing import SMALL_BYTES
from clairvoyant_cli.proxy.daemon import running_daemon
from predictor.record import Task
from profiles.database import reading
from profiles.ledger import Ledger
from tests.fakes.calibrating import replay
from tests.fakes.remembered import FINISHED, START, keep, recorded

TOOLS = [{"type": "function", "function": {"name": "bash", "parameters": {}}}]
CALL = {"function": {"name": "bash", "arguments": {"command": "grep -n x a.py"}}}
ASKED = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Explain tides in depth"}]
STEP = [
    *ASKED,
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "content": "a.py:3: x"},
]
USE = {"type": "tool_use", "id": "1", "name": "bash", "input": {"command": "ls"}}
RESULT = {"type": "tool_result", "tool_use_id": "1", "content": "a.py"}
CALLED = {"type": "function_call", "name": "bash", "call_id": "1", "arguments": '{"command": "ls"}'}
OUTPUT = {"type": "function_call_output", "call_id": "1", "output": "a.py"}

BODIES: list[tuple[str, dict[str, Any]]] = [
    ("/api/chat", {"messages": ASKED, "options": {"num_predict": 50}}),
    ("/api/chat", {"messages": STEP, "tools": TOOLS, "keep_alive": "5m"}),
    ("/api/generate", {"prompt": "Write a story", "system": "Be brief."}),
    ("/v1/chat/completions", {"messages": ASKED, "max_completion_tokens": 60, "max_tokens": 40}),
    ("/v1/chat/completions", {"messages": STEP, "tools": TOOLS}),
    ("/v1/completions", {"prompt": "Once upon a time", "max_tokens": 30}),
    ("/v1/responses", {"input": "Why is the sky blue?", "instructions": "Be brief."}),
    ("/v1/responses", {"input": [ASKED[1], CALLED, OUTPUT], "tools": TOOLS}),
    ("/v1/messages", {"messages": ASKED[1:], "max_tokens": 300, "system": "Be brief."}),
    (
        "/v1/messages",
        {
            "messages": [
                ASKED[1],
                {"role": "assistant", "content": [USE]},
                {"role": "user", "content": [RESULT]},
            ],
            "max_tokens": 30,
            "tools": TOOLS,
        },
    ),
]


def _invoke(command: object, *arguments: object) -> Result:
    return CliRunner().invoke(command, [str(argument) for argument in arguments])  # type: ignore[arg-type]


async def _record(db: Path, bodies: list[tuple[str, dict[str, Any]]]) -> None:
    ledger, frozen = Ledger(db), predictor.load()
    frozen.frozen = True
    async with replay() as (_, url):
        config = ServeConfig(backend=url, listen="127.0.0.1:0", record_prompts=True)
        async with (
            running_daemon(config, frozen, persistence=ledger) as daemon,
            httpx.AsyncClient(base_url=daemon.base_url, timeout=60, trust_env=False) as http,
        ):
            for endpoint, body in bodies:
                answer = await http.post(endpoint, json={"model": "replay", "stream": False, **body})
                assert answer.status_code == 200, endpoint
    ledger.close()


async def test_a_recorded_request_is_predicted_as_it_was_when_it_was_served(tmp_path: Path) -> None:
    await _record(tmp_path / "c.db", BODIES)
    rows = recorded(tmp_path / "c.db")[::-1]
    assert [row.endpoint for row in rows] == [endpoint for endpoint, _ in BODIES]
    loaded = predictor.load()
    for row in rows:
        assert row.body is not None
        view = view_of(row.body.encode(), row.endpoint, row.client, row.backend)
        told = loaded.predict(view)
        assert (told.p_long, told.expected_tokens) == (row.p_long, row.expected_tokens), row.endpoint
        # Written as a line of a file, without the endpoint, it is recognised.
        for body in (row.body, json.loads(row.body)):
            line = view_of_line(json.dumps({"body": body, "client": row.client, "backend": row.backend}))
            assert (line.task, line.prompt, line.system, line.tools) == (
                view.task,
                view.prompt,
                view.system,
                view.tools,
            )


async def test_recorded_requests_can_be_used_to_train_and_evaluate(tmp_path: Path) -> None:
    pytest.importorskip("xgboost")
    asked = [
        f"Explain thing {number} in long detail" if number % 2 else f"Who is {number}?"
        for number in range(40)
    ]
    bodies = [("/api/chat", {"messages": [{"role": "user", "content": text}]}) for text in asked]
    db, file, out = tmp_path / "c.db", tmp_path / "requests.jsonl", tmp_path / "own"
    await _record(db, [*bodies, BODIES[1]])
    file.write_text(_invoke(history.command, "--trace", "--db", db).stdout)
    for source in ([file], ["--from-history", "--db", db]):
        trained = await asyncio.to_thread(_invoke, train.command, *source, "--out", out, "--min-long", 10)
        assert trained.exit_code == 0, trained.exception
        assert "40 requests, 1 left out" in trained.stderr  # the step of an agent
    judged = json.loads(_invoke(evaluate.command, file, "--predictor", out, "--json").stdout)
    assert (judged[0]["n"], judged[0]["n_long"]) == (41, 21)
    assert judged[0]["ranking_accuracy"] > 0.9


def test_with_learn_each_answer_is_learned_before_the_next_line(tmp_path: Path) -> None:
    file = tmp_path / "requests.jsonl"
    rows = [
        {
            "messages": [
                {"role": "user", "content": f"Task {'red' if number % 2 else 'blue'}: item {number}"}
            ],
            "output_tokens": 900 if number % 2 else 50,
        }
        for number in range(120)
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (static,) = json.loads(_invoke(evaluate.command, file, "--json").stdout)
    whole, late = json.loads(_invoke(evaluate.command, file, "--json", "--learn").stdout)
    assert (whole["n"], late["n"], late["file"]) == (120, 60, f"{file}, second half")
    assert late["ranking_accuracy"] > max(static["ranking_accuracy"], 0.9)
    again = json.loads(_invoke(evaluate.command, file, file, "--json", "--learn").stdout)
    assert again == [whole, late] * 2  # each file starts with nothing learned


def test_a_long_body_is_read_by_its_ends_as_by_serve() -> None:
    content = "Summarize: " + "rain " * SMALL_BYTES
    view = view_of(json.dumps({"messages": [{"role": "user", "content": content}]}).encode(), "", "", "")
    assert view.cut > 0
    assert view.characters == len(content)


def test_only_a_server_that_obeys_a_cap_has_it() -> None:
    body = json.dumps({"messages": ASKED, "max_completion_tokens": 60}).encode()
    caps = [view_of(body, "/v1/chat/completions", "", backend).max_tokens for backend in ("", "ollama")]
    assert caps == [60, None]


def test_a_line_that_was_not_recorded_is_skipped_and_older_prompts_are_read(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    rows = [
        {"body": None, "endpoint": "/api/chat", "output_tokens": 3},
        {"body": None, "prompt": "Who is it?", "output_tokens": 5},
        {"body": '{"prompt": "a", "suffix": "b"}', "endpoint": "/v1/completions", "output_tokens": 7},
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (judged,) = json.loads(_invoke(evaluate.command, file, "--json").stdout)
    assert judged["n"] == 2
    assert view_of_line(json.dumps(rows[2])).task is Task.INFILL


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ({"body": 3}, "not a JSON object"),
        ({"body": "{"}, "not a JSON object"),
        ({"body": {"model": "x"}}, "give its `endpoint`"),
        ({"body": {"messages": 3}}, "check `body` and `endpoint`"),
        ({"body": {"model": "x"}, "endpoint": "/api/chat"}, "check `body` and `endpoint`"),
        ({"body": {"input": "a"}, "endpoint": "/v1/embeddings"}, "generates no answer"),
        ({"body": {"input": "a"}, "endpoint": "/elsewhere"}, "generates no answer"),
        ({"body": {"prompt": "a"}, "endpoint": 3}, "endpoint"),
        ({"body": "\ud800"}, "cannot be read"),
    ],
)
def test_a_line_with_a_bad_body_is_one_clear_line(tmp_path: Path, line: dict[str, Any], says: str) -> None:
    file = tmp_path / "bad.jsonl"
    file.write_text('{"prompt": "a", "output_tokens": 3}\n' + json.dumps({**line, "output_tokens": 3}) + "\n")
    result = _invoke(evaluate.command, file)
    assert isinstance(result.exception, ClairvoyantError)
    assert "line 2: " in str(result.exception)
    assert says in str(result.exception)
    assert "\n" not in str(result.exception)


def test_recorded_requests_are_the_newest_answered_ones_in_order(tmp_path: Path) -> None:
    path = tmp_path / "p.db"
    rows = [
        replace(FINISHED, body='{"":1}', tokens=7),
        FINISHED,
        replace(FINISHED, body="{}", tokens=None),
        replace(FINISHED, body="{}", tokens=8),
        replace(FINISHED, body="{ }", tokens=9),
    ]
    keep(path, [replace(row, finished_at=START + number) for number, row in enumerate(rows)])
    with reading(path) as connection:
        found = {limit: [row.tokens for row in recorded_requests(connection, limit)] for limit in (11, 5, 4)}
    assert found == {11: [7, 8, 9], 5: [8, 9], 4: [9]}
