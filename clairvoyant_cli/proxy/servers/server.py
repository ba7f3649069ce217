"""One LLM server behind the proxy: what it says of itself, and what the proxy knows of it."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from clairvoyant_cli.backends.adapter import ObservedServer
from clairvoyant_cli.backends.continuation import Way
from clairvoyant_cli.backends.prober import Ask, Prober
from clairvoyant_cli.protocols.can_continue import Continuable
from clairvoyant_cli.protocols.model_settings import ModelSettings, changed_parts
from clairvoyant_cli.proxy.servers.health import Health, Outage
from clairvoyant_cli.proxy.servers.loaded_models import ModelResidency
from clairvoyant_cli.proxy.servers.prompt_cuts import PromptCuts
from clairvoyant_cli.proxy.servers.server_watch import ServerWatch
from profiles.records import Continuation, Profile

MAX_ASKED_BEFORE = 10_000  # questions that are remembered, as hashes, to tell whether one is asked again
LOOK_TIMEOUT_S = 0.5  # for a server's settings before a cut; after it, the last known ones are used
CHANGED = "the server is not the one that was measured"


class VerifiedContinuation(NamedTuple):
    """A way to continue an answer that was cut, the proof that it is exact, and the settings it holds for."""

    way: Way
    proof: Continuation
    settings: ModelSettings


@dataclass(slots=True, eq=False, repr=False, kw_only=True)
class Server(ObservedServer):
    """One server behind the proxy, and everything the proxy keeps about it."""

    prober: Prober
    watch: ServerWatch = field(init=False)
    key: bytes | None = None  # its own API key
    named_by_kind: bool = False  # nobody gave it a name
    profiles: Sequence[Profile] = ()  # its measurements, the preferred one first
    weight: float = 1.0  # its share among servers that could serve a request equally well
    draining: bool = False  # gets no new requests
    leaving: bool = False  # and is removed once it has nothing left to do
    health: Health = field(default_factory=Health)
    outage: Outage = field(default_factory=Outage)
    prompt_cuts: PromptCuts = field(default_factory=PromptCuts)
    residents: ModelResidency | None = None  # None unless it swaps models
    settings: dict[str, ModelSettings] = field(default_factory=dict)  # by model
    tests_allowed: bool = False  # although that may cost money
    self_test: str = ""  # how far it is
    truncated: int = 0  # prompts that it cut to its context
    cut_to: tuple[int, int] = (0, 0)  # tokens of the last one, and that context
    # What was logged already:
    news: str = ""
    unproved: str = ""
    remark: str = ""
    remarked: set[str] = field(default_factory=set)
    _asked_before: dict[int, None] = field(default_factory=dict)

    @property
    def id(self) -> str:
        """Its address: no other server has it, and it never changes. Its name is a label."""
        return self.base_url

    @property
    def ask(self) -> Ask:
        return self.prober.asking(self.upstream.url, self.prefix)

    @property
    def standing(self) -> str:
        """Why it gets fewer requests than it has slots, in one word; "" if it does not."""
        if self.leaving or self.draining:
            return "leaving" if self.leaving else "draining"
        if self.health.rests:
            return "resting"
        return "warming" if self.health.slots < self.room else ""

    @property
    def waited_for(self) -> bool:
        """Whether requests are kept for it although it is away."""
        return self.seen and not self.outage.over

    @property
    def only_model(self) -> str:
        """The model it has loaded if there is exactly one; "" otherwise."""
        return self.models[0].name if len(self.models) == 1 else ""

    def service_s(self, prompt_tokens: float, tokens: float) -> float:
        return self.speeds.seconds(prompt_tokens, tokens)

    def read_s(self, tokens: float) -> float:
        return self.speeds.seconds(tokens, 0.0)

    async def close(self) -> None:
        """Close all connections to it."""
        await self.upstream.close()
        await self.prober.close()

    @property
    def proofs(self) -> dict[str, Continuation]:
        """Proofs that cut answers are continued as if uncut, by model, from the preferred profile of each."""
        first = {each.served.model: each for each in reversed(self.profiles)}
        return {model: found for model, each in first.items() if (found := each.continuation) is not None}

    @property
    def known_proofs(self) -> dict[str, Continuation]:
        """Those proofs that hold for known settings, by model."""
        return {model: proof for model, proof in self.proofs.items() if proof.fingerprint}

    def continuation_of(self, model: str) -> VerifiedContinuation | None:
        """Return how it continues a cut answer of a model; None if no proof holds. A proof for another build,
        model, template or settings proves nothing.
        """
        settings = self.settings_of(model)
        ways = {way.name: way for way in self.adapter.CONTINUES}
        for measured, proof in self.proofs.items():
            if settings is None or proof.way not in ways or self._key_of(measured) != self._key_of(model):
                continue
            if proof.fingerprint and not changed_parts(proof.fingerprint, settings.fingerprint):
                return VerifiedContinuation(ways[proof.way], proof, settings)
        return None

    def continues_as(self, other: "Server", model: str) -> bool:
        """Whether it is proven to continue, with equal model and settings, what another server began."""
        ours, theirs = self.continuation_of(model), other.continuation_of(model)
        return ours is not None and theirs is not None and ours.proof.fingerprint == theirs.proof.fingerprint

    def settings_of(self, model: str) -> ModelSettings | None:
        return self.settings.get(self._key_of(model))

    async def see_settings(self, ask: Ask | None = None) -> None:
        for model in {self._key_of(model) for model in self.proofs}:
            found = await self.adapter.settings(ask or self.ask, model, self.version)
            if found is not None:
                self.settings[model] = found

    def changes_since_proof(self) -> list[str]:
        """Describe each model whose proof no longer holds, and what differs."""
        changes = []
        for model, proof in self.proofs.items():
            settings = self.settings_of(model)
            if settings is None or self.continuation_of(model) is not None:
                continue
            other = " and ".join(changed_parts(proof.fingerprint, settings.fingerprint))
            news = f"{model} is not what was measured (another {other})"
            unknown = f"the settings with which {model} was measured are not known"
            changes.append(news if proof.fingerprint else unknown)
        return changes

    async def bounded(self, model: str, asked: Continuable, pieces: Sequence[str]) -> Continuable | str:
        """Return a request with the server's own bounds on its answer, of which `pieces` have arrived; or why
        the continuation would differ if the answer were cut now.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(LOOK_TIMEOUT_S):
                await self.see_settings()
        if (found := self.continuation_of(model)) is None:
            return CHANGED
        return await self.adapter.bounded(self.ask, asked, pieces, found.settings)

    def is_asked_again(self, asked: Continuable) -> bool:
        """Whether this daemon has sent the question here before; it counts as sent from now on."""
        body = asked.body
        question = hash(msgspec.json.encode([body.get("model"), body.get("messages") or body.get("prompt")]))
        again = question in self._asked_before
        self._asked_before[question] = None
        if len(self._asked_before) > MAX_ASKED_BEFORE:
            del self._asked_before[next(iter(self._asked_before))]
        return again

    def _key_of(self, model: str) -> str:
        return "" if self.adapter.ANSWERS_ANY_MODEL else self.adapter.known_as(model)
