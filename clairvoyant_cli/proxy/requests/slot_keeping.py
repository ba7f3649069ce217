"""Saves the conversation that a request pushes out of its slot, and restores the request's own.

Rule 1: only what is about to be lost is saved, so a server with one conversation writes nothing.
Rule 2: with several slots, a conversation is saved only if exactly one idle slot has its number of tokens.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from clairvoyant_cli.protocols.routes import Work
from clairvoyant_cli.proxy.queue.exchange import Exchange
from clairvoyant_cli.proxy.servers.saved_slots import SavedSlots
from clairvoyant_cli.proxy.servers.server import Server
from clairvoyant_cli.scheduler.conversation_cache import NOTHING, ConversationCache, Expected
from clairvoyant_cli.scheduler.job import Job


@dataclass(slots=True)
class SlotKeeper:
    """Called before and after each attempt to serve a request.

    `conversation_key(job)` is the same for all requests of a conversation, and "" for one that is not worth
    saving. `expected(job)` is what should be cached of its prompt, `cache_of(server)` the account of a cache.
    """

    conversation_key: Callable[[Job], str] = lambda job: ""
    expected: Callable[[Job], Expected] = lambda job: NOTHING
    cache_of: Callable[[Server], ConversationCache] = lambda server: ConversationCache()
    _restored: set[str] = field(default_factory=set)

    async def before_attempt(self, exchange: Exchange, server: Server) -> None:
        """Save and restore what pays, in the slot that the request will get."""
        saved, key = server.saved_slots, self._key(exchange)
        if saved is None or not server.adapter.REPORTS_SLOTS or saved.lock.locked():
            return
        saved.forget_unused()
        async with saved.lock:
            if not saved.usable and not await saved.probe():
                return
            cache = self.cache_of(server)
            cache.saved = saved.files
            tokens, expected = saved.tokens_of(key), self.expected(exchange.job)
            lacks = tokens - (0.0 if expected.on_disk else expected.tokens)
            if key in saved.held and lacks <= 0.0:
                return  # it goes on in its slot
            idle = await saved.idle_slots() or {}
            own = _slot_of(key, saved, server, idle)
            if own is not None and idle[own] >= tokens:
                return
            victim, slot = _next_out(saved, server, idle)
            if slot is None:
                return
            held = idle[slot]
            if victim not in ("", key) and not cache.keeps_all:
                worth = saved.worth(held, held, server.speeds)
                cache.saves = worth and await saved.keep(victim, slot, held)
            pays = lacks > 0.0 and saved.worth(lacks, tokens, server.speeds)
            if pays and await saved.bring_back(key, slot):
                self._restored.add(exchange.id)

    def after_attempt(self, exchange: Exchange, server: Server) -> None:
        """Note which conversation a slot holds now, and whether what was restored was of use."""
        saved, key, attempt = server.saved_slots, self._key(exchange), exchange.attempt
        restored = exchange.id in self._restored
        self._restored.discard(exchange.id)
        if saved is None or attempt is None or attempt.connection is None:
            return
        totals = attempt.totals
        known = totals.prompt_tokens is not None and totals.tokens is not None
        saved.held[key] = (totals.prompt_tokens or 0) + (totals.tokens or 0) if known else None
        saved.held.move_to_end(key)
        while len(saved.held) > server.slots:
            saved.held.popitem(last=False)
        if restored and totals.prompt_tokens and totals.prefilled_tokens:
            saved.told(key, totals.prompt_tokens - totals.prefilled_tokens)

    def _key(self, exchange: Exchange) -> str:
        return self.conversation_key(exchange.job) if exchange.asked.route.work is Work.GENERATE else ""


def _slot_of(key: str, saved: SavedSlots, server: Server, idle: Mapping[int, int]) -> int | None:
    """Return the idle slot with a conversation; None if that is not known."""
    if key not in saved.held:
        return None
    if server.slots == len(idle) == 1:
        return next(iter(idle))
    tokens = saved.held[key]
    # The last token of an answer is not in the cache, unless the model has read it for another reason.
    found = [] if tokens is None else [slot for slot, has in idle.items() if has in (tokens - 1, tokens)]
    return found[0] if len(found) == 1 else None


def _next_out(saved: SavedSlots, server: Server, idle: Mapping[int, int]) -> tuple[str, int | None]:
    """Return the slot that llama.cpp will use for a new conversation, and which one that pushes out: it takes
    an empty slot, else the least recently used. The slot is None if it is not known.
    """
    empty = next((slot for slot, tokens in idle.items() if not tokens), None)
    if empty is not None:
        return "", empty
    for key in saved.held:
        slot = _slot_of(key, saved, server, idle)
        if slot is not None:
            return key, slot
    return "", next(iter(idle)) if server.slots == len(idle) == 1 else None
