"""What a server should have of prompts and of cut answers, how that is corrected, and the cost of a cut."""

from itertools import count
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clairvoyant_cli.scheduler.chain import Chain
from clairvoyant_cli.scheduler.server_cache import MAX_CONTEXTS, PreemptionPrice, ServerCache


def chain(*pieces: str) -> Chain:
    count = range(1, len(pieces) + 1)
    return Chain(tuple(hash(pieces[:n]) for n in count), tuple(400 * n for n in count))


def serve(cache: ServerCache, name: str, prompt: Chain, tokens: float = 100.0) -> None:
    """Serve a prompt of 100 tokens a piece, with an answer of `tokens` less its prompt."""
    cache.started(name, prompt, prompt.length / 4)
    cache.answered(name, prompt.length / 4, tokens - prompt.length / 4)


def test_a_next_turn_finds_the_prompt_and_the_answer() -> None:
    cache = ServerCache()
    serve(cache, "1", chain("system", "hi"), 230.0)
    assert cache.expected(chain("system", "hi", "answer", "more")).tokens == 230.0


def test_another_conversation_finds_the_pieces_that_both_have() -> None:
    cache = ServerCache()
    serve(cache, "1", chain("system", "hi"), 230.0)
    assert cache.expected(chain("system", "yo")).tokens == 100.0
    assert cache.expected(chain("other", "hi")).tokens == 0.0


def test_a_next_turn_takes_the_place_of_the_turn_before() -> None:
    cache = ServerCache()
    serve(cache, "1", chain("a"))
    serve(cache, "2", chain("a", "b", "c"), 350.0)
    assert len(cache.contexts) == 1
    assert cache.expected(chain("a", "b", "c", "d")).tokens == 350.0
    assert cache.expected(chain("a", "x")).tokens == pytest.approx(100.0)


def test_the_size_is_learned_from_a_conversation_that_is_gone() -> None:
    cache = ServerCache(slots=1)
    for name in "abc":
        serve(cache, name, chain(name), 500.0)
    expected = cache.expected(chain("a", "more"))
    assert (expected.tokens, expected.needs_tokens) == (500.0, 1000.0)
    cache.learn_cached(expected, 0.0)
    assert cache.room_tokens == 500.0
    assert cache.expected(chain("a", "more")).tokens == 0.0
    assert cache.expected(chain("b", "more")).tokens == 500.0
    assert cache.expected(chain("c", "more")).tokens == 500.0, "which is in the slot"
    cache.learn_cached(cache.expected(chain("b", "more")), 490.0)
    assert cache.room_tokens == 750.0
    cache.learn_cached(cache.expected(chain("a", "more")), 490.0)  # what was gone had another cause
    assert cache.room_tokens == 1000.0


def test_a_server_that_drops_its_cache_whole_is_found_out() -> None:
    cache = ServerCache(slots=1)
    serve(cache, "1", chain("a"), 500.0)
    for _ in range(20):
        cache.learn_cached(cache.expected(chain("a", "b")), 0.0)
    assert cache.room_tokens == inf
    assert cache.expected(chain("a", "b")).tokens < 10.0
    for _ in range(20):
        cache.learn_cached(cache.expected(chain("a", "b")), 500.0)
    assert cache.expected(chain("a", "b")).tokens == pytest.approx(500.0, rel=0.01)


def test_how_many_sessions_it_holds() -> None:
    cache = ServerCache(slots=1)
    assert cache.holds([1e6, 1e6], 0.0), "of an unknown size"
    cache.room_tokens = 1000.0
    assert cache.holds([5000.0], 0.0), "one is always served"
    assert cache.holds([400.0, 600.0, 300.0], 0.0), "the slot has one of them"
    assert not cache.holds([500.0, 600.0, 500.0], 0.0)
    cache.other_tokens, cache.other_s = 200.0, 10.0
    assert not cache.holds([400.0, 600.0, 300.0], 11.0)
    assert cache.holds([400.0, 600.0, 300.0], 100.0)
    cache.slots = 2
    assert cache.holds([5000.0, 6000.0], 100.0), "each has a slot"


def test_what_one_more_request_evicts() -> None:
    cache = ServerCache(slots=1)
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
    cache = ServerCache()
    for number in range(3 * MAX_CONTEXTS):
        serve(cache, str(number), chain(str(number), "more"))
    assert len(cache.contexts) == MAX_CONTEXTS
    assert len(cache._where) == 2 * MAX_CONTEXTS
    cache.dropped("0")
    cache.dropped(str(3 * MAX_CONTEXTS - 1))
    assert len(cache.contexts) == MAX_CONTEXTS - 1


def price(cache: ServerCache, tokens: float) -> PreemptionPrice:
    """Return what it costs to cut a job of this context, at 0.1 s to resume it and 10 tokens/s of prefill."""
    return cache.price_of_preemption("cut", tokens, 0.1, lambda n: n / 10.0)


def test_the_oldest_context_is_evicted_first() -> None:
    cache = ServerCache(0, 100.0)
    assert cache.left("a", 40.0) == []
    assert cache.left("b", 40.0) == []
    cache.dropped("a")  # it runs again
    assert cache.left("c", 40.0) == []
    assert cache.left("a", 50.0) == ["b"]
    assert cache.waiting == {"a", "b", "c"}
    assert cache.left("x", 30.0, waits=False) == ["c"]
    cache.ended("a")
    assert cache.left("y", 100.0, waits=False) == []
    assert cache.waiting == {"b", "c"}


def test_a_slot_of_another_job_keeps_its_context() -> None:
    cache = ServerCache(2, 100.0)
    cache.left("a", 90.0)
    cache.started("b", chain("b"), 80.0)
    assert cache.left("c", 30.0) == ["a"], "which is behind the slots"
    assert cache.left("d", 100.0) == [], "the other slot keeps one of the rest"


def test_a_context_larger_than_the_cache_is_not_kept_and_evicts_nothing() -> None:
    cache = ServerCache(0, 100.0)
    cache.left("a", 90.0)
    assert cache.left("long", 101.0) == ["long"]
    assert cache.waiting == {"a", "long"}
    assert cache.left("b", 10.0) == []


@given(st.lists(st.tuples(st.integers(1, 60), st.booleans()), max_size=12), st.integers(1, 120))
def test_the_price_of_a_cut_counts_the_contexts_that_it_evicts(
    left: list[tuple[int, bool]], tokens: int
) -> None:
    cache, sizes = ServerCache(0, 100.0), dict[str, int]()
    for name, (size, waits) in zip(map(str, count()), left, strict=False):
        sizes[name] = size
        cache.left(name, size, waits=waits)
    evicts_s = price(cache, tokens).evicts_s
    evicted = cache.left("cut", tokens, waits=False)
    assert evicts_s == pytest.approx(sum(sizes[job_id] / 10.0 for job_id in evicted))


def test_a_cut_without_room_costs_a_prefill() -> None:
    cache = ServerCache(0, 100.0)
    assert price(cache, 90.0) == PreemptionPrice(0.1, 0.0)
    cache.left("waits", 60.0)
    assert price(cache, 90.0) == PreemptionPrice(0.1, 6.0)
    for _ in range(100):
        cache.left("ended", 20.0, waits=False)
    assert price(cache, 90.0) == PreemptionPrice(0.1 + 9.0, 6.0)
    assert price(ServerCache(0), 90.0) == PreemptionPrice(0.1, 0.0)


def test_background_contexts_are_free_to_evict() -> None:
    cache = ServerCache(0, 100.0)
    cache.left("title", 30.0, interactive=False)
    cache.left("answer", 30.0)
    assert price(cache, 60.0).evicts_s == 0.0
    assert price(cache, 90.0).evicts_s == 3.0
    assert cache.left("new", 60.0) == ["title"], "which is lost all the same"


def test_a_cut_answer_teaches_the_size_of_the_cache_that_conversations_share() -> None:
    cache, asked = ServerCache(), chain("a", "question")
    cache.started("cut", asked, 200.0)
    cache.left("cut", 300.0)
    serve(cache, "other", chain("b"), 500.0)
    expected = cache.expected(asked)
    assert (expected.tokens, expected.needs_tokens) == (300.0, 300.0)
    cache.started("cut", asked, 200.0)
    assert cache.waiting == set()
    cache.continued(expected, was_there=False)
    assert cache.room_tokens == 150.0
    assert not cache.holds([400.0, 600.0], 0.0)
    cache.continued(expected, was_there=True)
    assert cache.size == (300.0, 300.0)


def test_a_restart_empties_the_cache_and_leaves_its_size() -> None:
    cache = ServerCache(2)
    serve(cache, "1", chain("a"), 500.0)
    cache.size = 100.0, 300.0
    empty = cache.emptied()
    assert (len(empty.contexts), empty.slots, empty.room_tokens) == (0, 2, 200.0)


def test_a_repeated_prompt_leaves_the_context_of_a_cut_answer() -> None:
    cache, asked = ServerCache(), chain("a")
    cache.started("cut", asked, 100.0)
    cache.left("cut", 300.0)
    cache.started("same", asked, 100.0)
    assert cache.waiting == {"cut"}
