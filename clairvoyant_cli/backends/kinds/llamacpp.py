"""llama.cpp's server (tools/server/server.cpp)."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any, ClassVar
from urllib.parse import quote

from clairvoyant_cli.backends.adapter import (
    FULL,
    NO_CAP,
    NOT_UNDERSTOOD,
    Adapter,
    Found,
    Status,
    fits,
)
from clairvoyant_cli.backends.continuation import GO_ON, NEXT_TOKEN_TIMEOUT_S, TOLD_TOKENS, Prefill, Way
from clairvoyant_cli.backends.prober import PROBE_TIMEOUT_S, Ask
from clairvoyant_cli.backends.process_inspection import values_of, words_of
from clairvoyant_cli.config import MAX_SLOTS
from clairvoyant_cli.http.heads import ResponseHead
from clairvoyant_cli.protocols import probes
from clairvoyant_cli.protocols.can_continue import Body, Continuable
from clairvoyant_cli.protocols.errors import Refusal
from clairvoyant_cli.protocols.model_settings import ModelSettings, llamacpp_settings
from clairvoyant_cli.protocols.probes import BusySlots, LoadedModel, OfferedModel, ProbeAnswer
from clairvoyant_cli.protocols.routes import Family, Route, Shape

SLOTS_TIMEOUT_S = 10.0  # it answers between two batches of a prompt
QUESTION = {"role": "user", "content": "A"}
SAMPLE_CHATS = [QUESTION], [QUESTION, {"role": "assistant", "content": "B"}]


class LlamaCpp(Adapter):
    """Tells its slots, and the timings of each answer."""

    name = "llamacpp"
    title = "llama.cpp"
    usual_ports = (8080, 9931)  # it is moving from the one to the other
    start_command = "llama-server --model model.gguf --port 9931"
    SPEAKS = frozenset((Family.OPENAI, Family.ANTHROPIC, Family.LLAMACPP))
    TELLS_SLOTS = True
    REPORTS_SLOTS = True
    ANSWERS_ANY_MODEL = True
    SETTINGS_WAKE = True  # /apply-template; /health, /props and /v1/models do not (tools/server/README.md)
    # With a last message of the assistant alone, b11434 repeats what was said before it goes on.
    CONTINUES = (GO_ON, Prefill())
    READ_AGAIN: ClassVar[Mapping[str, Any]] = {"cache_prompt": False}
    health_path = "/health"

    async def identify(self, ask: Ask, url: str, prefix: str) -> Found | None:
        """Identify it by its slots, or by how it says on any route that it is loading."""
        answer = await ask("/props")
        if answer.status == 503 and b"Loading model" in (answer.text or b""):
            return Found(self, url, prefix)
        props = probes.props_of(answer.body) or probes.NO_PROPS
        if props.routes:
            return Found(ROUTER, url, prefix, props.build)
        if not props.tells_slots:
            return None
        return Found(self, url, prefix, props.build, props.slots)

    async def inspect(
        self, ask: Ask, status: Status, health: ProbeAnswer, local_port: int | None, *, was_up: bool
    ) -> None:
        """See its slots at every look: a server that was restarted in between may have others."""
        answer = await ask("/props")
        if was_up and answer.status != 200:
            return
        props = probes.props_of(answer.body) or probes.NO_PROPS
        if not was_up and local_port is not None:
            # Going through all processes takes a tenth of a second.
            status.shares_cache = shares_cache(await asyncio.to_thread(words_of, ("llama",), local_port))
        status.version = props.build or status.version
        status.models = () if props.model is None or props.sleeps else (props.model,)
        status.detail = NOT_UNDERSTOOD if answer.status == 200 and props.slots is None else ""
        if props.slots is not None:
            status.slots = props.slots

    async def busy_slots(self, ask: Ask) -> BusySlots | None:
        return probes.busy_slots((await ask("/slots", SLOTS_TIMEOUT_S)).body)

    def json_type(self, shape: Shape) -> bytes | None:
        return b"application/json; charset=utf-8"

    async def settings(self, ask: Ask, model: str, version: str) -> ModelSettings | None:
        props, models, *rendered = await asyncio.gather(
            ask("/props"),
            ask(self.models_path),
            *(ask("/apply-template", body={"messages": chat}) for chat in SAMPLE_CHATS),
        )
        if not (props.status and models.status):
            return None
        if props.body is None:
            return await super().settings(ask, model, version)
        texts = [each.body for each in rendered]
        listed_as = None if self.ANSWERS_ANY_MODEL else model
        return llamacpp_settings(props.body, models.body, () if None in texts else texts, listed_as)

    async def bounded(
        self, ask: Ask, asked: Continuable, pieces: Sequence[str], settings: ModelSettings
    ) -> Continuable | str:
        """Read the server's own cap (`-n`) from its slots, and count the prompt's tokens."""
        ask = self.about(asked, ask)
        if not asked.is_capped:
            cap = probes.slots_cap((await ask("/slots")).body)
            if cap is None:
                return NO_CAP
            asked = replace(asked, most=cap or None)
        if fits(asked, pieces, settings, asked.prompt_bytes):
            return asked
        prompt = await _prompt(ask, asked)
        answer = None if prompt is None else await ask("/tokenize", body=_to_tokenize(prompt))
        tokens = None if answer is None else probes.tokens_in(answer.body)
        return asked if fits(asked, pieces, settings, tokens) else FULL

    async def said_tokens(self, ask: Ask, asked: Continuable, said: str) -> int | None:
        """Count them with the server's own template and tokeniser."""
        ask = self.about(asked, ask)
        prompt = await _prompt(ask, asked)
        if prompt is None:
            return None
        counts = [
            probes.tokens_in((await ask("/tokenize", body=_to_tokenize(text))).body)
            for text in (prompt, prompt + said)
        ]
        return None if None in counts else max(0, (counts[1] or 0) - (counts[0] or 0))

    async def reads_as_written(self, ask: Ask, asked: Continuable, pieces: Sequence[str]) -> bool | None:
        """Compare token boundaries: a model may write "Ret", "in", "oid" for "Ret", "inoid"."""
        ask = self.about(asked, ask)
        prompt = await _prompt(ask, asked)
        if prompt is None:
            return None
        body = _to_tokenize(prompt + "".join(pieces)) | {"with_pieces": True}
        lengths = probes.token_lengths((await ask("/tokenize", body=body)).body)
        if lengths is None:
            return None
        # From the end, as what stands before a prompt's first letter may be a token, too.
        ends = set(accumulate(reversed(lengths)))
        return ends.issuperset(accumulate(len(piece.encode()) for piece in reversed(pieces)))

    async def likely_next(
        self, ask: Ask, way: Way, asked: Continuable, said: str, *, read_again: bool = False
    ) -> dict[str, float]:
        """Ask behind the rendered prompt: a template may drop the spaces at the end of what was said."""
        ask = self.about(asked, ask)
        if (prompt := await _prompt(ask, asked)) is None:
            return {}
        body = {"prompt": prompt + said, "n_predict": 1, "n_probs": TOLD_TOKENS, "temperature": 0.0}
        answer = await ask("/completion", NEXT_TOKEN_TIMEOUT_S, body=body | {"cache_prompt": not read_again})
        return probes.likely_tokens(answer.body)

    def about(self, asked: Continuable, ask: Ask) -> Ask:
        """Return what asks about the model of a request."""
        return ask

    def cache_lookup(self, asked: Continuable) -> tuple[str, Body] | None:
        """Return a request of one token. The host cache is searched only if less than half of the slot's
        content matches (server-context.cpp, get_available_slot: `f_keep`); two short chats share most of
        theirs.
        """
        return "/completion", {"prompt": "x", "n_predict": 1, "cache_prompt": False}

    def family_of(self, path: str) -> Family:
        return _own(super().family_of(path))

    def render(self, refusal: Refusal, route: Route) -> tuple[ResponseHead, bytes]:
        return super().render(refusal, replace(route, family=_own(route.family)))

    async def offered_models(self, ask: Ask) -> tuple[OfferedModel, ...] | None:
        """Return its model, which is loaded if it answers at all, and what its properties say of it."""
        offered = await super().offered_models(ask)
        props = probes.props_of((await ask("/props")).body) or probes.NO_PROPS
        return None if offered is None else tuple(replace(m, loaded=True, media=props.media) for m in offered)


class LlamaCppRouter(LlamaCpp):
    """Runs a server for each model, loaded on demand (server-models.cpp). Before a swap it waits for running
    answers, and meanwhile takes more requests for the loaded model. No question here loads a model.
    """

    start_command = "llama-server --models-dir DIR --port 9931"
    ANSWERS_ANY_MODEL = False
    SWAPS_MODELS = True
    RUNS_ON_S = 600.0  # it does not tell a model's server that a client has left before the answer

    async def is_still(self, ask: Ask) -> bool:
        return (probes.props_of((await ask("/props")).body) or probes.NO_PROPS).routes

    async def inspect(
        self, ask: Ask, status: Status, health: ProbeAnswer, local_port: int | None, *, was_up: bool
    ) -> None:
        listing = await ask("/props")
        if was_up and listing.status != 200:
            return
        router = probes.props_of(listing.body) or probes.NO_PROPS
        offered = await self.offered_models(ask)
        status.aliases = {alias: model.name for model in offered or () for alias in model.aliases}
        status.version = router.build or status.version
        status.detail = "" if router.routes and offered is not None else NOT_UNDERSTOOD
        if not was_up and local_port is not None:
            words = await asyncio.to_thread(words_of, ("llama",), local_port)
            status.shares_cache = shares_cache(words)
        before, models, slots = {model.name for model in status.models}, [], []
        for model in (each for each in offered or () if each.loaded):
            props = probes.props_of((await asking_about(model.name, ask)("/props")).body)
            if props is not None and props.slots:
                context = None if props.model is None else props.model.context
                models.append(LoadedModel(model.name, context=context, digest=model.digest))
                slots.append(props.slots)
        status.models = tuple(models)
        if before:
            status.swaps += sum(model.name not in before for model in models)
        if slots:
            status.model_slots = min(slots)
        count = len(offered or ()) or 1
        status.most_models = min(router.instances or count, count)
        status.slots = min(status.most_models * max(status.model_slots, 1), MAX_SLOTS)

    async def busy_slots(self, ask: Ask) -> BusySlots | None:
        busy: set[tuple[int, int | None]] = set()
        for number, model in enumerate(await self.offered_models(ask) or ()):
            if model.loaded:
                at_work = await super().busy_slots(asking_about(model.name, ask))
                busy |= {(number * MAX_SLOTS + place, task) for place, task in at_work or ()}
        return frozenset(busy)

    async def settings(self, ask: Ask, model: str, version: str) -> ModelSettings | None:
        about = asking_about(model, ask)
        is_loaded = (await about("/props")).status == 200
        return await super().settings(about, model, version) if is_loaded else None

    def about(self, asked: Continuable, ask: Ask) -> Ask:
        return asking_about(str(asked.body.get("model", "")), ask)

    def cache_lookup(self, asked: Continuable) -> tuple[str, Body] | None:
        path, body = super().cache_lookup(asked) or ("", {})
        return f"{path}?autoload=false", body | {"model": asked.body.get("model")}

    async def offered_models(self, ask: Ask) -> tuple[OfferedModel, ...] | None:
        return probes.openai_models((await ask(self.models_path)).body)

    def keep_request(self, model: str, *, loaded: bool) -> tuple[str, Body]:
        """Load it by a question that waits until it is loaded, which `/models/load` does not do."""
        return (
            ("/tokenize", {"model": model, "content": ""}) if loaded else ("/models/unload", {"model": model})
        )


KIND = LlamaCpp()
ROUTER = LlamaCppRouter()


def shares_cache(words: Sequence[str]) -> bool:
    """Return whether llama.cpp's slots share one KV cache: by default if it chooses their number."""
    if {"-no-kvu", "--no-kv-unified"}.intersection(words):
        return False
    chosen = next(values_of(words, "-np", "--parallel"), "-1")
    return bool(words) and (bool({"-kvu", "--kv-unified"}.intersection(words)) or chosen == "-1")


async def _prompt(ask: Ask, asked: Continuable) -> str | None:
    """Return what the model reads of a request, as its template renders it."""
    if (prompt := asked.body.get("prompt")) is not None:
        return str(prompt)
    rendered = await ask("/apply-template", body={"messages": asked.body["messages"]})
    return probes.rendered_prompt(rendered.body)


def _to_tokenize(text: str) -> Body:
    return {"content": text, "add_special": True, "parse_special": True}


def _own(family: Family) -> Family:
    return Family.LLAMACPP if family in (Family.OPENAI, Family.VLLM) else family


def asking_about(model: str, ask: Ask) -> Ask:
    """Return an `Ask` for questions about one model, which is not loaded for them."""

    async def about(
        path: str, timeout_s: float = PROBE_TIMEOUT_S, body: dict[str, Any] | None = None
    ) -> ProbeAnswer:
        named = body if body is None else {**body, "model": model}
        return await ask(f"{path}?model={quote(model, safe='')}&autoload=false", timeout_s, named)

    return about
