"""What users of the cache rely on today."""

import pytest

from lrucache import LRUCache


def test_in_does_not_refresh():
    cache = LRUCache(2)
    cache.put("a", 1)
    cache.put("b", 2)
    assert "a" in cache
    cache.put("c", 3)
    assert "a" not in cache


def test_none_is_a_value():
    cache = LRUCache(2)
    cache.put("a", None)
    assert cache.get("a", 5) is None
    assert cache.stats.hits == 1


def test_delete():
    cache = LRUCache(2)
    cache.put("a", 1)
    del cache["a"]
    assert len(cache) == 0
    with pytest.raises(KeyError):
        del cache["a"]


def test_clear_counts_nothing():
    evicted = []
    cache = LRUCache(2, on_evict=lambda key, value: evicted.append(key))
    cache.put("a", 1)
    cache.clear()
    assert list(cache) == []
    assert cache.stats.evictions == 0
    assert evicted == []


def test_entries_may_be_deleted_while_iterating():
    cache = LRUCache(3)
    for key in "abc":
        cache.put(key, key)
    for key in cache:
        del cache[key]
    assert len(cache) == 0
