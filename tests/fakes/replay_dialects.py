"""Adds routes to the replay backend: Ollama's generation and embeddings, OpenAI's completions, Responses and
embeddings, Anthropic's Messages; and the requests of Ollama that load a model or render a prompt.
"""

import re
from dataclasses import asdict, dataclass, replace
from string import ascii_lowercase
from weakref import WeakKeyDictionary

from clairvoyant_lab.replay import Engine, digest
from clairvoyant_lab.replay.app import Replay, send_json
from clairvoyant_lab.replay.dialects import (
    BEGIN,
    DIALECTS,
    END,
    Answer,
    Ask,
    Json,
    OllamaChat,
    OpenAIChat,
    RefusedError,
    cap_of,
    model_of,
    read_turns,
    sse,
    template,
    text_of,
    timestamp,
    wants_usage,
)
from clairvoyant_lab.replay.engine import WORDS
from starlette.types import Send

TURN = re.compile(rf"{re.escape(BEGIN)}(\w+)\n(.*?)(?:{re.escape(END)}|\Z)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class RawAsk(Ask):
    """A request whose prompt may be `raw`."""

    raw: bool = False


class OllamaGenerate(OllamaChat):
    """POST /api/generate."""

    def read(self, body: Json) -> Ask:
        return RawAsk(**asdict(self._read(body)), raw=body.get("raw") is True)

    def _read(self, body: Json) -> Ask:
        prompt, system = (
            text if isinstance(text, str) else "" for text in (body.get("prompt"), body.get("system"))
        )
        if body.get("raw") is not True:
            return self._ask(body, prompt, len(prompt) + len(system))
        turns = [{"role": role, "content": text} for role, text in TURN.findall(prompt)]
        if turns:
            return self._ask(body, *read_turns(turns))
        return self._ask(body, prompt, len(prompt))

    def whole(self, answer: Answer, text: str) -> Json:
        """Return the final object; its context has as many token ids as there are tokens."""
        if isinstance(answer.ask, RawAsk) and answer.ask.raw:
            return super().whole(answer, text)
        tokens = answer.service.prompt_tokens + answer.service.planned_tokens
        return super().whole(answer, text) | {"context": list(range(tokens))}

    def _content(self, text: str) -> Json:
        return {"response": text}


class OpenAICompletion(OpenAIChat):
    """POST /v1/completions."""

    id_prefix = "cmpl-"
    kind = stream_kind = "text_completion"

    def read(self, body: Json) -> Ask:
        prompt = body.get("prompt")
        if isinstance(prompt, list):
            prompt = "\n".join(part for part in prompt if isinstance(part, str))
        prompt = prompt if isinstance(prompt, str) else ""
        cap, stream = cap_of(body.get("max_tokens")), body.get("stream") is True
        return RawAsk(model_of(body), prompt, len(prompt), cap, stream, wants_usage=wants_usage(body))

    def _choice(self, text: str, field: str, reason: str | None) -> Json:
        return {"text": text, "index": 0, "finish_reason": reason}


def named_event(kind: str, fields: Json) -> bytes:
    return sse({"type": kind} | fields, event=kind)


class OpenAIResponses(OpenAIChat):
    """POST /v1/responses: named events, usage in the last one, no terminator."""

    def read(self, body: Json) -> Ask:
        given = body.get("input")
        if isinstance(given, list):
            prompt, chars, _ = read_turns(given, continues=False)
        else:
            prompt = text_of(given)
            chars = len(prompt)
        chars += len(text_of(body.get("instructions")))
        cap = cap_of(body.get("max_output_tokens"))
        return Ask(model_of(body), prompt, chars, cap, stream=body.get("stream") is True)

    def opening(self, answer: Answer) -> bytes:
        """Return the events that announce the response and its one text part."""
        started = {"response": self._response(answer, "in_progress", [])}
        item = {"output_index": 0, "item": self._item(answer, "in_progress", [])}
        events: dict[str, Json] = {
            "response.created": started,
            "response.in_progress": started,
            "response.output_item.added": item,
            "response.content_part.added": self._place(answer) | {"part": self._part("")},
        }
        return b"".join(named_event(kind, fields) for kind, fields in events.items())

    def token(self, answer: Answer, word: str) -> bytes:
        return named_event(
            "response.output_text.delta", self._place(answer) | {"delta": word, "logprobs": []}
        )

    def closing(self, answer: Answer, text: str) -> bytes:
        """Return the events that close the part, the item and the response."""
        place, part = self._place(answer), self._part(text)
        item = self._item(answer, "completed", [part])
        events: dict[str, Json] = {
            "response.output_text.done": place | {"text": text, "logprobs": []},
            "response.content_part.done": place | {"part": part},
            "response.output_item.done": {"output_index": 0, "item": item},
            f"response.{self._status(answer)}": {"response": self.whole(answer, text)},
        }
        return b"".join(named_event(kind, fields) for kind, fields in events.items())

    def whole(self, answer: Answer, text: str) -> Json:
        counts = {
            "input_tokens": answer.service.prompt_tokens,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": answer.service.planned_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": answer.service.prompt_tokens + answer.service.planned_tokens,
        }
        item = self._item(answer, "completed", [self._part(text)])
        return self._response(answer, self._status(answer), [item]) | {"usage": counts}

    def _status(self, answer: Answer) -> str:
        return "incomplete" if answer.service.capped else "completed"

    def _place(self, answer: Answer) -> Json:
        return {"item_id": "msg_" + answer.service.digest, "output_index": 0, "content_index": 0}

    def _part(self, text: str) -> Json:
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}

    def _item(self, answer: Answer, status: str, content: list[Json]) -> Json:
        item = {"id": "msg_" + answer.service.digest, "type": "message", "role": "assistant"}
        return item | {"status": status, "content": content}

    def _response(self, answer: Answer, status: str, output: list[Json]) -> Json:
        return {
            "id": "resp_" + answer.service.digest,
            "object": "response",
            "created_at": int(answer.created.timestamp()),
            "status": status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "model": answer.ask.model,
            "output": output,
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "usage": None,
        }


class AnthropicMessages(OpenAIChat):
    """POST /v1/messages, which Ollama and llama.cpp speak too: named events, no terminator."""

    def read(self, body: Json) -> Ask:
        prompt, chars, _ = read_turns(body.get("messages"), continues=False)
        chars += len(text_of(body.get("system")))
        cap = cap_of(body.get("max_tokens"))
        if cap is None or cap == 0:
            raise RefusedError(400, "max_tokens is required and must be positive")
        return Ask(model_of(body), prompt, chars, cap, stream=body.get("stream") is True)

    def opening(self, answer: Answer) -> bytes:
        """Return the events that announce the message and its one text block."""
        block = {"type": "text", "text": ""}
        return named_event("message_start", {"message": self._message(answer, [], None, 0)}) + named_event(
            "content_block_start", {"index": 0, "content_block": block}
        )

    def token(self, answer: Answer, word: str) -> bytes:
        delta = {"type": "text_delta", "text": word}
        return named_event("content_block_delta", {"index": 0, "delta": delta})

    def closing(self, answer: Answer, text: str) -> bytes:
        counts = self._counts(answer, answer.service.planned_tokens)
        delta = {"stop_reason": self._stop_reason(answer), "stop_sequence": None}
        return (
            named_event("content_block_stop", {"index": 0})
            + named_event("message_delta", {"delta": delta, "usage": counts})
            + named_event("message_stop", {})
        )

    def whole(self, answer: Answer, text: str) -> Json:
        content: list[Json] = [{"type": "text", "text": text}]
        return self._message(answer, content, self._stop_reason(answer), answer.service.planned_tokens)

    def error(self, status: int, message: str) -> Json:
        kinds = {400: "invalid_request_error", 404: "not_found_error", 503: "overloaded_error"}
        kind = kinds.get(status, "api_error")
        return {"type": "error", "error": {"type": kind, "message": message}}

    def _stop_reason(self, answer: Answer) -> str:
        return "max_tokens" if answer.service.capped else "end_turn"

    def _message(self, answer: Answer, content: list[Json], stop_reason: str | None, tokens: int) -> Json:
        return {
            "id": "msg_" + answer.service.digest,
            "type": "message",
            "role": "assistant",
            "model": answer.ask.model,
            "content": content,
            "stop_reason": stop_reason,
            "stop_sequence": None,
            "usage": self._counts(answer, tokens),
        }

    def _counts(self, answer: Answer, tokens: int) -> Json:
        return {"input_tokens": answer.service.prompt_tokens, "output_tokens": tokens}


OLLAMA_ROUTES = ("/api/chat", "/api/generate")


async def generate(replay: Replay, route: str, body: Json, send: Send) -> None:
    """Answer as `Replay.generate` does; without a prompt load and unload models, and render prompts."""
    created = timestamp(replay.now())
    if route in OLLAMA_ROUTES and not (body.get("prompt") or body.get("messages") or body.get("input")):
        model, unload = replay.named_in(body), body.get("keep_alive") in (0, "0", "0s")
        (replay.loaded.discard if unload else replay.loaded.add)(model)
        empty: Json = {"response": ""}
        if "messages" in body:
            empty = {"message": {"role": "assistant", "content": ""}}
        done = {"done": True, "done_reason": "unload" if unload else "load"}
        await send_json(send, {"model": model, "created_at": created} | empty | done)
    elif body.get("_debug_render_only") is True:
        shown = {"_debug_info": {"rendered_template": template(body)}}
        await send_json(send, {"model": replay.named_in(body), "created_at": created} | shown)
    else:
        ask = DIALECTS[route].read(body)
        raw = route == "/api/generate" and body.get("raw") is True
        if route == "/v1/completions" or (raw and not TURN.search(str(body.get("prompt")))):
            prompt, said = split(replay.engine, ask.prompt)
            ask = replace(ask, prompt=prompt, said=said, text_chars=ask.text_chars - len(said))
        await replay.generate(route, body, send, ask)


ASKED: WeakKeyDictionary[Engine, set[str]] = WeakKeyDictionary()


def split(engine: Engine, text: str) -> tuple[str, str]:
    """Split a plain prompt into one that was asked before and the beginning of its answer, "" if none."""
    asked = ASKED.setdefault(engine, set())
    for at in range(len(text.rstrip(ascii_lowercase + " ")), len(text)):
        if text.startswith(WORDS, at) and digest(text[:at]) in asked:
            return text[:at], text[at:]
    asked.add(digest(text))
    return text, ""


EMBEDDING_SIZE = 8
EMBEDDING_ROUTES = ("/api/embed", "/api/embeddings", "/v1/embeddings")


async def embed(replay: Replay, route: str, body: Json, send: Send) -> None:
    """Take a slot for the time of the prompt and answer with vectors."""
    replay.loaded.add(replay.named_in(body))
    given = body.get("input", body.get("prompt", ""))
    texts = [str(text) for text in given] if isinstance(given, list) else [str(given)]
    service = replay.engine.arrive(route, "\n".join(texts), sum(map(len, texts)), cap=0)
    async with replay.engine.slot(service):
        await replay.engine.prefill(service)
        raw, tokens = bytes.fromhex(service.digest)[:EMBEDDING_SIZE], service.prompt_tokens
        vectors = [[((byte + i) % 256) / 256 for byte in raw] for i in range(len(texts))]
        if route == "/api/embeddings":
            answer: Json = {"embedding": vectors[0]}
        elif route == "/api/embed":
            answer = {"model": body["model"], "embeddings": vectors, "prompt_eval_count": tokens}
        else:
            data = [{"object": "embedding", "embedding": v, "index": i} for i, v in enumerate(vectors)]
            usage = {"prompt_tokens": tokens, "total_tokens": tokens}
            answer = {"object": "list", "data": data, "model": body["model"], "usage": usage}
        await send_json(send, answer)


DIALECTS |= {
    "/v1/embeddings": OpenAIChat(),
    "/api/generate": OllamaGenerate(),
    "/v1/completions": OpenAICompletion(),
    "/v1/responses": OpenAIResponses(),
    "/v1/messages": AnthropicMessages(),
}
Replay.more |= dict.fromkeys((*OLLAMA_ROUTES, "/v1/completions"), generate)
Replay.more |= dict.fromkeys(EMBEDDING_ROUTES, embed)
