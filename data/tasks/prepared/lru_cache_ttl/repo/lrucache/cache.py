"""The cache itself. Not safe for use from several threads without a lock."""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from typing import Generic, TypeVar

from lrucache.stats import CacheStats

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class LRUCache(Generic[K, V]):
    """Keeps the `maxsize` most recently used entries."""

    def __init__(self, maxsize: int, on_evict: Callable[[K, V], None] | None = None) -> None:
        if maxsize < 1:
            raise ValueError(f"maxsize must be at least 1, got {maxsize}")
        self.maxsize = maxsize
        self.stats = CacheStats()
        self._on_evict = on_evict
        self._entries: OrderedDict[K, V] = OrderedDict()

    def get(self, key: K, default: V | None = None) -> V | None:
        """Return the value and mark the entry as just used."""
        if key not in self._entries:
            self.stats.misses += 1
            return default
        self.stats.hits += 1
        self._entries.move_to_end(key)
        return self._entries[key]

    def put(self, key: K, value: V) -> None:
        """Add or replace an entry, evicting the least recently used one when the cache is full."""
        if key not in self._entries and len(self._entries) == self.maxsize:
            self._evict()
        self._entries[key] = value
        self._entries.move_to_end(key)

    def keys(self) -> list[K]:
        """All keys, the least recently used first."""
        return list(self._entries)

    def clear(self) -> None:
        """Forget every entry. Counts nothing and calls nobody."""
        self._entries.clear()

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def __delitem__(self, key: K) -> None:
        del self._entries[key]

    def __iter__(self) -> Iterator[K]:
        return iter(self.keys())

    def __len__(self) -> int:
        return len(self._entries)

    def _evict(self) -> None:
        key, value = self._entries.popitem(last=False)
        self.stats.evictions += 1
        if self._on_evict is not None:
            self._on_evict(key, value)
