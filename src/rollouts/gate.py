"""The way to one model provider, shared by all threads that ask it: when it asks to wait, all of them wait.

A reader would get wrong that the end of the wait lets all in: one question goes ahead, and only when it was answered do
the others follow, each at a moment of its own. So a provider in trouble gets one request per wait, however many ask.
"""

import logging
import math
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rollouts.terminal import counted

log = logging.getLogger(__name__)

PATIENCE_S = 300.0
"""How long a provider may ask to wait, from its first refusal on, before questions are given up."""
SPREAD_S, SPREAD_CAP_S = 0.1, 5.0
"""Over how long questions come back, for each that waited and at most."""
LOOK_EVERY_S = 0.05


class TooBusy(Exception):
    """The provider asked to wait again and again, for longer than anyone should."""


class Gate:
    """One provider's. Safe to use from many threads."""

    def __init__(
        self, name: str, *, patience_s: float = PATIENCE_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.name, self.clock, self._patience_s = name, clock, patience_s
        self._lock = threading.Lock()
        self._asked = 0
        self._began: float | None = None
        """Since when the provider asks to wait; None: it does not."""
        self._closed_until = self._reopened_at = -math.inf
        self._spread_s = 0.0
        self._ahead: Question | None = None
        """The question that tries whether the wait is over."""

    @contextmanager
    def question(self, stopped: threading.Event) -> Iterator["Question"]:
        """One question, with all its tries; `stopped` ends its waits."""
        asked = Question(self, stopped)
        with self._lock:
            self._asked += 1
        try:
            yield asked
        finally:
            with self._lock:
                self._asked -= 1
                self._ahead = None if self._ahead is asked else self._ahead

    def _may_pass(self, asked: "Question") -> bool:
        """Whether a question may be sent now; TooBusy when there is no use in waiting for it."""
        with self._lock:
            now = self.clock()
            if self._began is None:
                return now >= asked.returns_at(self._reopened_at, self._spread_s)
            asked.forget_return()
            if now >= self._closed_until and self._ahead in (None, asked):
                self._ahead = asked
                return True
            if now > self._began + self._patience_s:
                raise TooBusy(f"{self.name} asks to wait for more than {self._patience_s:g} s now")
            return False

    def _close(self, asked: "Question", wait_s: float) -> None:
        with self._lock:
            now = self.clock()
            self._closed_until = max(self._closed_until, now + wait_s)
            self._ahead = None if self._ahead is asked else self._ahead
            first, waiting = self._began is None, self._asked
            self._began = now if self._began is None else self._began
        if first:  # once for each time of trouble, however many refusals it has
            log.warning(
                "%s asks to wait %.0f s; %s on hold", self.name, math.ceil(wait_s), counted(waiting, "question")
            )

    def _open(self, asked: "Question") -> None:
        """Let all in, if it was this question that tried whether they may."""
        with self._lock:
            if self._ahead is asked:
                self._ahead = self._began = None
                self._reopened_at = self.clock()
                self._spread_s = min(SPREAD_CAP_S, SPREAD_S * self._asked)


class Question:
    """One question on its way through a gate; for one thread."""

    def __init__(self, gate: Gate, stopped: threading.Event) -> None:
        self._gate, self._stopped = gate, stopped
        self._waited = False
        self._returns_at: float | None = None

    def wait(self) -> None:
        """Return when it may be sent, or at once after a stop. Raises TooBusy when that takes too long."""
        self.forget_return()
        while not self._gate._may_pass(self):
            self._waited = True
            if self._stopped.wait(LOOK_EVERY_S):
                return
        self._waited = False

    def refused(self, wait_s: float) -> None:
        """The provider asks to wait so long: nobody asks it anything before."""
        self._gate._close(self, wait_s)

    def answered(self) -> None:
        """The provider has time again."""
        self._gate._open(self)

    def returns_at(self, reopened_at: float, spread_s: float) -> float:
        """When it is sent after a wait: chosen once, so that all who waited do not come back at the same moment."""
        if not self._waited:
            return -math.inf
        if self._returns_at is None:
            self._returns_at = reopened_at + random.uniform(0.0, spread_s)
        return self._returns_at

    def forget_return(self) -> None:
        """The provider asks to wait again."""
        self._returns_at = None


_gates: dict[str, Gate] = {}
_gates_lock = threading.Lock()


def gate_of(provider: str) -> Gate:
    """The one gate of this process to a provider, named by its host and port."""
    with _gates_lock:
        return _gates.setdefault(provider, Gate(provider))
