"""A scripted model: calls one tool a few times, then ends the task. Speaks chat, responses and messages.

An answer depends on the request's body alone, so the same agent goes the same way each time.
"""

import asyncio
import json
import re
from typing import Any

from tests.fakes.raw_http import Message, read_message

TOOL_TURNS = 3
TEXT = "The notes say four. Task done."
READING = re.compile(r"(bash|shell|command|exec|terminal|read_?file|read)", re.IGNORECASE)
COMMAND = "cat notes.txt"
ENDING = {"attempt_completion": "result", "final_answer": "answer", "finish": "message", "submit": "answer"}
"""Tools that end a task, and the argument for the answer."""

PIECE_S = 0.01


class ScriptedModel:
    """A server with one model."""

    async def play(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                await self._answer(await read_message(reader), writer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _answer(self, request: Message, writer: asyncio.StreamWriter) -> None:
        target = request.target.decode().partition("?")[0]
        route = target.rpartition("/")[2]
        if not (request.line.startswith(b"POST") and route in ROUTES):
            known = {"models": {"object": "list", "data": [{"id": "your-model", "object": "model"}]}}
            body = json.dumps(known.get(route, {"error": {"message": "unknown"}})).encode()
            status = "200 OK" if route in known or target == "/" else "404 Not Found"
            sent = b"" if request.line.startswith(b"HEAD") else body
            writer.write(_head(status, f"Content-Length: {len(body)}") + sent)
            return
        asked = json.loads(request.body)
        turn = len(asked.get("messages") or asked.get("input") or [])
        events = ROUTES[route](asked, turn, *_next_step(asked))
        if not asked.get("stream"):
            body = json.dumps(events[-1][1]).encode()
            writer.write(_head("200 OK", f"Content-Length: {len(body)}") + body)
            return
        writer.write(_head("200 OK", "Transfer-Encoding: chunked", "text/event-stream"))
        for name, event in events[:-1]:
            line = f"event: {name}\n" if name else ""
            piece = f"{line}data: {event if isinstance(event, str) else json.dumps(event)}\n\n".encode()
            writer.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            await writer.drain()
            await asyncio.sleep(PIECE_S)
        writer.write(b"0\r\n\r\n")


def _head(status: str, framing: str, kind: str = "application/json") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nX-Scripted: yes\r\n{framing}\r\n\r\n".encode()


Step = tuple[str, dict[str, Any]] | None
Events = list[tuple[str, Any]]
"""Named events of a stream; the last one is the answer that is not streamed."""


def _next_step(asked: dict[str, Any]) -> tuple[Step, str]:
    """Return the tool to call and its arguments, or None, and the text of the answer."""
    said = asked.get("messages") or asked.get("input") or []
    done = sum(
        each.get("role") == "assistant" or each.get("type") == "function_call"
        for each in said
        if isinstance(each, dict)
    )
    inner = [tool.get("function", tool) for tool in asked.get("tools") or []]
    tools = {
        each["name"]: each.get("parameters") or each.get("input_schema") or {}
        for each in inner
        if each.get("name")
    }
    if done >= TOOL_TURNS:
        for name in tools.keys() & ENDING.keys():
            return (name, {ENDING[name]: TEXT}), ""
        if list(tools) == ["bash"]:  # mini-swe-agent ends with a command
            return ("bash", {"command": "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; echo Task done"}), ""
        return None, TEXT
    usual = [name for name in tools if name not in ENDING]
    if not usual:
        return None, TEXT
    name = min(usual, key=lambda each: (not READING.search(each), len(each), each))
    return (name, _filled(tools[name])), "I look."


def _filled(schema: dict[str, Any], name: str = "") -> Any:
    """Return the least value that a schema allows; commands and paths are useful ones."""
    kind = schema.get("type", "string")
    kind = kind[0] if isinstance(kind, list) else kind
    if schema.get("enum"):
        return schema["enum"][0]
    if kind == "object" or "properties" in schema:
        wanted = schema.get("required", [])
        return {
            key: _filled(each, key) for key, each in schema.get("properties", {}).items() if key in wanted
        }
    if kind == "array":
        return [_filled(schema.get("items", {}), name)]
    if kind in ("integer", "number"):
        return schema.get("minimum", 1)
    if kind == "boolean":
        return False
    return COMMAND if re.match("(cmd|command)", name) else "notes.txt"


def _words(text: str) -> list[str]:
    return re.findall(r"\S+\s*", text)


def _chat(asked: dict[str, Any], turn: int, tool: Step, text: str) -> Events:
    known = {"id": "chat-1", "created": 1, "model": asked.get("model")}
    usage = {"prompt_tokens": 100, "completion_tokens": 9, "total_tokens": 109}
    message: dict[str, Any] = {"role": "assistant", "content": text}
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    deltas += [{"content": word} for word in _words(text)]
    if tool:
        called = {"name": tool[0], "arguments": json.dumps(tool[1])}
        call = {"id": f"call_{turn}", "type": "function", "function": called}
        message["tool_calls"] = [call]
        deltas.append({"tool_calls": [{"index": 0, **call}]})
    ended = "tool_calls" if tool else "stop"
    choices: list[dict[str, Any]] = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
    choices.append({"index": 0, "delta": {}, "finish_reason": ended})
    chunk = known | {"object": "chat.completion.chunk"}
    events: Events = [("", chunk | {"choices": [choice]}) for choice in choices]
    if (asked.get("stream_options") or {}).get("include_usage"):
        events.append(("", chunk | {"choices": [], "usage": usage}))
    whole = {"index": 0, "message": message, "finish_reason": ended}
    answer = known | {"object": "chat.completion", "choices": [whole], "usage": usage}
    return [*events, ("", "[DONE]"), ("", answer)]


def _responses(asked: dict[str, Any], turn: int, tool: Step, text: str) -> Events:
    item: dict[str, Any] = {"status": "completed"}
    if tool:
        item |= {"type": "function_call", "id": f"fc_{turn}", "call_id": f"call_{turn}"}
        item |= {"name": tool[0], "arguments": json.dumps(tool[1])}
    else:
        said = [{"type": "output_text", "text": text, "annotations": []}]
        item |= {"type": "message", "id": f"msg_{turn}", "role": "assistant", "content": said}
    usage = {"input_tokens": 100, "output_tokens": 9, "total_tokens": 109}
    begun = {"id": f"resp_{turn}", "object": "response", "created_at": 1, "model": asked.get("model")}
    ended = begun | {"status": "completed", "output": [item], "usage": usage}
    place = {"item_id": item["id"], "output_index": 0, "content_index": 0}
    deltas = [] if tool else [place | {"delta": word} for word in _words(text)]
    events: Events = [
        ("response.created", {"response": begun | {"status": "in_progress", "output": []}}),
        ("response.output_item.added", {"output_index": 0, "item": item | {"status": "in_progress"}}),
        *(("response.output_text.delta", delta) for delta in deltas),
        ("response.output_item.done", {"output_index": 0, "item": item}),
        ("response.completed", {"response": ended}),
    ]
    numbered = enumerate(events)
    return [
        *((name, {"type": name, "sequence_number": n} | event) for n, (name, event) in numbered),
        ("", ended),
    ]


def _messages(asked: dict[str, Any], turn: int, tool: Step, text: str) -> Events:
    known = {"id": f"msg_{turn}", "type": "message", "role": "assistant", "model": asked.get("model")}
    usage = {"input_tokens": 100, "output_tokens": 9}
    why = {"stop_reason": "tool_use" if tool else "end_turn", "stop_sequence": None}
    begun: dict[str, Any] = {"type": "text", "text": ""}
    content = [begun | {"text": text}]
    blocks = [(begun, [{"type": "text_delta", "text": word} for word in _words(text)])]
    if tool:
        block = {"type": "tool_use", "id": f"toolu_{turn}", "name": tool[0], "input": {}}
        blocks.append((block, [{"type": "input_json_delta", "partial_json": json.dumps(tool[1])}]))
        content.append(block | {"input": tool[1]})
    start = known | {"content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
    events: Events = [("message_start", {"message": start})]
    for index, (block, deltas) in enumerate(blocks):
        events.append(("content_block_start", {"index": index, "content_block": block}))
        events += [("content_block_delta", {"index": index, "delta": delta}) for delta in deltas]
        events.append(("content_block_stop", {"index": index}))
    events += [("message_delta", {"delta": why, "usage": usage}), ("message_stop", {})]
    return [
        *((name, {"type": name} | event) for name, event in events),
        ("", start | why | {"content": content}),
    ]


ROUTES = {"completions": _chat, "responses": _responses, "messages": _messages}
