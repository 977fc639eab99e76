"""Calls a function for many items, at most so many at once, with retries that wait outside the slots.

Knows nothing of tasks or sandboxes. A reader would get wrong that an item waiting for its retry does not hold a slot.
"""

import heapq
import random
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Item = TypeVar("Item")

BACKOFF_S = 1.0
BACKOFF_CAP_S = 60.0


@dataclass(order=True)
class _Waiting(Generic[Item]):
    ready_at: float
    order: int
    item: Item = field(compare=False)
    attempt: int = field(compare=False, default=1)


def backoff_s(attempt: int) -> float:
    """How long to wait before the next attempt: growing, with jitter so that many do not come back together."""
    return min(BACKOFF_CAP_S, BACKOFF_S * 2.0 ** (attempt - 1)) * random.uniform(0.5, 1.0)


class Schedule(Generic[Item]):
    """Runs `work` for each item in a pool of threads. It says in how many seconds the item wants another try, if so."""

    def __init__(
        self, work: Callable[[Item, int], float | None], parallel: int, cancelled: threading.Event | None = None
    ) -> None:
        """`cancelled` may be set from outside; it has the same effect here as `stop`."""
        self._work, self._parallel, self._cancelled = work, parallel, cancelled or threading.Event()
        self._stopped = False
        self._changed = threading.Condition()
        self._waiting: list[_Waiting[Item]] = []
        self._running = 0
        self._failure: BaseException | None = None

    def run(self, items: Iterable[Item]) -> None:
        """Return when every item is done, or after `stop` when the running ones are. Re-raises what `work` raised."""
        self._waiting = [_Waiting(0.0, order, item) for order, item in enumerate(items)]
        count = min(self._parallel, len(self._waiting))
        threads = [threading.Thread(target=self._worker, name=f"run-{n}", daemon=True) for n in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():
                thread.join(0.5)  # with a limit, so that signals are handled meanwhile
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """Start nothing new; what runs goes on to its end. Safe to call from any thread."""
        self._stopped = True

    def _worker(self) -> None:
        while (taken := self._take()) is not None:
            wait_s = None
            try:
                wait_s = self._work(taken.item, taken.attempt)
            except BaseException as exc:  # noqa: BLE001 - kept for `run`, which raises it in the caller's thread
                self._failure = self._failure or exc
                self.stop()
            with self._changed:
                self._running -= 1
                if wait_s is not None:
                    ready_at = time.monotonic() + wait_s
                    heapq.heappush(self._waiting, _Waiting(ready_at, taken.order, taken.item, taken.attempt + 1))
                self._changed.notify_all()

    def _take(self) -> _Waiting[Item] | None:
        with self._changed:
            while not self._stopped and not self._cancelled.is_set():
                if not self._waiting and not self._running:
                    return None
                delay = self._waiting[0].ready_at - time.monotonic() if self._waiting else 0.5
                if self._waiting and delay <= 0:
                    self._running += 1
                    return heapq.heappop(self._waiting)
                self._changed.wait(min(delay, 0.5))
            return None
