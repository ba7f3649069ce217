"""Where an agent's task stands, read from requests of every dialect."""

import json
from typing import Any

import pytest
from msgspec import Raw

from clairvoyant_cli.protocols.lenient_json import object_in
from clairvoyant_cli.protocols.prompt_views import view_of
from clairvoyant_cli.protocols.routes import Shape
from predictor.record import PromptView, Step

COMMAND = {"command": "sed -i s/a/b/ x.py"}
ASKED = {"role": "user", "content": "fix it"}
TOOLS = [{"type": "function", "function": {"name": "bash"}}]
FUNCTION = {"name": "bash", "arguments": json.dumps(COMMAND)}
CALLS = [{"id": "call_0123456789abcdef", "type": "function", "function": FUNCTION}]
CALL = {"role": "assistant", "content": "", "tool_calls": CALLS}
RESULT = {"role": "tool", "content": "No such file"}
OLLAMA_CALL = {**CALL, "tool_calls": [{"function": {"name": "bash", "arguments": COMMAND}}]}
USED = {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "bash", "input": COMMAND}]}
GIVEN = {"role": "user", "content": [{"type": "tool_result", "content": "No such file"}]}
ITEMS = [
    ASKED,
    {"type": "reasoning", "summary": []},
    {"type": "function_call", "call_id": "1", **FUNCTION},
    {"type": "function_call_output", "call_id": "1", "output": "No such file"},
]


def viewed(shape: Shape, **body: Any) -> PromptView:
    return view_of(shape, object_in(Raw(json.dumps(body).encode())))


def step_of(shape: Shape, **body: Any) -> Step:
    step = viewed(shape, **body).step
    assert step is not None
    return step


@pytest.mark.parametrize(
    ("shape", "body"),
    [
        (Shape.CHAT, {"messages": [ASKED, CALL, RESULT]}),
        (Shape.CHAT, {"messages": [ASKED, {**CALL, "content": None}, RESULT]}),
        (Shape.OLLAMA_CHAT, {"messages": [ASKED, OLLAMA_CALL, RESULT]}),
        (Shape.MESSAGES, {"messages": [ASKED, USED, GIVEN]}),
        (Shape.RESPONSES, {"input": ITEMS}),
    ],
)
def test_a_tools_result_and_the_call_before_it(shape: Shape, body: dict[str, Any]) -> None:
    step = step_of(shape, **body, tools=TOOLS)
    assert (step.tools, step.command) == (("bash",), "sed -i")
    assert (step.new_characters, step.is_result, step.failed) == (len("No such file"), True, True)
    assert len(json.dumps(COMMAND)) - 5 <= step.answers[0] <= len(json.dumps(COMMAND)) + 25
    assert viewed(shape, **body, tools=TOOLS).prompt == "No such file"


def test_a_persons_words_after_answers() -> None:
    said = [{"role": "assistant", "content": "a" * count} for count in (10, 20, 30, 40, 50, 60, 70)]
    messages = [each for answer in said for each in (ASKED, answer)]
    step = step_of(Shape.CHAT, messages=[*messages, ASKED])
    assert step.answers == (70, 60, 50, 40, 30)
    assert (step.answered, step.new_characters, step.is_result) == (7, 6, False)


def test_a_fenced_command_is_a_call_of_agents_without_tools() -> None:
    answer = {"role": "assistant", "content": "I look.\n```bash\ncat <<'EOF' > a.py\nx\n```\n"}
    step = step_of(Shape.CHAT, messages=[ASKED, answer, {"role": "user", "content": "done"}])
    assert step.command == "cat <<"


def test_agents_are_known_by_their_tools() -> None:
    first = step_of(Shape.CHAT, messages=[ASKED], tools=TOOLS)
    other = step_of(Shape.CHAT, messages=[ASKED], tools=[{"type": "function", "function": {"name": "look"}}])
    again = step_of(Shape.CHAT, messages=[ASKED, CALL, ASKED], tools=TOOLS)
    assert first.harness == again.harness != other.harness
    assert step_of(Shape.RESPONSES, input="fix it", tools=TOOLS).new_characters == len("fix it")


def test_a_question_is_no_step() -> None:
    assert viewed(Shape.CHAT, messages=[ASKED]).step is None


@pytest.mark.parametrize(
    "calls", [{}, [], "x", [1], [{"function": 3}], [{"function": {"arguments": 7}}], [[]]]
)
def test_odd_calls_are_no_calls(calls: Any) -> None:
    step = step_of(Shape.CHAT, messages=[ASKED, {**CALL, "tool_calls": calls}, ASKED], tools=TOOLS)
    assert (step.tools, step.command) == (("",), "")
