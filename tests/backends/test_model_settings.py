"""What a server adds to a request by itself is learnt, and another model, template or build is noticed."""

import json
from typing import Any

import pytest

from clairvoyant_cli.backends.adapter import FULL, NO_CAP
from clairvoyant_cli.backends.adapters import adapter_of
from clairvoyant_cli.protocols.can_continue import Continuable, continuable
from clairvoyant_cli.protocols.model_settings import ModelSettings, changed_parts
from clairvoyant_cli.protocols.probes import ProbeAnswer
from clairvoyant_cli.protocols.routes import Shape

LLAMACPP, OLLAMA, VLLM = map(adapter_of, ("llamacpp", "ollama", "vllm"))

PROPS: dict[str, Any] = {
    "build_info": "b1",
    "model_path": "/m/m.gguf",
    "chat_template": "{{ messages }}",
    "media_marker": "another at each start",
    "default_generation_settings": {"n_ctx": 4096, "params": {"seed": 4294967295, "temperature": 0.8}},
}
SHOWN: dict[str, Any] = {
    "modelfile": "# by ollama show\nFROM /blobs/sha256-1\nPARAMETER seed 7\n",
    "template": "{{ .Prompt }}",
    "parameters": 'seed    7\nnum_predict    200\nstop    "<end>"\nstop    "X"\nrepeat_last_n    -1',
    "details": {"quantization_level": "Q4_0"},
    "modified_at": "2026-01-01",
}
LISTED: dict[str, Any] = {"data": [{"id": "m", "created": 1, "meta": {"n_params": 10, "n_ctx": 4096}}]}


def server(pages: dict[str, Any], rendered: str | None = "<user>A") -> Any:
    """Return how a server is asked that answers with these pages, and renders every chat so, if it does."""

    async def ask(path: str, timeout_s: float = 0.0, body: dict[str, Any] | None = None) -> ProbeAnswer:
        held = pages if rendered is None else pages | {"/apply-template": {"prompt": rendered}}
        return ProbeAnswer(200, json.dumps(held[path]).encode()) if path in held else ProbeAnswer(404)

    return ask


def llamacpp(rendered: str | None = "<user>A", **props: Any) -> Any:
    return server({"/props": PROPS | props, "/v1/models": LISTED}, rendered)


def ollama(context: int = 4096, **shown: Any) -> Any:
    models = [{"name": "m:latest", "context_length": context}]
    return server({"/api/show": SHOWN | shown, "/api/ps": {"models": models}})


def asked(shape: Shape = Shape.CHAT, settings: ModelSettings | None = None, **body: Any) -> Continuable | str:
    adapter = OLLAMA if shape in (Shape.OLLAMA_CHAT, Shape.OLLAMA_GENERATE) else LLAMACPP
    held = {"model": "m", "prompt" if shape is Shape.COMPLETION else "messages": None} | body
    if shape is Shape.COMPLETION:
        held["prompt"] = "Hi"
    else:
        held["messages"] = [{"role": "user", "content": body.pop("text", "Hi")}]
    held.pop("text", None)
    defaults = {} if settings is None else adapter.defaults(settings, shape)
    raw = json.dumps(held).encode()
    return continuable(raw, shape, streams=False, defaults=defaults, caps=adapter.CAPS)


def certainly(held: Continuable | str) -> Continuable:
    assert isinstance(held, Continuable)
    return held


async def settings_of(ask: Any, adapter: Any = LLAMACPP, version: str = "1") -> ModelSettings:
    found = await adapter.settings(ask, "m", version)
    assert isinstance(found, ModelSettings)
    return found


@pytest.mark.parametrize(
    ("other", "part"),
    [
        ({"build_info": "b2"}, "build"),
        ({"model_path": "/m/other.gguf"}, "model"),
        ({"model_alias": "thinker"}, "model"),
        ({"chat_template": "{{ other }}"}, "template"),
        ({"rendered": "A without jinja"}, "rendering"),
        ({"default_generation_settings": {"n_ctx": 4096, "params": {"seed": 7}}}, "settings"),
    ],
)
async def test_a_llamacpp_started_otherwise_is_noticed(other: dict[str, Any], part: str) -> None:
    before, after = await settings_of(llamacpp()), await settings_of(llamacpp(**other))
    assert changed_parts(before.fingerprint, after.fingerprint) == [part]


@pytest.mark.parametrize(
    "other",
    [
        {"media_marker": "yet another"},
        {"default_generation_settings": PROPS["default_generation_settings"] | {"n_ctx": 2048}},
        {"rendered": "DailyTokens is 24 December 2026"},
        {"rendered": None},
    ],
)
async def test_the_same_llamacpp_started_again_is_the_same(other: dict[str, Any]) -> None:
    first = await settings_of(llamacpp(rendered="DailyTokens is 7 March 2025"))
    again = await settings_of(llamacpp(**{"rendered": "DailyTokens is 8 May 2026"} | other))
    assert not changed_parts(first.fingerprint, again.fingerprint)


@pytest.mark.parametrize(
    ("other", "part"),
    [
        ({"modelfile": "FROM /blobs/sha256-2"}, "model"),
        ({"template": "{{ .System }}"}, "template"),
        ({"system": "Be brief."}, "template"),
        ({"parameters": "seed 8"}, "settings"),
    ],
)
async def test_another_modelfile_is_noticed(other: dict[str, Any], part: str) -> None:
    before = await settings_of(ollama(), OLLAMA)
    after = await settings_of(ollama(modified_at="2027", **other), OLLAMA)
    assert changed_parts(before.fingerprint, after.fingerprint) == [part]
    newer = await settings_of(ollama(), OLLAMA, "2")
    assert changed_parts(before.fingerprint, newer.fingerprint) == ["build"]


async def test_a_server_that_does_not_answer_tells_nothing() -> None:
    async def silent(path: str, timeout_s: float = 0.0, body: dict[str, Any] | None = None) -> ProbeAnswer:
        return ProbeAnswer(0, why="no answer in time")

    for adapter in (LLAMACPP, OLLAMA, VLLM):
        assert await adapter.settings(silent, "m", "1") is None
    assert await OLLAMA.offered_models(silent) is None


async def test_a_modelfiles_parameters_hold_where_the_request_says_nothing() -> None:
    settings = await settings_of(ollama(), OLLAMA)
    assert settings.options["stop"] == ["<end>", "X"]
    assert asked(Shape.OLLAMA_CHAT, settings) == "the server's own seed"
    greedy = certainly(asked(Shape.OLLAMA_CHAT, settings, options={"temperature": 0}))
    assert greedy.is_greedy
    assert greedy.capped(150) == {"num_predict": 50}
    assert certainly(
        asked(Shape.OLLAMA_CHAT, settings, options={"temperature": 0, "num_predict": 500})
    ).capped(150) == {"num_predict": 350}
    cold = await settings_of(ollama(parameters="temperature 0"), OLLAMA)
    assert certainly(asked(Shape.OLLAMA_CHAT, cold)).is_greedy
    assert "temperature" in OLLAMA.defaults(cold, Shape.CHAT)
    assert OLLAMA.defaults(cold, Shape.CHAT)["temperature"] == 1.0, "its OpenAI routes set that"


@pytest.mark.parametrize(
    ("params", "why"),
    [
        ({"seed": 7}, "the server's own seed"),
        ({"mirostat": 2}, "the server's own mirostat"),
        ({"n_keep": -1}, "the server's own n_keep"),
    ],
)
async def test_what_a_llamacpp_was_started_with_may_stand_in_the_way(
    params: dict[str, Any], why: str
) -> None:
    settings = await settings_of(llamacpp(default_generation_settings={"n_ctx": 9, "params": params}))
    assert asked(settings=settings) == why
    assert isinstance(asked(settings=settings, temperature=0), Continuable) == ("seed" in params)


def slot(remain: int, decoded: int) -> dict[str, Any]:
    return {"is_processing": True, "next_token": [{"n_remain": remain, "n_decoded": decoded}]}


@pytest.mark.parametrize(
    ("slots", "most"),
    [
        ([slot(-1, 9)], None),
        ([slot(1191, 9)], 1200),
        ([{"is_processing": True, "next_token": {"n_remain": 90, "n_decoded": 10}}], 100),
        ([slot(90, 10), slot(-1, 3)], None),
        ([slot(90, 10), {"is_processing": False}], 100),
    ],
)
async def test_the_cap_that_a_llamacpp_was_started_with_is_read_from_its_slots(
    slots: list[Any], most: int | None
) -> None:
    held = await LLAMACPP.bounded(
        server({"/slots": slots}), certainly(asked()), ["Hi"], ModelSettings("", 4096)
    )
    assert certainly(held).most == most
    assert certainly(held).capped(20) == ({} if most is None else {"max_tokens": most - 20})


@pytest.mark.parametrize("slots", [[], [{"is_processing": True}], [slot(90, 10), slot(50, 3)], [slot(90, 0)]])
async def test_where_the_cap_cannot_be_told_an_answer_without_one_is_not_cut(slots: list[Any]) -> None:
    ask, settings = server({"/slots": slots}), ModelSettings("", 4096)
    assert await LLAMACPP.bounded(ask, certainly(asked()), ["Hi"], settings) == NO_CAP
    assert certainly(await LLAMACPP.bounded(ask, certainly(asked(max_tokens=9)), ["Hi"], settings))
    plain = certainly(asked(Shape.COMPLETION))
    assert await VLLM.bounded(ask, plain, ["Hi"], settings) == NO_CAP


async def test_ollama_ends_an_answer_after_ten_contexts() -> None:
    held = certainly(asked(Shape.OLLAMA_CHAT, options={"num_predict": -1}))
    bound = certainly(await OLLAMA.bounded(server({}), held, ["Hi"], ModelSettings("", 4096)))
    assert bound.capped(1000) == {"num_predict": 39_960}
    smaller = certainly(asked(Shape.OLLAMA_CHAT, options={"num_ctx": 512}))
    assert certainly(await OLLAMA.bounded(server({}), smaller, ["Hi"], ModelSettings("", 4096))).most == 5120


@pytest.mark.parametrize("adapter", [LLAMACPP, OLLAMA, VLLM], ids=lambda adapter: adapter.name)
async def test_near_the_end_of_the_context_nothing_is_cut(adapter: Any) -> None:
    settings, ask = ModelSettings("", 512), server({"/tokenize": {"tokens": list(range(35))}})
    held = certainly(asked(max_tokens=9000))
    assert certainly(await adapter.bounded(ask, held, ["x"] * 300, settings))
    assert await adapter.bounded(ask, held, ["x"] * 400, settings) == FULL
    long = certainly(asked(max_tokens=9000, text="word " * 400))
    if adapter is not LLAMACPP:  # which counts them
        assert await adapter.bounded(ask, long, ["x"], settings) == FULL
