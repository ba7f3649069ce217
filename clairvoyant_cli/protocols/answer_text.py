"""The end of a streamed answer's text, whatever the protocol, for operators who may read it."""

import json
import re

SHOWN_CHARS = 2000
LOOK_BYTES = 64 * 1024  # of the stream that are kept before they are read: 1 ms for some 400 events
TEXTS = re.compile(
    rb'"(content|response|text|thinking|reasoning|reasoning_content|arguments|partial_json|delta)"'
    rb'\s*:\s*"((?:[^"\\]|\\.)*+)"'
)
"""The text in an event of any protocol, after its name."""
_KINDS = {
    b"thinking": "thinking",
    b"reasoning": "thinking",
    b"reasoning_content": "thinking",
    b"arguments": "tool call",
    b"partial_json": "tool call",
}


class AnswerText:
    """Collects a stream, and reads its text when somebody asks. Thinking and tool calls are marked."""

    def __init__(self) -> None:
        self._fresh = bytearray()
        self._text = ""
        self._kind = "answer"

    def feed(self, data: bytes) -> None:
        self._fresh += data
        if len(self._fresh) > LOOK_BYTES:
            self.read()

    def read(self) -> str:
        """Return the last `SHOWN_CHARS` of the text so far."""
        whole = self._fresh.rfind(b"\n") + 1
        said = [self._text]
        for line in bytes(self._fresh[:whole]).split(b"\n"):
            texts = () if _repeats(line) else TEXTS.findall(line)
            # vLLM sends its reasoning under two names: of one kind the last counts.
            for kind, text in {_kind(name, line): text for name, text in texts if text}.items():
                if kind != self._kind:
                    said.append(f"\n[{kind}]\n")
                    self._kind = kind
                said.append(_unquoted(text))
        del self._fresh[: whole or max(0, len(self._fresh) - LOOK_BYTES)]
        self._text = "".join(said)[-SHOWN_CHARS:]
        # The halves of a character may come in two events.
        return self._text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")

    def go_back_to(self, text: str) -> None:
        """The answer was cut or broke off, and goes on after `text`."""
        self._fresh.clear()
        self._text, self._kind = text[-SHOWN_CHARS:], "answer"


def _repeats(line: bytes) -> bool:
    """Whether an event of a Responses stream repeats the text of earlier ones."""
    of_type = line[: line.find(b",")]
    return b'"response.' in of_type and b'.delta"' not in of_type


def _kind(name: bytes, line: bytes) -> str:
    if name == b"delta":
        of_type = line[: line.find(b",")]
        name = b"reasoning" if b".reasoning" in of_type else b"arguments" if b"arguments" in of_type else name
    return _KINDS.get(name, "answer")


def _unquoted(text: bytes) -> str:
    decoded = text.decode("utf-8", "replace")
    try:
        return str(json.loads(f'"{decoded}"', strict=False))
    except ValueError:
        return decoded
