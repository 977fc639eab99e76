"""One process at a time does a piece of work, and whoever comes second is told who does it.

The lock file holds its holder while it is held. A file that names someone though nobody holds it was left by a process
that died in the middle of its work.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from rollouts.errors import StoreError
from rollouts.owner import Owner

PATIENCE_S = 1.0
"""How long to wait for whoever works there before that is told."""
SWEEPING_S = 30.0
"""How long to wait for whoever holds a lock just to put in order what a dead process left."""


class WorkLock:
    """A lock that this process holds until `release`, or until it dies."""

    def __init__(self, path: Path, doing: str, *, restoring: bool = False) -> None:
        """Raises StoreError when another process holds it; `doing` is what that process does then.

        With `restoring` nobody is waited for, and the name of the dead process stays until `release`.
        """
        self.path = path
        self._lock = FileLock(path)
        try:
            self._acquire(0.0 if restoring else PATIENCE_S)
            if not restoring:
                path.write_text(Owner.current().encode())
        except Timeout:
            other = holder(path)
            who = other.describe() if other and not other.is_dead() else "another process"
            raise StoreError(f"{path.parent}: {who} {doing}") from None
        except OSError as exc:
            self._lock.release()
            raise StoreError(f"{path}: cannot be written: {exc.strerror}") from exc

    def _acquire(self, patience_s: float) -> None:
        """A lock that is taken though its holder is dead is free again in moments."""
        try:
            self._lock.acquire(timeout=patience_s, poll_interval=0.02)
        except Timeout:
            other = holder(self.path)
            if not patience_s or (other is not None and not other.is_dead()):
                raise
            self._lock.acquire(timeout=SWEEPING_S, poll_interval=0.05)

    def release(self) -> None:
        """All that was to be done is done."""
        with contextlib.suppress(OSError):  # a full disk has room for nothing, and a lock needs none
            self.path.write_text("")
        self._lock.release()


@contextlib.contextmanager
def held(path: Path, doing: str) -> Iterator[None]:
    """The same for a `with`."""
    lock = WorkLock(path, doing)
    try:
        yield
    finally:
        lock.release()


def holder(path: Path) -> Owner | None:
    """Who holds that lock, or held it when it died; None when it was given back."""
    try:
        return Owner.decode(path.read_text())
    except (OSError, UnicodeDecodeError):
        return None


def is_held(path: Path) -> bool:
    """Whether its holder lives, as far as can be told without taking it."""
    found = holder(path)
    return found is not None and not found.is_dead()
