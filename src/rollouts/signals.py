"""Ctrl-C and its kin while boxes are open: the first ends them and keeps what is there, the second leaves at once.

A handler of Python's runs in the main thread, between any two of its steps: it must not wait for a lock, which that
very thread may hold, and it waits itself while the thread is busy elsewhere. So signals are only noted, by the
interpreter, on a pipe; a thread of our own reads them there and does what is to be done.
"""

import contextlib
import os
import signal
import threading
from collections.abc import Callable
from typing import Any

from rollouts.backends.base import Backend
from rollouts.errors import ExitCode

WATCHED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
WARN_LIMIT_S = 1.0
"""A terminal that was stopped takes no words, and boxes must end all the same."""
KILL_LIMIT_S = 3.0
"""How long leaving at once may take."""


class Signals:
    """Watches for signals while it is entered. First: start nothing new, end the boxes. Second: leave at once."""

    def __init__(self, backend: Backend, warn: Callable[[str], None], what_is_kept: str) -> None:
        self._backend, self._warn, self._what_is_kept = backend, warn, what_is_kept
        self._previous: dict[int, Any] = {}
        self._previous_pipe = -1
        self._pipe: int | None = None
        self.exit_code: ExitCode | None = None
        """What the process will say about it; None when there was no signal."""

    def __enter__(self) -> "Signals":
        if threading.current_thread() is not threading.main_thread():
            return self
        reader, self._pipe = os.pipe()
        os.set_blocking(self._pipe, False)
        self._previous_pipe = signal.set_wakeup_fd(self._pipe, warn_on_full_buffer=False)
        threading.Thread(target=self._watch, args=(reader,), name="signals", daemon=True).start()
        for number in WATCHED:
            if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup: what is ignored stays so
                self._previous[number] = signal.getsignal(number)  # first: it may come at once
                signal.signal(number, _note)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, old in self._previous.items():
            signal.signal(number, old)
        if self._pipe is not None:
            signal.set_wakeup_fd(self._previous_pipe)
            os.close(self._pipe)

    def _watch(self, reader: int) -> None:
        with os.fdopen(reader, "rb", buffering=0) as numbers:
            while number := numbers.read(1):
                if number[0] in self._previous:
                    self._handle(number[0])

    def _handle(self, number: int) -> None:
        if self.exit_code is not None:
            _within(KILL_LIMIT_S, self._backend.kill)
            _within(WARN_LIMIT_S, _give_terminal_back)
            os._exit(self.exit_code)
        self.exit_code = ExitCode.TERMINATED if number == signal.SIGTERM else ExitCode.INTERRUPTED
        text = f"stopping: open sandboxes are ended and {self._what_is_kept}; again to leave at once"
        _within(WARN_LIMIT_S, lambda: self._warn(text))
        self._backend.cancel()


def _note(number: int, frame: object) -> None:
    """Being there is enough: the interpreter has put the number on the pipe."""


def _give_terminal_back() -> None:
    """Show the cursor, which the live board has hidden, and begin a line."""
    for descriptor in (1, 2):
        if os.isatty(descriptor):
            os.write(descriptor, b"\x1b[?25h\n")
            return


def _within(limit_s: float, work: Callable[[], None]) -> None:
    """Do it in a thread that may be left behind."""

    def do() -> None:
        with contextlib.suppress(Exception):  # whatever it is, the program goes on to its end
            work()

    thread = threading.Thread(target=do, daemon=True)
    thread.start()
    thread.join(limit_s)
