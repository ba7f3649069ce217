"""Time the predictor: questions, agents' requests, learning, levels of urgency, and a cold start.

    python -m tests.perf.perf_predictor_speed [--rounds 3000]

All timings of a table are taken in turn within one process, so that a busy machine slows them alike: compare
ratios. Learning and levels of urgency are timed by this thread's own time.
"""

import json
import random
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from time import perf_counter_ns, thread_time_ns
from typing import Any

from clairvoyant_lab.training.urgency_cases.writing import read_day

import predictor
from clairvoyant_cli.protocols.prompt_views import VIEWS
from clairvoyant_cli.protocols.request_bodies import BODY
from clairvoyant_cli.protocols.routes import Shape
from predictor.lexical.predictor import LexicalPredictor
from predictor.loading import MODELS, URGENCY
from predictor.record import PromptView
from predictor.urgency.model import UrgencyModel
from tests.perf.harness import options, quantiles

SENTENCE = (
    "Please write a Python function that reads the log file below, and explain how the algorithm treats "
    "lines which are malformed, because our service fails on them in production. "
    "Then compare two ways to test it. "
)
VITAL_SIGNS = (
    "1 ", "99 ", "12/13 ", "9/10 ", "99% ", "99 for ", "10 - ", "pain ", "rated ", "sat ", "bp ", "bp 1 ",
    "temperature and ", "heart rate was about the ", "responds to ", "no pain ", "1 year ", "a", " ",
)  # fmt: skip
"""Texts made of these keep the search for vital signs busy."""


def prompt_of(size: int) -> str:
    return (SENTENCE * (size // len(SENTENCE) + 1))[:size]


def took_us(call: Callable[[], object], clock: Callable[[], int] = perf_counter_ns) -> float:
    start_ns = clock()
    call()
    return (clock() - start_ns) / 1000


def show(name: str, times_us: Sequence[float]) -> None:
    p50, p99 = quantiles(times_us, 0.5, 0.99)
    print(f"{name:48} p50 {p50:7.1f} us  p99 {p99:7.1f} us  fastest {min(times_us):7.1f} us", flush=True)


def in_turn(title: str, calls: dict[str, Callable[[], object]], rounds: int) -> None:
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            taken[name].append(took_us(call))
    for name, times_us in taken.items():
        show(f"{title}: {name}", times_us)


def questions(size: int, rounds: int) -> None:
    ours = predictor.load()
    assert isinstance(ours, LexicalPredictor)
    prompt = prompt_of(size)
    calls: dict[str, Callable[[], object]] = {
        "features and score": partial(ours._model.read, prompt),
        "whole prediction": partial(ours.predict, PromptView(prompt)),
    }
    in_turn(f"{size} characters", calls, rounds)


def agent_body(shape: Shape, steps: int, size: int) -> bytes:
    """Return an agent's request of about that many bytes: a system prompt, 20 tools, and steps."""
    tools: list[Any] = [{"name": f"tool{number}", "description": prompt_of(800)} for number in range(20)]
    text = prompt_of((size - 33_000) // steps - 350)
    arguments = json.dumps({"command": f"ls {prompt_of(150)}"})
    given: dict[str, Any] = {"model": "m", "tools": tools}
    system = prompt_of(15_000)
    if shape is Shape.RESPONSES:
        items = [
            {"type": "function_call", "name": "bash", "call_id": "1", "arguments": arguments},
            {"type": "function_call_output", "call_id": "1", "output": text},
        ]
        return json.dumps(given | {"instructions": system, "input": items * steps}).encode()
    if shape is Shape.MESSAGES:
        use = {"type": "tool_use", "id": "1", "name": "bash", "input": json.loads(arguments)}
        parts = [{"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": text}]}]
        turns: list[Any] = [{"role": "assistant", "content": [use]}, {"role": "user", "content": parts}]
        return json.dumps(given | {"system": system, "messages": turns * steps}).encode()
    function = {"id": "1", "type": "function", "function": {"name": "bash", "arguments": arguments}}
    call: dict[str, Any] = {"role": "assistant", "content": "", "tool_calls": [function]}
    messages: list[Any] = [call, {"role": "tool", "tool_call_id": "1", "content": text}]
    asked = [{"role": "system", "content": system}, {"role": "user", "content": SENTENCE}]
    return json.dumps(given | {"messages": asked + messages * steps}).encode()


def agents(rounds: int, size: int = 100_000) -> None:
    ours = predictor.load()
    calls: dict[str, Callable[[], object]] = {}
    for shape in (Shape.CHAT, Shape.MESSAGES, Shape.RESPONSES):
        for steps in (20, 40):
            read = partial(_read, shape, agent_body(shape, steps, size))
            calls[f"{shape.name.lower()}, {steps} steps, read"] = read
            calls[f"{shape.name.lower()}, {steps} steps, predict"] = partial(ours.predict, read())
    in_turn("100 KB of an agent", calls, rounds)


def _read(shape: Shape, body: bytes) -> PromptView:
    return VIEWS[shape](BODY.decode(body))


def learning(answers: int) -> None:
    ours, rng = predictor.load(), random.Random(7)
    words = [f"word{number}" for number in range(3000)]
    learned, exported = [], []
    for number in range(answers):
        prediction = ours.predict(PromptView(" ".join(rng.choices(words, k=rng.randint(5, 60))), model="m"))
        learned.append(took_us(partial(ours.learn, prediction, rng.randint(20, 1500)), thread_time_ns))
        if number % 10 == 9:
            exported.append(took_us(ours.export_state, thread_time_ns))
    show("learn an answer", learned[answers // 2 :])
    show("export", exported[len(exported) // 2 :])


def urgency(rounds: int, records: int = 200, characters: int = 6000) -> None:
    """Time the level of records, and of texts made to keep the search for vital signs busy."""
    model = UrgencyModel(MODELS / URGENCY, "")

    def level_us(text: str) -> float:
        return median(took_us(partial(model.level, PromptView(text)), thread_time_ns) for _ in range(rounds))

    show("level of urgency, records", [level_us(case.text) for case in read_day()[:records]])
    hostile = [level_us((piece * characters)[:characters]) for piece in VITAL_SIGNS]
    print(f"level of urgency, {characters} hostile characters: longest {max(hostile):.0f} us")


def cold_load() -> None:
    """Time importing the libraries, and loading and predicting once, in a fresh process."""
    code = (
        "from time import perf_counter as t; a = t(); import onnxruntime, numpy; b = t(); import predictor; "
        "from predictor.record import PromptView; predictor.load().predict(PromptView('x')); "
        "print((b - a) * 1000, (t() - b) * 1000)"
    )
    runs = [subprocess.check_output([sys.executable, "-c", code], text=True).split() for _ in range(5)]
    libraries, load = (min(map(float, column)) for column in zip(*runs, strict=True))
    print(f"cold: libraries {libraries:.0f} ms, model and first prediction {load:.0f} ms")


def main() -> None:
    rounds = options(__doc__, rounds=3000).rounds
    for size in (100, 1024, 32 * 1024):
        questions(size, rounds)
    agents(max(1, rounds // 20))
    learning(max(20, rounds * 2 // 3))
    urgency(max(1, rounds // 300))
    cold_load()


if __name__ == "__main__":
    main()
