"""A record of an ended request, and changes of it, as keepers are fed."""

from typing import Any

import msgspec

from clairvoyant_cli.protocols.routes import Shape
from clairvoyant_cli.protocols.usage import Totals
from clairvoyant_cli.proxy.queue.ended import Ended, Outcome, PromptUse, SlotUse
from predictor.record import Prediction

USE = SlotUse(
    "mac", "mac", "ollama", ("127.0.0.1", 9000), 0, "policy", 102.0, 3.0, 103.0, 107.0, 9, 9, "", True
)
ENDED = Ended(
    id="abc-1",
    endpoint="/api/chat",
    shape=Shape.OLLAMA_CHAT,
    model="m",
    served_model="m",
    principal="ann",
    client="ann",
    program="",
    session="",
    claimed="",
    prompt_hash=None,
    urgency=None,
    urgency_by="",
    level=2,
    interactive=True,
    stream=True,
    choices=1,
    amount=0.0,
    amount_kind="",
    has_media=False,
    traceparent="",
    body=None,
    arrival_s=100.0,
    was_queued=True,
    kept_age_s=0.0,
    prediction=Prediction(0.8, 0.1, 0.1, 0.0, 50.0, 100.0, "told", memo=b""),
    predicted_class="short",
    reasons=(),
    predicted_in_s=0.001,
    after_thinking=None,
    thought_tokens=0,
    job_prompt_tokens=20.0,
    outcome=Outcome.COMPLETED,
    status=200,
    ended_s=107.0,
    finished_at=1007.0,
    uses=(USE,),
    last=USE,
    waited_s=2.0,
    sojourn_s=7.0,
    service_s=5.0,
    resumed_s=0.0,
    ttft_s=3.0,
    cuts=0,
    repeats=0,
    totals=Totals(tokens=100, prompt_tokens=20, decode_s=4.0, complete=True),
    prompt=PromptUse(),
    tokens=100,
    length_class="short",
    counted_tokens=9,
    generated=100,
    counts=True,
    remark="",
)
"""It waited from 100 to 102 on the daemon's clock, and had answered with 100 tokens at 107."""


def ended(**changes: Any) -> Ended:
    return msgspec.structs.replace(ENDED, **changes)
