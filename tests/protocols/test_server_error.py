"""Why a server failed is said in its own words, and nothing of what it was sent."""

import json

import pytest

from clairvoyant_cli.protocols.server_error import MOST_CHARS, cause_of

SAID = {
    '{"error":"CUDA error: out of memory"}': "CUDA error: out of memory",
    '{"error":{"code":500,"message":"Failed to load model","type":"server_error"}}': "Failed to load model",
    '{"detail":"Internal Server Error"}': "Internal Server Error",
    "llama runner has terminated: signal: killed": "llama runner has terminated: signal: killed",
    'data: {"choices":[]}\n\ndata: {"error":{"message":"CUDA out of memory. 20 MiB"}}\n\n': (
        "CUDA out of memory"
    ),
    "model requires more system memory (8.0 GiB) than is available": (
        "model requires more system memory … than is available"
    ),
    "<html><title>502</title></html>": "",
    "unknown: hunter2": "",
    '{"error": 5}': "",
    "": "",
    "\x00\xff{": "",
}


@pytest.mark.parametrize(("answer", "cause"), SAID.items())
def test_the_cause_is_the_first_sentence_of_the_message(answer: str, cause: str) -> None:
    assert cause_of(answer.encode()) == cause


@pytest.mark.parametrize(
    "message",
    [
        "parse error: {secret}",
        "could not read '{secret}' of the request",
        "failed at [{secret}] for the user {secret}",
        "invalid input: {secret} is not a number",
        'last read: \'"messages": "{secret}',
    ],
)
@pytest.mark.parametrize("secret", ["hunter2", "4711", "пароль", "Ada_Lovelace", "xq-zt.example"])
def test_no_word_of_a_request_is_said(message: str, secret: str) -> None:
    said = cause_of(json.dumps({"error": message.format(secret=secret)}).encode())
    assert not any(part in said for part in secret.replace("-", ".").replace("_", ".").split("."))
    assert len(cause_of(b"error failed " * 1000)) <= MOST_CHARS
