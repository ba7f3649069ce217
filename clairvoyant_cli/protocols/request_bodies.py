"""The fields that are read of request bodies, undecoded (`lenient_json`)."""

import msgspec
from msgspec import Raw

from clairvoyant_cli.protocols.lenient_json import ABSENT


class Typed(msgspec.Struct, gc=False):
    """An object with a type."""

    type: Raw = ABSENT


class Part(msgspec.Struct, gc=False):
    """A part of a message: text, a picture, or a tool's result, which has parts of its own."""

    text: Raw = ABSENT
    type: Raw = ABSENT
    content: Raw = ABSENT
    input: Raw = ABSENT  # of a tool's call


class PlainPart(msgspec.Struct, gc=False):
    """A part that is like nearly all: read so it costs a tenth."""

    text: str | None = None
    type: str = ""
    content: "str | list[PlainPart] | None" = None
    input: Raw = ABSENT


class Message(msgspec.Struct, gc=False):
    """A message of a conversation, or an item of a Responses request."""

    role: Raw = ABSENT
    type: Raw = ABSENT
    content: Raw = ABSENT
    images: Raw = ABSENT
    tool_calls: Raw = ABSENT
    output: Raw = ABSENT  # of a Responses function_call_output
    arguments: Raw = ABSENT  # of a Responses function_call


class Called(msgspec.Struct, gc=False):
    """A tool's call: an entry of `tool_calls`, an Anthropic part, or an item of a Responses request."""

    name: Raw = ABSENT
    function: Raw = ABSENT
    arguments: Raw = ABSENT
    input: Raw = ABSENT
    content: Raw = ABSENT  # of an Anthropic message, whose parts are its calls
    action: Raw = ABSENT  # of a Responses local_shell_call


class PlainMessage(msgspec.Struct, gc=False):
    """A message that is like nearly all: read so it costs a third."""

    role: str
    content: str | list[PlainPart]
    images: Raw = ABSENT
    tool_calls: Raw = ABSENT


class PromptObject(msgspec.Struct, gc=False):
    """llama.cpp's prompt with pictures."""

    prompt_string: Raw = ABSENT


class Options(msgspec.Struct, gc=False):
    """Ollama's options."""

    num_predict: Raw = ABSENT
    num_ctx: Raw = ABSENT
    num_batch: Raw = ABSENT
    num_gpu: Raw = ABSENT
    main_gpu: Raw = ABSENT
    use_mmap: Raw = ABSENT
    num_thread: Raw = ABSENT


class RequestBody(msgspec.Struct, gc=False):
    """The fields that are read of any dialect's request; each dialect's reader looks at its own."""

    model: Raw = ABSENT
    stream: Raw = ABSENT
    service_tier: Raw = ABSENT
    n: Raw = ABSENT
    best_of: Raw = ABSENT
    n_cmpl: Raw = ABSENT
    priority: Raw = ABSENT
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
    tools: Raw = ABSENT
    functions: Raw = ABSENT
    integrations: Raw = ABSENT
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
    debug_render_only: Raw = msgspec.field(default=ABSENT, name="_debug_render_only")


class Reasoning(msgspec.Struct, gc=False):
    """How hard the model is to think."""

    effort: Raw = ABSENT


class TemplateOptions(msgspec.Struct, gc=False):
    """What a request sets of the model's chat template (vLLM, SGLang, llama.cpp)."""

    enable_thinking: Raw = ABSENT
    thinking: Raw = ABSENT  # the name that DeepSeek's and Granite's templates use


class TextFormat(msgspec.Struct, gc=False):
    """How a Responses request wants its text."""

    format: Raw = ABSENT
