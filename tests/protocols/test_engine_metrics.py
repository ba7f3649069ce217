"""What an engine's metrics say of its queue."""

import pytest

from clairvoyant_cli.backends.kinds.sglang import SgLang
from clairvoyant_cli.backends.kinds.vllm import Vllm
from clairvoyant_cli.protocols.probes import EngineLoad, engine_state

TWO_ENGINES = b"""# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 8.0
vllm:num_requests_running{engine="1",model_name="m"} 3.0
vllm:num_requests_waiting{engine="0",model_name="m"} 40.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="capacity"} 40.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.75
vllm:num_preemptions_total{engine="0",model_name="m"} 2.0
vllm:num_preemptions_created{engine="0",model_name="m"} 1.795335123940553e+09
"""

BY_PRIORITY = b"""sglang:num_running_reqs{model_name="m",priority=""} 2.0
sglang:num_running_reqs{model_name="m",priority="-1795"} 2.0
sglang:num_queue_reqs{model_name="m",priority=""} 5.0
sglang:token_usage{model_name="m",priority=""} 0.5
"""


def test_engines_behind_one_address_add_up() -> None:
    assert Vllm.PRIORITY is not None
    assert Vllm.PRIORITY.metrics is not None
    assert engine_state(TWO_ENGINES, Vllm.PRIORITY.metrics) == EngineLoad(11, 40, 2, 0.75)


def test_no_request_is_counted_twice() -> None:
    assert SgLang.PRIORITY is not None
    assert SgLang.PRIORITY.metrics is not None
    assert engine_state(BY_PRIORITY, SgLang.PRIORITY.metrics) == EngineLoad(2, 5, None, 0.5)


@pytest.mark.parametrize(
    "body",
    [None, b"", b"404 page not found", b"vllm:num_requests_running NaN\n", b"vllm:num_requests_waiting -1\n"],
)
def test_what_is_none_says_nothing(body: bytes | None) -> None:
    assert Vllm.PRIORITY is not None
    assert Vllm.PRIORITY.metrics is not None
    assert engine_state(body, Vllm.PRIORITY.metrics) is None
