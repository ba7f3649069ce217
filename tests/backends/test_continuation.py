"""How a server is asked to go on with an answer that was cut."""

import json
from typing import Any

import pytest

from clairvoyant_cli.backends.continuation import ContinuationRequest, Raw, next_token
from clairvoyant_cli.protocols.can_continue import Continuable, continuable
from clairvoyant_cli.protocols.probes import ProbeAnswer
from clairvoyant_cli.protocols.routes import Shape

CHAT = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}


async def template(path: str, timeout_s: float = 0.0, body: dict[str, Any] | None = None) -> ProbeAnswer:
    """Render a chat as Ollama does for a model that thinks unless it is told not to."""
    assert body is not None
    assert body["_debug_render_only"] is True
    thought = "" if body.get("think", True) else "<think></think>"
    told = {"_debug_info": {"rendered_template": f"Hi<answer>{thought}"}}
    return ProbeAnswer(200, json.dumps(told).encode())


@pytest.mark.parametrize(
    ("more", "prompt"), [({}, "Hi<answer>Well"), ({"think": False}, "Hi<answer><think></think>Well")]
)
async def test_what_is_said_stands_behind_the_prompt_that_the_request_had(
    more: dict[str, Any], prompt: str
) -> None:
    asked = continuable(json.dumps(CHAT | more).encode(), Shape.OLLAMA_CHAT, streams=True)
    assert isinstance(asked, Continuable)
    onward = await Raw().onward(template, asked, "Well", 1)
    assert onward is not None
    assert onward.body["prompt"] == prompt


def test_the_next_token_of_a_request_without_options() -> None:
    told = next_token(ContinuationRequest(dict(CHAT), Shape.OLLAMA_CHAT))
    assert told["options"] == {"num_predict": 1}
