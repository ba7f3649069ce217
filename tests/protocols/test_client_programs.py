"""The program behind a request is named by the beginning of its user agent, and by no more of it."""

import pytest

from clairvoyant_cli.protocols.client_programs import program_of


@pytest.mark.parametrize(
    ("user_agent", "program"),
    [
        (b"opencode/1.18.33 ai-sdk/provider-utils/4.0.23 runtime/bun/1.3.14", "opencode"),
        (b"Kilo-Code/7.7.7 ai-sdk/provider-utils/4.0.27", "kilo"),
        (b"codex_exec/0.169.0 (Debian 12.0.0; x86_64) dumb (codex_exec; 0.169.0)", "codex"),
        (b"claude-cli/2.1.330 (external, sdk-cli)", "claude-code"),
        (b"GeminiCLI-tui/0.61.0/gemini-2.5-flash (linux)", "gemini-cli"),
        (b"QwenCode/0.24.4 (linux; x64)", "qwen-code"),
        (b"pi (linux 6.18.44; x64)", "pi"),
        (b"AsyncOpenAI/Python 2.54.0", "openai-python"),
        (b"ls/JS 5.23.2", "openai-js"),
        (b"ai-sdk/openai-compatible/3.0.37", "ai-sdk"),
        (b"x" * 90, "x" * 24),
        (b"(\x1b[31m)", ""),
        (None, ""),
    ],
)
def test_a_program_is_named(user_agent: bytes | None, program: str) -> None:
    assert program_of(user_agent) == program
