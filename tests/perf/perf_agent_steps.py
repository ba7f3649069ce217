"""Serves the steps of recorded agents: each is predicted, then learned from, four sessions beside each other.

python -m tests.perf.perf_agent_steps FILE...

A line of a FILE (JSON, gzipped or not) is a step: `session`, `step`, `model`, `protocol` ("native" where
tools are called by the API, "text"), `tools`, `new` and `new_chars` (what came since the latest answer),
`new_role`, `last_tool`, `last_cmd`, `prev_answers` (characters, the latest last), `prev_tools`,
`history_chars`, `system_chars`, and `answer_tokens` or `answer_chars`.
"""

import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np

from clairvoyant_cli.protocols.agent_steps import _failed
from predictor.loading import load_model
from predictor.record import PromptView, Step, Turn
from predictor.text_lines import lines_of
from tests.perf.perf_online_learning import SOON, serve

BESIDE = 4
FIRST = slice(100)


def steps(path: Path, seed: int = 0) -> Iterator[dict[str, Any]]:
    """Yield the steps of a file: each session in order, some sessions beside each other."""
    sessions: dict[str, list[dict[str, Any]]] = {}
    for line in lines_of(path):
        row = json.loads(line)
        sessions.setdefault(row["session"], []).append(row)
    chosen = random.Random(seed)
    waiting = [sorted(rows, key=lambda row: -row["step"]) for rows in sessions.values()]
    chosen.shuffle(waiting)
    live: list[list[dict[str, Any]]] = []
    while waiting or live:
        while waiting and len(live) < BESIDE:
            live.append(waiting.pop(0))
        session = chosen.choice(live)
        yield session.pop()
        if not session:
            live.remove(session)


def view_of(row: dict[str, Any]) -> PromptView:
    """Return what a proxy sees of a step: of agents that call no tools by the API, no tools."""
    native = row["protocol"] != "text"
    tools = [tool or "" for tool in reversed(row["prev_tools"] or [])] if native else []
    if native and row["last_tool"] and tools[:1] != [row["last_tool"]]:
        tools.insert(0, row["last_tool"])
    answers = [int(count) for count in row["prev_answers"] or []]
    offered = row["tools"] if native else None
    whose = f"{row.get('harness') or ''} {(row['system_chars'] or 0) // 1000}"
    step = Step(
        new_characters=row["new_chars"],
        is_result=row["new_role"] in ("tool", "function"),
        failed=_failed(row["new"]),
        answers=tuple(reversed(answers)),
        tools=tuple(tools),
        command=row["last_cmd"] or "",
        answered=row["step"],
        read_characters=row["history_chars"] or 0,
        harness=crc32(whose.encode()) if native else 0,
    )
    return PromptView(
        row["new"],
        cut=max(0, row["new_chars"] - len(row["new"])),
        system=f"system {whose}",
        history=tuple(Turn("assistant", "", count) for count in answers),
        tools=len(offered) if isinstance(offered, list) else offered or 0,
        model=row["model"],
        client="agent",
        step=step if row["step"] or offered else None,
    )


def figures(path: Path) -> list[float]:
    """Return the pairs ranked rightly that differ by a fifth: without learning, then with it of the first 100
    requests, of 100 to 200, and of the second half. Last come the errors of the class probabilities, of the
    first 100 and of the second half.
    """
    rows = list(steps(path))
    tokens = np.array([row.get("answer_tokens") or max(1.0, row["answer_chars"] / 4) for row in rows])
    served = serve(load_model(), map(view_of, rows), tokens)
    late = slice(len(rows) // 2, None)
    learnt = [served.pairs(some)[1] for some in (FIRST, SOON, late)]
    return [served.pairs(slice(None))[0], *learnt, *(served.error(some) for some in (FIRST, late))]


if __name__ == "__main__":
    paths = [Path(path) for path in sys.argv[1:]]
    judged = [figures(path) for path in paths]
    for name, row in [*zip([path.name for path in paths], judged, strict=True), ("mean", np.mean(judged, 0))]:
        print(f"{name:40}", *(f"{value:.3f}" for value in row))
