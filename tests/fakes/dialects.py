"""What real servers say of an answer, streamed and not, and how their continuations fail.

Shapes as recorded from llama.cpp (chat and completions) and as Ollama, vLLM and LM Studio document theirs. An
answer is the same whenever it is asked for, from any place on.
"""

import gzip
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

Json = dict[str, Any]

WORDS = "The first of  all,\n\n** 🙂 naïve» 二 三 四 words - and more\t`code` <b> I'm [it]".split(" ")
DONE = b"data: [DONE]\n\n"
PING = b":\n\n"


@dataclass(frozen=True, slots=True)
class Said:
    """An answer: its text in pieces, one an event, and what else a server may have to say.

    `more` names what comes besides text: thinking, tool calls, another choice, log-probabilities, a refusal,
    annotations, an error in the middle.
    """

    pieces: tuple[str, ...]
    reason: str = "stop"
    prompt_tokens: int = 7
    more: str = ""

    def after(self, text: str) -> int | None:
        """Return how many pieces make up this beginning; None if it is none."""
        whole = ""
        for number, piece in enumerate((*self.pieces, "")):
            if whole == text:
                return number
            whole += piece
        return None


def said(random: Random) -> Said:
    words = [random.choice(WORDS) for _ in range(random.randint(2, 9))]
    pieces = [
        word if random.random() < 0.2 or not number else f" {word}" for number, word in enumerate(words)
    ]
    more = random.choice(MORE) if random.random() < 0.2 else ""
    return Said(tuple(filter(None, pieces)), random.choice(("stop", "length")), random.randint(1, 90), more)


MORE = ("thinking", "thinking late", "tool", "choices", "logprobs", "refusal", "annotations", "error")


@dataclass(frozen=True, slots=True)
class Reply:
    """One response: its body in pieces, and whether the connection is lost after them."""

    pieces: tuple[bytes, ...] = ()
    status: int = 200
    headers: tuple[tuple[bytes, bytes], ...] = ()
    lost: bool = False


@dataclass(frozen=True, slots=True)
class Dialect:
    """A route of one server. `kind` is the adapter's name, `way` how it goes on with an answer."""

    name: str
    kind: str
    path: str
    way: str
    role: str = "never"
    end_delta: Json = field(default_factory=dict)
    usage_apart: bool = True
    timings: bool = False
    more_of_event: Json = field(default_factory=dict)
    more_of_whole: Json = field(default_factory=dict)

    @property
    def chat(self) -> bool:
        return "chat" in self.path

    @property
    def sse(self) -> bool:
        """Whether it streams server-sent events; else lines."""
        return not self.path.startswith("/api/")

    def body(self, random: Random, *, stream: bool) -> Json:
        held: Json = {"model": "m", "stream": stream}
        held |= {"messages": [{"role": "user", "content": "?"}]} if self.chat else {"prompt": "?"}
        if self.path == "/api/generate":
            held["raw"] = True
        if self.sse and stream and random.random() < 0.5:
            held["stream_options"] = {"include_usage": True}
        return held

    # -- what it says ----------------------------------------------------------------------------------

    def stream(self, it: Said, after: int, *, usage: bool) -> Iterator[bytes]:
        if not self.sse:
            yield from self._lines(it, after)
            return
        if self.role == "first":
            yield self._event({"role": "assistant", "content": None})
        for number, piece in enumerate(it.pieces[after:], after):
            if it.more and number == (0 if it.more == "thinking" else len(it.pieces) // 2):
                yield from self._extra(it.more)
                if it.more == "error":
                    return
            yield self._event({"content": piece} | ({"role": "assistant"} if self.role == "every" else {}))
        last = self._totals(it, after) if usage and not self.usage_apart else {}
        yield self._event(self.end_delta, it.reason, **last)
        if usage and self.usage_apart:
            yield self._sse(self._head() | {"choices": []} | self._totals(it, after))
        yield DONE

    def whole(self, it: Said) -> bytes:
        """Return an answer that is not streamed."""
        text = "".join(it.pieces)
        if not self.sse:
            end = json.loads(list(self._lines(it, 0))[-1])
            held = end | (
                {"message": end["message"] | {"content": text}} if self.chat else {"response": text}
            )
            return json.dumps(held).encode()
        choice: Json = {"index": 0, "finish_reason": it.reason}
        choice |= {"message": {"role": "assistant", "content": text}} if self.chat else {"text": text}
        if not self.chat:
            choice |= {"logprobs": None} if self.kind == "llamacpp" else {}
        object_ = "chat.completion" if self.chat else "text_completion"
        held = self._head() | {"object": object_, "choices": [choice]} | self._totals(it, 0)
        return json.dumps(held | self.more_of_whole).encode()

    def _head(self) -> Json:
        object_ = "chat.completion.chunk" if self.chat else "text_completion"
        return {"id": "x-1", "object": object_, "created": 5, "model": "m"} | self.more_of_event

    def _event(self, delta: Json, reason: str | None = None, **more: Any) -> bytes:
        held: Json = {"delta": delta} if self.chat else {"text": delta.get("content") or ""}
        if not self.chat and self.kind == "llamacpp":
            held["logprobs"] = None
        if "logprobs" in more:
            held["logprobs"] = more.pop("logprobs")
        return self._sse(self._head() | {"choices": [{"index": 0, "finish_reason": reason} | held]} | more)

    def _sse(self, event: Json) -> bytes:
        return b"data: " + json.dumps(event).encode() + b"\n\n"

    def _extra(self, more: str) -> Iterator[bytes]:
        deltas: dict[str, Json] = {
            "tool": {"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": "{}"}}]},
            "refusal": {"refusal": "no"},
            "annotations": {"annotations": [{"type": "url_citation"}]},
        }
        if more == "error":
            yield self._sse({"error": {"code": 500, "message": "oops", "type": "server_error"}})
        elif more == "choices":
            yield self._event({"content": "b"}).replace(b'"index": 0', b'"index": 1')
        elif more == "logprobs":
            yield self._event({"content": ""}, logprobs={"content": []})
        elif self.chat:
            yield self._event(deltas.get(more, {"reasoning_content": "hm"}))
        else:
            yield b"event: note\ndata: {}\n\n"

    def _totals(self, it: Said, after: int) -> Json:
        prompt, written = it.prompt_tokens + after, len(it.pieces) - after
        counts = {"prompt_tokens": prompt, "completion_tokens": written, "total_tokens": prompt + written}
        timings = {"cache_n": prompt - 1, "prompt_n": 1, "predicted_n": written, "predicted_ms": 5.0}
        return {"usage": counts} | ({"timings": timings} if self.timings else {})

    def _lines(self, it: Said, after: int, path: str = "") -> Iterator[bytes]:
        chat = (path or self.path) == "/api/chat"

        def line(text: str, **more: Any) -> bytes:
            told = {"message": {"role": "assistant", "content": text}} if chat else {"response": text}
            held = {"model": "m", "created_at": "2026-11-22T05:04:01.92Z"} | told | {"done": False} | more
            return json.dumps(held).encode() + b"\n"

        for number, piece in enumerate(it.pieces[after:], after):
            if it.more and number == (0 if it.more == "thinking" else len(it.pieces) // 2):
                if it.more == "error":
                    yield b'{"error":"oops"}\n'
                    return
                thinking = {"thinking": "hm"}
                said = {"role": "assistant", "content": ""}
                yield line("", **({"message": said | thinking} if chat else thinking))
            yield line(piece)
        counts = {"prompt_eval_count": it.prompt_tokens + after, "eval_count": len(it.pieces) - after}
        yield line("", done=True, done_reason=it.reason, total_duration=9, eval_duration=5, **counts)

    # -- how it answers --------------------------------------------------------------------------------

    def answer(self, path: str, asked: Json, it: Said) -> Reply:
        """Return the answer to a client's request, or to one that goes on with an answer."""
        generates = path == "/api/generate" and self.path != "/api/generate"
        if generates:
            begun = str(asked["prompt"]).removeprefix("<?>")
        elif self.chat:
            last = asked["messages"][-1]
            begun = last["content"] if last["role"] == "assistant" else ""
        else:
            begun = str(asked["prompt"])[1:]
        after = it.after(begun)
        if after is None:
            return self.error(400, f"no beginning: {begun!r}")
        if not asked.get("stream"):
            if it.more == "error":
                return self.error(500, "oops")
            body = self.whole(it)
            return Reply((body,), headers=((b"Content-Type", self.json_type),))
        if generates:
            kind = (b"Content-Type", b"application/x-ndjson")
            return Reply(tuple(self._lines(it, after, path)), headers=(kind,))
        usage = bool((asked.get("stream_options") or {}).get("include_usage"))
        return self.streamed(*self.stream(it, after, usage=usage))

    @property
    def json_type(self) -> bytes:
        charset = b"" if self.kind == "ollama" and self.sse else b"; charset=utf-8"
        return b"application/json" + charset

    def streamed(self, *pieces: bytes, **how: Any) -> Reply:
        kind = b"text/event-stream" if self.sse else b"application/x-ndjson"
        return Reply(pieces, headers=((b"Content-Type", kind),), **how)

    def error(self, status: int, message: str) -> Reply:
        body = json.dumps({"error": {"code": status, "message": message}}).encode()
        return Reply((body,), status, ((b"Content-Type", b"application/json"),))


CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
FP, PROMPT = {"system_fingerprint": "fp_ollama"}, {"prompt_logprobs": None}

EVERY_END = {"role": "assistant", "content": ""}
DIALECTS = (
    Dialect("llama.cpp chat", "llamacpp", CHAT, "prefill", "first", timings=True),
    Dialect("llama.cpp chat without a role", "llamacpp", CHAT, "prefill", timings=True),
    Dialect("llama.cpp completion", "llamacpp", COMPLETION, "prefill", usage_apart=False, timings=True),
    Dialect("Ollama chat", "ollama", "/api/chat", "raw"),
    Dialect("Ollama chat, continued as a chat", "ollama", "/api/chat", "prefill"),
    Dialect("Ollama generation", "ollama", "/api/generate", "raw"),
    Dialect("Ollama's OpenAI chat", "ollama", CHAT, "raw", "every", EVERY_END, more_of_event=FP),
    Dialect("Ollama's OpenAI completion", "ollama", COMPLETION, "raw", more_of_event=FP),
    Dialect("vLLM chat", "other", CHAT, "prefill", "first", {"content": ""}, more_of_whole=PROMPT),
    Dialect("LM Studio chat", "other", CHAT, "prefill", "every", more_of_whole={"stats": {}}),
)
"""`prefill` of Ollama is what engines before its newest go on with."""


# -- continuations that fail ----------------------------------------------------------------------------

Bad = Callable[[Dialect, tuple[bytes, ...]], Reply]
"""Makes a failed response of the pieces of a good one."""


def _sse_error(d: Dialect, good: tuple[bytes, ...]) -> Reply:
    error = b'{"error": {"code": 500, "message": "context shift"}}'
    return d.streamed(*good[:1], b"data: " + error + b"\n\n" if d.sse else error + b"\n")


def _packed(d: Dialect, good: tuple[bytes, ...]) -> Reply:
    return d.streamed(gzip.compress(b"".join(good)))


def _labelled(d: Dialect, good: tuple[bytes, ...]) -> Reply:
    packed = _packed(d, good)
    return Reply(packed.pieces, headers=(*packed.headers, (b"Content-Encoding", b"gzip")))


def _thinking(d: Dialect, good: tuple[bytes, ...]) -> Reply:
    it = Said(("hm",), more="thinking")
    return d.streamed(*(d.stream(it, 0, usage=False)))


def _loaded(d: Dialect, good: tuple[bytes, ...]) -> Reply:
    if d.sse:
        return d.streamed(d._event({"content": ""}, "tool_calls"), DONE)
    return d.streamed(
        b'{"model":"m","response":"","message":{"role":"assistant","content":""},"done":true,"done_reason":"load"}\n'
    )


BAD: tuple[Bad, ...] = (
    lambda d, good: d.streamed(),
    lambda d, good: d.streamed(DONE if d.sse else b"\n"),
    lambda d, good: d.streamed(good[0][:20]),
    lambda d, good: d.streamed(good[0][:20], lost=True),
    lambda d, good: d.streamed(*good[:1]),
    lambda d, good: d.streamed(*good[:1], lost=True),
    lambda d, good: d.streamed(b"x" * 100),
    lambda d, good: d.streamed(b"\x00\xff\n\n\n"),
    lambda d, good: d.streamed(b"data: {}\n\ndata: null\n\n" if d.sse else b"{}\nnull\n"),
    lambda d, good: d.streamed(PING * 3 if d.sse else b"\n\n"),
    lambda d, good: d.streamed(*good, status=206),
    lambda d, good: Reply(lost=True, status=0),
    lambda d, good: Reply((b"<html>log in</html>",), headers=((b"Content-Type", b"text/html"),)),
    lambda d, good: Reply((), 302, ((b"Location", b"/"),)),
    lambda d, good: d.error(401, "who"),
    lambda d, good: d.error(404, "not found"),
    lambda d, good: d.error(429, "busy"),
    lambda d, good: d.error(500, "oops"),
    lambda d, good: d.error(503, "busy"),
    _sse_error,
    _packed,
    _labelled,
    _thinking,
    _loaded,
)
"""`status` 0: nothing comes at all."""
