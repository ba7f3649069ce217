"""Contexts in a KV cache, evictions, and the cost of a cut."""

from itertools import count
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clairvoyant_cli.scheduler.kv_cache import MAX_CONTEXTS, CutPrice, KvCache, price_of_cut


def test_the_oldest_context_is_evicted_first() -> None:
    kept = KvCache(100.0)
    assert kept.left("a", 40.0) == {}
    assert kept.left("b", 40.0) == {}
    kept.taken("a")
    assert kept.left("c", 40.0) == {}
    assert kept.left("a", 50.0) == {"b": 130.0}
    assert kept.waiting == {"a", "b", "c"}
    assert "b" not in kept
    assert kept.left("x", 30.0, waits=False) == {"c": 120.0}
    kept.ended("a")
    assert kept.left("y", 100.0, waits=False) == {}
    assert (kept.waiting, kept.used_tokens) == ({"b", "c"}, 100.0)


def test_a_context_larger_than_the_cache_is_not_kept() -> None:
    kept = KvCache(100.0)
    kept.left("a", 90.0)
    assert kept.left("long", 101.0) == {"long": 101.0}
    assert kept.waiting == {"a", "long"}
    assert "long" not in kept


def test_tracked_contexts_are_bounded() -> None:
    kept = KvCache()
    for number in range(3 * MAX_CONTEXTS):
        kept.left(str(number), 10.0, waits=False)
    assert kept.used_tokens == 10.0 * MAX_CONTEXTS


@given(st.lists(st.tuples(st.integers(1, 60), st.booleans()), max_size=12), st.integers(1, 120))
def test_predicted_evictions_match_real_ones(left: list[tuple[int, bool]], tokens: int) -> None:
    kept = KvCache(100.0)
    names = map(str, count())
    sizes: dict[str, int] = {}
    for size, waits in left:
        name = next(names)
        sizes[name] = size
        kept.left(name, size, waits=waits)
    would = list(kept.would_lose(tokens))
    assert kept.used_tokens <= 100.0
    assert would == [sizes[job_id] for job_id in kept.left("new", tokens, waits=False)]


def test_a_cut_without_room_costs_a_prefill() -> None:
    kept = KvCache(100.0)
    assert price_of_cut(kept, 90.0, 0.1, lambda n: n / 10.0) == CutPrice(0.1, 0.0)
    kept.left("waits", 60.0)
    assert price_of_cut(kept, 90.0, 0.1, lambda n: n / 10.0) == CutPrice(0.1, 6.0)
    for _ in range(100):
        kept.left("ended", 20.0, waits=False)
    assert price_of_cut(kept, 90.0, 0.1, lambda n: n / 10.0) == CutPrice(0.1 + 9.0, 6.0)
    assert price_of_cut(KvCache(), 90.0, 0.1, lambda n: inf) == CutPrice(0.1, 0.0)


def test_background_contexts_are_free_to_evict() -> None:
    kept = KvCache(100.0)
    kept.left("title", 30.0, waited_for=False)
    kept.left("answer", 30.0)
    assert list(kept.would_lose(60.0)) == []
    assert list(kept.would_lose(90.0)) == [30.0]
    assert kept.left("new", 60.0) == {"title": 120.0}, "which is lost all the same"


def test_room_for_a_context_includes_later_evictions() -> None:
    kept = KvCache()
    for number, tokens in enumerate((10.0, 20.0, 30.0)):
        kept.left(str(number), tokens)
    assert [kept.room_for(str(number)) for number in range(4)] == pytest.approx([60.0, 50.0, 30.0, 0.0])


def test_the_cache_size_is_learned_from_hits_and_losses() -> None:
    cache = KvCache()
    cache.learn(400.0, was_there=True)
    assert cache.room_tokens == inf
    cache.learn(1000.0, was_there=False)
    assert cache.room_tokens == 700.0
    cache.learn(800.0, was_there=True)
    assert cache.room_tokens == 900.0
    cache.learn(200.0, was_there=False)  # for another reason, perhaps
    assert cache.room_tokens == 100.0
    cache.learn(500.0, was_there=True)
    assert cache.room_tokens == inf


def test_a_lost_context_is_reported_and_teaches_the_cache_size() -> None:
    cache = KvCache()
    cache.left("a", 60.0, waits=True)
    cache.left("b", 50.0, waits=False)
    cache.resumed("a", was_there=False)
    assert cache.room_tokens == 55.0
    assert cache.left("c", 40.0, waits=True) == {}
    assert cache.left("d", 30.0, waits=False) == {"c": 70.0}
    assert cache.waiting == {"c"}
    cache.resumed("c", was_there=True)
    assert cache.at_least == 70.0
    assert cache.waiting == set()
