"""What is read of a request's body, dialect by dialect; whatever else it holds is skipped at C speed.

Rule: a field may hold anything. One that holds what no client sends is read as such (`Skipped`, a string
where a number belongs), and costs nobody the others.

The entries of lists are left undecoded: most are only counted, and of a long conversation few are looked at.
"""

import msgspec
from msgspec import Raw

Scalar = str | int | float | bool | None
Other = Scalar | list[Raw]


class Skipped(msgspec.Struct, gc=False):
    """An object of which nothing is read."""


Loose = Other | Skipped


class Typed(msgspec.Struct, gc=False):
    """An object that says what it is."""

    type: Loose = None


class Part(msgspec.Struct, gc=False):
    """A part of a message: text, a picture, or a tool's result, which has parts of its own."""

    text: Loose = None
    type: Loose = None
    content: Loose = None


class Message(msgspec.Struct, gc=False):
    """A message of a conversation, or an item of a Responses request."""

    role: Loose = None
    type: Loose = None
    content: Loose = None
    images: Loose = None


class PromptObject(msgspec.Struct, gc=False):
    """llama.cpp's prompt with pictures."""

    prompt_string: Loose = None


Prompt = Scalar | PromptObject | list[Scalar | PromptObject | list[Scalar | PromptObject | list[Raw]]]
"""Text, token ids, or a list of either or both."""


class Options(msgspec.Struct, gc=False):
    """Ollama's options."""

    num_predict: Loose = None
    num_ctx: Loose = None
    num_batch: Loose = None
    num_gpu: Loose = None
    main_gpu: Loose = None
    use_mmap: Loose = None
    num_thread: Loose = None


class Body(msgspec.Struct, gc=False):
    """What means the same everywhere."""

    model: Loose = None
    stream: Loose = None
    service_tier: Loose = None
    n: Loose = None
    best_of: Loose = None
    n_cmpl: Loose = None


class OllamaBody(Body):
    """What Ollama's own routes share."""

    options: Other | Options = None
    format: Loose = None
    think: Loose = None
    keep_alive: Loose = None
    debug_render_only: Loose = msgspec.field(default=None, name="_debug_render_only")


class OllamaChat(OllamaBody):
    """`/api/chat`."""

    messages: Loose = None
    tools: Loose = None


class OllamaGenerate(OllamaBody):
    """`/api/generate`."""

    prompt: Loose = None
    suffix: Loose = None
    system: Loose = None
    images: Loose = None
    raw: Loose = None


class Chat(Body):
    """OpenAI's chat completions, and llama.cpp's."""

    messages: Loose = None
    max_completion_tokens: Loose = None
    max_tokens: Loose = None
    n_predict: Loose = None
    response_format: Other | Typed = None
    json_schema: Loose = None
    grammar: Loose = None
    tools: Loose = None
    functions: Loose = None
    reasoning_effort: Loose = None


class Completion(Body):
    """OpenAI's completions, and llama.cpp's."""

    prompt: Prompt = None
    suffix: Loose = None
    max_tokens: Loose = None
    n_predict: Loose = None
    json_schema: Loose = None
    grammar: Loose = None


class Infill(Body):
    """llama.cpp's `/infill`."""

    input_prefix: Loose = None
    prompt: Loose = None
    input_suffix: Loose = None
    n_predict: Loose = None
    max_tokens: Loose = None


class Reasoning(msgspec.Struct, gc=False):
    """How hard a Responses request thinks."""

    effort: Loose = None


class TextFormat(msgspec.Struct, gc=False):
    """How a Responses request wants its text."""

    format: Other | Typed = None


class Responses(Body):
    """OpenAI's responses."""

    input: Loose = None
    instructions: Loose = None
    max_output_tokens: Loose = None
    text: Other | TextFormat = None
    tools: Loose = None
    reasoning: Other | Reasoning = None


class LmStudioChat(Body):
    """LM Studio's `/api/v1/chat`."""

    input: Loose = None
    system_prompt: Loose = None
    max_output_tokens: Loose = None
    integrations: Loose = None
    reasoning: Loose = None


class Messages(Body):
    """Anthropic's messages."""

    system: Loose = None
    messages: Loose = None
    max_tokens: Loose = None
    tools: Loose = None
    thinking: Other | Typed = None


class Embedding(Body):
    """Embeddings, by whatever name the text goes."""

    input: Prompt = None
    prompt: Prompt = None
    content: Prompt = None
