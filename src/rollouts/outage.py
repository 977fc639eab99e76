"""An engine that does not answer: everyone waits for it together, is told so once, and gives up together."""

import threading
import time
from collections.abc import Callable

from rollouts.backends.base import Backend
from rollouts.errors import BackendUnavailable, JobCancelled

OUTAGE_LIMIT_S = 300.0
"""How long an engine may be away before the command gives up."""
ASK_EVERY_S = 1.0
MAX_EXCUSED = 10
"""How often an engine that went away may excuse one run's failure: it may be that run which makes it go."""


class Outage:
    """Asked by whoever saw a box fail. Safe to ask from many threads."""

    def __init__(self, backend: Backend, warn: Callable[[str], None]) -> None:
        self._backend, self._warn, self._limit_s = backend, warn, OUTAGE_LIMIT_S
        self._lock = threading.Lock()

    def wait(self) -> bool:
        """Whether the engine was away; returns when it answers.

        Raises BackendUnavailable when it stays away for too long, and JobCancelled when all must end.
        """
        if self._backend.is_answering():
            return False
        with self._lock:  # the first to come asks for all
            if not self._backend.is_answering():
                self._wait_for_answer()
        return True

    def _wait_for_answer(self) -> None:
        if self._backend.cancelled.is_set():
            raise JobCancelled
        self._warn(f"{self._backend.name} does not answer; waiting up to {self._limit_s:.0f} s for it")
        began = time.monotonic()
        while not self._backend.is_answering():
            if time.monotonic() > began + self._limit_s:
                raise BackendUnavailable(
                    f"{self._backend.name}: did not answer for {self._limit_s:.0f} s; when it is back, "
                    "`resume` (or `eval`, if that was it) goes on from here"
                )
            if self._backend.cancelled.wait(ASK_EVERY_S):
                raise JobCancelled
        self._warn(f"{self._backend.name} answers again after {time.monotonic() - began:.0f} s")
