"""Time the predictor beside the yardstick: the paper's features and a model of the paper's size.

Run it as `python -m pytest tests/perf/perf_predictor_speed.py -s -o addopts=` or as a script. All timings of
a table are taken in turn within one process, so that a busy machine slows them alike: compare ratios.
"""

import json
import random
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from time import perf_counter_ns, thread_time_ns
from typing import Any

import predictor
from clairvoyant_cli.protocols.prompt_views import VIEWS
from clairvoyant_cli.protocols.request_bodies import BODY
from clairvoyant_cli.protocols.routes import Shape
from predictor.lexical.predictor import LexicalPredictor
from predictor.paper.predictor import PaperPredictor
from predictor.record import PromptView

SENTENCE = (
    "Please write a Python function that reads the log file below, and explain how the algorithm treats "
    "lines which are malformed, because our service fails on them in production. "
    "Then compare two ways to test it. "
)
ROUNDS = 3000


def prompt_of(size: int) -> str:
    """Return a prompt of that many characters."""
    return (SENTENCE * (size // len(SENTENCE) + 1))[:size]


def time_in_turn(calls: dict[str, Callable[[], object]], rounds: int = ROUNDS) -> dict[str, list[float]]:
    """Return microseconds of each call, sorted."""
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            start = perf_counter_ns()
            call()
            taken[name].append((perf_counter_ns() - start) / 1000)
    return {name: sorted(times) for name, times in taken.items()}


def measure(size: int) -> dict[str, tuple[float, float]]:
    """Return p50 and p99 in microseconds for a prompt of `size` characters."""
    ours, paper = predictor.load(), predictor.load("paper")
    assert isinstance(ours, LexicalPredictor)
    assert isinstance(paper, PaperPredictor)
    prompt = prompt_of(size)
    view = PromptView(prompt)
    times = time_in_turn(
        {
            "paper: features + inference": lambda: paper.probabilities(prompt),
            "ours: features + inference": lambda: ours._model.read(prompt),
            "paper: whole record": lambda: paper.predict(view),
            "ours: whole record": lambda: ours.predict(view),
        }
    )
    return {name: (each[len(each) // 2], each[len(each) * 99 // 100]) for name, each in times.items()}


def agent_body(shape: Shape, steps: int, size: int) -> bytes:
    """Return an agent's request of about that many bytes: a system prompt, 20 tools, and steps."""
    tools: list[Any] = [{"name": f"tool{number}", "description": prompt_of(800)} for number in range(20)]
    text, arguments = (
        prompt_of((size - 33_000) // steps - 350),
        json.dumps({"command": f"ls {prompt_of(150)}"}),
    )
    given: dict[str, Any] = {"model": "m", "tools": tools}
    system = prompt_of(15_000)
    if shape is Shape.RESPONSES:
        items = [
            {"type": "function_call", "name": "bash", "call_id": "1", "arguments": arguments},
            {"type": "function_call_output", "call_id": "1", "output": text},
        ]
        return json.dumps({**given, "instructions": system, "input": items * steps}).encode()
    if shape is Shape.MESSAGES:
        use = {"type": "tool_use", "id": "1", "name": "bash", "input": json.loads(arguments)}
        parts = [{"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": text}]}]
        turns: list[Any] = [{"role": "assistant", "content": [use]}, {"role": "user", "content": parts}]
        return json.dumps({**given, "system": system, "messages": turns * steps}).encode()
    function = {"id": "1", "type": "function", "function": {"name": "bash", "arguments": arguments}}
    call: dict[str, Any] = {"role": "assistant", "content": "", "tool_calls": [function]}
    messages: list[Any] = [call, {"role": "tool", "tool_call_id": "1", "content": text}]
    asked = [{"role": "system", "content": system}, {"role": "user", "content": SENTENCE}]
    return json.dumps({**given, "messages": asked + messages * steps}).encode()


def agents_us(size: int = 100_000) -> dict[str, tuple[float, float]]:
    """Return p50 and p99 in microseconds of reading a body and predicting its answer, by dialect."""
    ours = predictor.load()
    calls: dict[str, Callable[[], object]] = {}
    for shape in (Shape.CHAT, Shape.MESSAGES, Shape.RESPONSES):
        for steps in (20, 40):
            body = agent_body(shape, steps, size)
            calls[f"{shape.name.lower()}, {steps} steps: read"] = partial(_read, shape, body)
            calls[f"{shape.name.lower()}, {steps} steps: predict"] = partial(ours.predict, _read(shape, body))
    times = time_in_turn(calls, 300)
    return {name: (each[len(each) // 2], each[len(each) * 99 // 100]) for name, each in times.items()}


def _read(shape: Shape, body: bytes) -> PromptView:
    return VIEWS[shape](BODY.decode(body), "m", "eve")


def learning_ms(answers: int = 2000) -> dict[str, tuple[float, float]]:
    """Return p50 and p99 of learning an answer and of exporting, in milliseconds of this thread's time."""
    ours = predictor.load()
    words = [f"word{number}" for number in range(3000)]
    generator = random.Random(7)
    learning, exporting = [], []
    for number in range(answers):
        prompt = " ".join(generator.choices(words, k=generator.randint(5, 60)))
        prediction = ours.predict(PromptView(prompt, model="m"))
        start = thread_time_ns()
        ours.learn(prediction, generator.randint(20, 1500))
        learning.append((thread_time_ns() - start) / 1e6)
        if number % 10 == 9:
            start = thread_time_ns()
            ours.export_state()
            exporting.append((thread_time_ns() - start) / 1e6)
    timed = {"learn": sorted(learning[answers // 2 :]), "export": sorted(exporting[len(exporting) // 2 :])}
    return {name: (each[len(each) // 2], each[len(each) * 99 // 100]) for name, each in timed.items()}


def cold_load_ms() -> tuple[float, float]:
    """Return milliseconds to import the libraries, and to load and predict once, in a fresh process."""
    code = (
        "from time import perf_counter as t; a = t(); import onnxruntime, numpy; b = t(); import predictor; "
        "from predictor.record import PromptView; predictor.load().predict(PromptView('x')); "
        "print((b - a) * 1000, (t() - b) * 1000)"
    )
    runs = [
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout.split()
        for _ in range(5)
    ]
    return min(float(run[0]) for run in runs), min(float(run[1]) for run in runs)


def test_speed() -> None:
    for size in (100, 1024, 32 * 1024):
        for name, (p50, p99) in measure(size).items():
            print(f"{size:6} characters  {name:28} p50 {p50:7.1f} us  p99 {p99:7.1f} us")
    for name, (p50, p99) in agents_us().items():
        print(f"100 KB of an agent  {name:28} p50 {p50:7.1f} us  p99 {p99:7.1f} us")
    for name, (p50, p99) in learning_ms().items():
        print(f"{name:7} p50 {p50:.3f} ms  p99 {p99:.3f} ms")
    libraries, load = cold_load_ms()
    print(f"cold: libraries {libraries:.0f} ms, model and first prediction {load:.0f} ms")


if __name__ == "__main__":
    test_speed()
