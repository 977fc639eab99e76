"""Ctrl-C and its kin while boxes are open: the first ends them and keeps what is there, the second leaves at once."""

import os
import signal
import threading
from collections.abc import Callable
from typing import Any

from rollouts.backends.base import Backend
from rollouts.errors import ExitCode


class Signals:
    """Watches for signals while it is entered. First: start nothing new, end the boxes. Second: leave at once."""

    def __init__(self, backend: Backend, warn: Callable[[str], None], what_is_kept: str) -> None:
        self._backend, self._warn, self._what_is_kept = backend, warn, what_is_kept
        self._previous: dict[int, Any] = {}
        self.exit_code: ExitCode | None = None
        """What the process will say about it; None when there was no signal."""

    def __enter__(self) -> "Signals":
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            mine = threading.current_thread() is threading.main_thread()
            if mine and signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup: what is ignored stays so
                self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, old in self._previous.items():
            signal.signal(number, old)

    def _handle(self, number: int, frame: object) -> None:
        if self.exit_code is not None:
            os._exit(self.exit_code)
        self.exit_code = ExitCode.TERMINATED if number == signal.SIGTERM else ExitCode.INTERRUPTED
        self._backend.cancel()
        self._warn(f"stopping: open sandboxes are ended and {self._what_is_kept}; again to leave at once")
