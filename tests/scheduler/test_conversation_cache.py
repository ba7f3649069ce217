"""What a server should have of a prompt, and how its answers correct that."""

from math import inf

import pytest

from clairvoyant_cli.scheduler.chain import Chain
from clairvoyant_cli.scheduler.conversation_cache import MAX_CONVERSATIONS, ConversationCache


def chain(*pieces: str) -> Chain:
    """Return a chain of pieces with 400 characters each."""
    count = range(1, len(pieces) + 1)
    return Chain(tuple(hash(pieces[:n]) for n in count), tuple(400 * n for n in count))


def serve(cache: ConversationCache, name: str, prompt: Chain, tokens: float = 100.0) -> None:
    """Serve a prompt of 100 tokens a piece, with an answer of `tokens` less its prompt."""
    cache.started(name, prompt, prompt.length / 4)
    cache.answered(name, prompt.length / 4, tokens - prompt.length / 4)


def test_a_next_turn_finds_the_prompt_and_the_answer() -> None:
    cache = ConversationCache()
    serve(cache, "1", chain("system", "hi"), 230.0)
    assert cache.cached_tokens(chain("system", "hi", "answer", "more")) == 230.0


def test_another_conversation_finds_the_pieces_that_both_have() -> None:
    cache = ConversationCache()
    serve(cache, "1", chain("system", "hi"), 230.0)
    assert cache.cached_tokens(chain("system", "yo")) == 100.0
    assert cache.cached_tokens(chain("other", "hi")) == 0.0


def test_a_next_turn_takes_the_place_of_the_turn_before() -> None:
    cache = ConversationCache()
    serve(cache, "1", chain("a"))
    serve(cache, "2", chain("a", "b", "c"), 350.0)
    assert len(cache) == 1
    assert cache.cached_tokens(chain("a", "b", "c", "d")) == 350.0
    assert cache.cached_tokens(chain("a", "x")) == pytest.approx(100.0)


def test_the_size_is_learned_from_a_conversation_that_is_gone() -> None:
    cache = ConversationCache(slots=1)
    for name in "abc":
        serve(cache, name, chain(name), 500.0)
    expected = cache.expected(chain("a", "more"))
    assert (expected.tokens, expected.needs_tokens) == (500.0, 1000.0)
    cache.told(expected, 0.0)
    assert cache.room_tokens == 500.0
    assert cache.cached_tokens(chain("a", "more")) == 0.0
    assert cache.cached_tokens(chain("b", "more")) == 500.0
    assert cache.cached_tokens(chain("c", "more")) == 500.0, "which is in the slot"
    cache.told(cache.expected(chain("b", "more")), 490.0)
    assert cache.room_tokens == 750.0
    cache.told(cache.expected(chain("a", "more")), 490.0)  # what was gone had another cause
    assert cache.room_tokens == 1000.0


def test_a_server_that_drops_its_cache_whole_is_found_out() -> None:
    cache = ConversationCache(slots=1)
    serve(cache, "1", chain("a"), 500.0)
    for _ in range(20):
        cache.told(cache.expected(chain("a", "b")), 0.0)
    assert cache.room_tokens == inf
    assert cache.cached_tokens(chain("a", "b")) < 10.0
    for _ in range(20):
        cache.told(cache.expected(chain("a", "b")), 500.0)
    assert cache.cached_tokens(chain("a", "b")) == pytest.approx(500.0, rel=0.01)


def test_how_many_sessions_it_holds() -> None:
    cache = ConversationCache(slots=1)
    assert cache.holds([1e6, 1e6], 0.0), "of an unknown size"
    cache.room_tokens = 1000.0
    assert cache.holds([5000.0], 0.0), "one is always served"
    assert cache.holds([400.0, 600.0, 300.0], 0.0), "the slot has one of them"
    assert not cache.holds([500.0, 600.0, 500.0], 0.0)
    cache.note_other(200.0, 10.0)
    assert not cache.holds([400.0, 600.0, 300.0], 11.0)
    assert cache.holds([400.0, 600.0, 300.0], 100.0)
    cache.slots = 2
    assert cache.holds([5000.0, 6000.0], 100.0), "each has a slot"


def test_what_one_more_request_evicts() -> None:
    cache = ConversationCache(slots=1)
    for name in "ab":
        serve(cache, name, chain(name), 1000.0)
    cache.room_tokens = 500.0
    assert not cache.evicts(chain("a")), "which is gone already"
    assert cache.evicts(chain("b"))
    cache.room_tokens = 1000.0
    assert not cache.evicts(chain("b"))
    cache.room_tokens, cache.slots = 500.0, 3
    assert not cache.evicts(chain("b"))


def test_what_is_tracked_is_bounded() -> None:
    cache = ConversationCache()
    for number in range(3 * MAX_CONVERSATIONS):
        serve(cache, str(number), chain(str(number), "more"))
    assert len(cache) == MAX_CONVERSATIONS
    assert len(cache._where) == 2 * MAX_CONVERSATIONS
    cache.dropped("0")
    cache.dropped(str(3 * MAX_CONVERSATIONS - 1))
    assert len(cache) == MAX_CONVERSATIONS - 1
