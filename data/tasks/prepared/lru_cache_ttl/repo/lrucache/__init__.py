"""A small least-recently-used cache."""

from lrucache.cache import LRUCache
from lrucache.stats import CacheStats

__all__ = ["CacheStats", "LRUCache"]
