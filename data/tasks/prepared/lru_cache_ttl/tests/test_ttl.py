"""Expiry, with a clock that only moves when told to."""

import pytest

from lrucache import LRUCache


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_entry_lives_until_its_time(clock):
    cache = LRUCache(2, ttl=10, clock=clock)
    cache.put("a", 1)
    clock.now += 9.5
    assert cache.get("a") == 1
    clock.now += 0.5
    assert cache.get("a", "gone") == "gone"


def test_without_ttl_nothing_expires(clock):
    cache = LRUCache(2, clock=clock)
    cache.put("a", 1)
    clock.now += 1e9
    assert cache.get("a") == 1
    assert cache.purge() == 0


def test_reading_does_not_prolong(clock):
    cache = LRUCache(2, ttl=10, clock=clock)
    cache.put("a", 1)
    clock.now += 6
    assert cache.get("a") == 1
    clock.now += 6
    assert cache.get("a") is None


def test_putting_again_starts_a_new_life(clock):
    cache = LRUCache(2, ttl=10, clock=clock)
    cache.put("a", 1)
    clock.now += 6
    cache.put("a", 2)
    clock.now += 6
    assert cache.get("a") == 2
    assert cache.stats.expirations == 0


def test_own_ttl_of_an_entry(clock):
    cache = LRUCache(3, ttl=10, clock=clock)
    cache.put("short", 1, ttl=1)
    cache.put("long", 2, ttl=100)
    cache.put("usual", 3)
    clock.now += 1
    assert cache.keys() == ["long", "usual"]
    clock.now += 9
    assert cache.keys() == ["long"]


def test_own_ttl_is_not_kept_by_the_next_put(clock):
    cache = LRUCache(2, ttl=10, clock=clock)
    cache.put("a", 1, ttl=100)
    cache.put("a", 2)
    clock.now += 10
    assert "a" not in cache


def test_explicit_none_never_expires(clock):
    cache = LRUCache(2, ttl=10, clock=clock)
    cache.put("a", 1, ttl=None)
    clock.now += 1e9
    assert cache.get("a") == 1


def test_own_ttl_in_a_cache_without(clock):
    cache = LRUCache(2, clock=clock)
    cache.put("a", 1, ttl=5)
    clock.now += 5
    assert cache.get("a") is None


def test_expired_entry_is_invisible(clock):
    cache = LRUCache(2, ttl=10, clock=clock)
    cache.put("a", 1)
    clock.now += 10
    assert "a" not in cache
    assert len(cache) == 0
    assert list(cache) == []
    assert cache.keys() == []
    with pytest.raises(KeyError):
        del cache["a"]


def test_expired_lookup_is_a_miss(clock):
    cache = LRUCache(2, ttl=10, clock=clock)
    cache.put("a", 1)
    clock.now += 10
    cache.get("a")
    assert (cache.stats.hits, cache.stats.misses) == (0, 1)


def test_expirations_are_counted_once(clock):
    cache = LRUCache(4, ttl=10, clock=clock)
    for key in "abcd":
        cache.put(key, key)
    clock.now += 10
    cache.get("a")
    cache.get("a")
    with pytest.raises(KeyError):
        del cache["b"]
    assert cache.stats.expirations == 2
    assert cache.purge() == 2
    assert cache.purge() == 0
    assert cache.stats.expirations == 4


def test_replacing_an_expired_entry_counts(clock):
    cache = LRUCache(2, ttl=10, clock=clock)
    cache.put("a", 1)
    clock.now += 10
    cache.put("a", 2)
    assert cache.get("a") == 2
    assert cache.stats.expirations == 1


def test_expired_entries_make_room_first(clock):
    evicted = []
    cache = LRUCache(2, on_evict=lambda key, value: evicted.append(key), clock=clock)
    cache.put("old but alive", 1)
    cache.put("expired", 2, ttl=5)
    clock.now += 5
    cache.put("new", 3)
    assert cache.keys() == ["old but alive", "new"]
    assert evicted == []
    assert (cache.stats.evictions, cache.stats.expirations) == (0, 1)


def test_live_entries_are_evicted_as_before(clock):
    evicted = []
    cache = LRUCache(2, lambda key, value: evicted.append((key, value)), ttl=10, clock=clock)
    cache.put("a", 1)
    cache.put("b", 2)
    cache.get("a")
    cache.put("c", 3)
    assert evicted == [("b", 2)]
    assert (cache.stats.evictions, cache.stats.expirations) == (1, 0)


def test_ttl_must_be_positive(clock):
    for ttl in (0, -1, -0.5):
        with pytest.raises(ValueError):
            LRUCache(2, ttl=ttl)


def test_refused_put_changes_nothing(clock):
    cache = LRUCache(1, ttl=10, clock=clock)
    cache.put("a", 1)
    for key in ("a", "b"):
        with pytest.raises(ValueError):
            cache.put(key, 2, ttl=0)
    assert cache.keys() == ["a"]
    assert cache.get("a") == 1
    assert cache.stats.evictions == 0


def test_options_are_keyword_only(clock):
    with pytest.raises(TypeError):
        LRUCache(2, None, 10)
    cache = LRUCache(2, ttl=10)
    with pytest.raises(TypeError):
        cache.put("a", 1, 5)


def test_clear_counts_no_expirations(clock):
    cache = LRUCache(2, ttl=10, clock=clock)
    cache.put("a", 1)
    clock.now += 10
    cache.clear()
    assert cache.stats.expirations == 0
    assert cache.purge() == 0
