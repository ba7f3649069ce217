"""The fields that are read of request bodies and of the objects in them, undecoded (`lenient_json`); and
which requests may be sent again."""

import msgspec
from msgspec import Raw

from clairvoyant_cli.protocols.lenient_json import ABSENT, fields


class RequestBody(msgspec.Struct, gc=False):
    """A request of any dialect; each dialect's reader looks at its own fields."""

    model: Raw = ABSENT
    stream: Raw = ABSENT
    service_tier: Raw = ABSENT
    n: Raw = ABSENT
    best_of: Raw = ABSENT
    n_cmpl: Raw = ABSENT
    priority: Raw = ABSENT
    store: Raw = ABSENT
    prompt_cache_key: Raw = ABSENT
    metadata: Raw = ABSENT
    # What is asked: messages, prompts, inputs.
    messages: Raw = ABSENT
    system: Raw = ABSENT
    prompt: Raw = ABSENT
    suffix: Raw = ABSENT
    images: Raw = ABSENT
    raw: Raw = ABSENT
    input: Raw = ABSENT
    instructions: Raw = ABSENT
    system_prompt: Raw = ABSENT
    content: Raw = ABSENT
    input_prefix: Raw = ABSENT
    input_suffix: Raw = ABSENT
    input_extra: Raw = ABSENT
    tools: Raw = ABSENT
    functions: Raw = ABSENT
    # What servers do besides answering.
    integrations: Raw = ABSENT
    background: Raw = ABSENT
    previous_response_id: Raw = ABSENT
    mcp_servers: Raw = ABSENT
    web_search: Raw = msgspec.field(default=ABSENT, name="web_search_options")
    # How the answer is to be.
    max_completion_tokens: Raw = ABSENT
    max_tokens: Raw = ABSENT
    max_output_tokens: Raw = ABSENT
    n_predict: Raw = ABSENT
    format: Raw = ABSENT
    response_format: Raw = ABSENT
    json_schema: Raw = ABSENT
    grammar: Raw = ABSENT
    text: Raw = ABSENT
    think: Raw = ABSENT
    thinking: Raw = ABSENT
    reasoning: Raw = ABSENT
    reasoning_effort: Raw = ABSENT
    chat_template_kwargs: Raw = ABSENT
    # Ollama's own.
    options: Raw = ABSENT
    keep_alive: Raw = ABSENT
    name: Raw = ABSENT  # the model, in old requests for `/api/show`
    debug_render_only: Raw = msgspec.field(default=ABSENT, name="_debug_render_only")


class Nested(msgspec.Struct, gc=False):
    """An object in a request: a message, a part of one, a tool's call, a format, or options."""

    role: Raw = ABSENT
    type: Raw = ABSENT
    content: Raw = ABSENT
    text: Raw = ABSENT
    images: Raw = ABSENT
    tool_calls: Raw = ABSENT
    function: Raw = ABSENT
    name: Raw = ABSENT
    arguments: Raw = ABSENT  # of a call, also of a Responses function_call
    input: Raw = ABSENT  # of an Anthropic tool_use
    action: Raw = ABSENT  # of a Responses local_shell_call
    output: Raw = ABSENT  # of a Responses function_call_output
    format: Raw = ABSENT
    effort: Raw = ABSENT
    enable_thinking: Raw = ABSENT
    thinking: Raw = ABSENT  # the name that DeepSeek's and Granite's templates use
    prompt_string: Raw = ABSENT  # of llama.cpp's prompt with pictures
    user_id: Raw = ABSENT
    session_id: Raw = ABSENT
    num_predict: Raw = ABSENT
    num_ctx: Raw = ABSENT
    num_batch: Raw = ABSENT
    num_gpu: Raw = ABSENT
    main_gpu: Raw = ABSENT
    use_mmap: Raw = ABSENT
    num_thread: Raw = ABSENT


class PlainPart(msgspec.Struct, gc=False):
    """A part like nearly all: decoding it this way takes a tenth of the time."""

    text: str | None = None
    type: str = ""
    content: "str | list[PlainPart] | None" = None
    input: Raw = ABSENT


class PlainMessage(msgspec.Struct, gc=False):
    """A message like nearly all: decoding it this way takes a third of the time."""

    role: str
    content: str | list[PlainPart]
    images: Raw = ABSENT
    tool_calls: Raw = ABSENT


BODY = msgspec.json.Decoder(RequestBody)
_NESTED = msgspec.json.Decoder(Nested)
_NO_FIELDS = Nested()


def nested(raw: Raw) -> Nested:
    """Return the fields of an object; all are absent if it is something else."""
    return fields(_NESTED, raw) or _NO_FIELDS


KEPT_RUNNING = b"x-conversation-id"
"""With it llama.cpp goes on with a stream whose client has left, and keeps it to be read again."""
