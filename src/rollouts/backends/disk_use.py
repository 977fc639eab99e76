"""How much open boxes have written, for engines and kernels that do not keep count of it themselves.

A look takes time, so it is made for all boxes together, in a thread of its own and not too often: whoever asks gets
what the last one found.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping

log = logging.getLogger(__name__)

LOOK_EVERY_S = 5.0
SHARE = 10
"""A look that takes long is made seldom: at most this part of the time is spent on looking."""
LONGEST_PAUSE_S = 60.0


class DiskUse:
    """The last look at what boxes have written, and the next one."""

    def __init__(self, measure: Callable[[], Mapping[str, int]]) -> None:
        """`measure` finds the bytes of each open box; what it raises counts as having seen nothing."""
        self._measure = measure
        self._lock = threading.Lock()
        self._known: Mapping[str, int] = {}
        self._next_look = 0.0
        self._looking = False

    def bytes_of(self, box: str) -> int:
        """What that box had written when it was last looked at. Returns at once."""
        with self._lock:
            due = not self._looking and time.monotonic() >= self._next_look
            self._looking = self._looking or due
        if due:
            threading.Thread(target=self._look, name="disk-use", daemon=True).start()
        return self._known.get(box, 0)

    def _look(self) -> None:
        begin = time.monotonic()
        try:
            self._known = self._measure()
        except Exception as exc:  # noqa: BLE001 - the engine may be away; the next look tells
            log.debug("what boxes have written could not be found: %s", exc)
        pause_s = min(LONGEST_PAUSE_S, max(LOOK_EVERY_S, SHARE * (time.monotonic() - begin)))
        with self._lock:
            self._next_look = time.monotonic() + pause_s
            self._looking = False
