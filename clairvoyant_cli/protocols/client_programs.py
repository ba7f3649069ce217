"""Names the program that sent a request: an agent, or the SDK that it is built on."""

import re

PRODUCT = re.compile(rb"(?:Async)?([A-Za-z][A-Za-z0-9_.-]{0,23})(?:/(Python|JS)\b)?")
"""The first product of a user agent (RFC 9110, 10.1.5). SDKs have their language in place of a version."""

PROGRAMS = (
    ("claude-cli", "claude-code"),
    ("codex", "codex"),
    ("geminicli", "gemini-cli"),
    ("kilo-code", "kilo"),
    ("kimi-code", "kimi-code"),
    ("qwencode", "qwen-code"),
)
"""How agents begin their user agents, and what they are called."""


def program_of(user_agent: bytes | None) -> str:
    """Return the name, of at most 31 letters, digits, dots, dashes and underscores; "" if none is given."""
    found = PRODUCT.match(user_agent or b"")
    if found is None:
        return ""
    name, language = found[1].decode().lower(), (found[2] or b"").decode().lower()
    if language:  # OpenAI's SDK for JS sends the name of its class, which bundlers shorten
        return f"{name if name == 'anthropic' else 'openai'}-{language}"
    return next((called for opening, called in PROGRAMS if name.startswith(opening)), name)
