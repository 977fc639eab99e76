import pytest

from lrucache import LRUCache


def test_get_returns_what_was_put():
    cache = LRUCache(2)
    cache.put("a", 1)
    assert cache.get("a") == 1


def test_missing_key_gives_the_default():
    cache = LRUCache(2)
    assert cache.get("a") is None
    assert cache.get("a", 7) == 7


def test_least_recently_used_entry_is_evicted():
    cache = LRUCache(2)
    cache.put("a", 1)
    cache.put("b", 2)
    cache.get("a")
    cache.put("c", 3)
    assert cache.keys() == ["a", "c"]


def test_replacing_a_value_evicts_nothing():
    cache = LRUCache(2)
    cache.put("a", 1)
    cache.put("b", 2)
    cache.put("a", 3)
    assert cache.keys() == ["b", "a"]
    assert cache.stats.evictions == 0


def test_on_evict_is_told():
    evicted = []
    cache = LRUCache(1, lambda key, value: evicted.append((key, value)))
    cache.put("a", 1)
    cache.put("b", 2)
    assert evicted == [("a", 1)]


def test_hit_rate():
    cache = LRUCache(1)
    assert cache.stats.hit_rate == 0.0
    cache.put("a", 1)
    cache.get("a")
    cache.get("b")
    assert cache.stats.hit_rate == 0.5


def test_maxsize_must_be_positive():
    with pytest.raises(ValueError):
        LRUCache(0)
