"""What this machine's processes hold, and how to end those of one box; read from /proc."""

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path


def _descendants(pid: int) -> Iterator[int]:
    pending = [pid]
    while pending:
        parent = pending.pop()
        yield parent
        pending += _children(parent)


def _children(pid: int) -> list[int]:
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            found += map(int, (thread / "children").read_text().split())
    return found


def box_main(bubblewrap_pid: int) -> int | None:
    """The first process that bubblewrap started in a box, by its pid out here.

    Bubblewrap is two processes: one out here, and the box's first one, which also inherits the box's orphans.
    """
    inside = _children(bubblewrap_pid)
    candidates = _children(inside[0]) if inside else []
    return next((pid for pid in candidates if _pid_inside(pid) == 2), None)


def _pid_inside(pid: int) -> int | None:
    """A process's pid as it sees itself."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("NSpid:"):
                return int(line.split()[-1])
    return None


def memory_bytes(pid: int) -> int:
    """What the box's processes hold for themselves alone."""
    pages = 0
    for each in _descendants(pid):
        with contextlib.suppress(OSError, ValueError, IndexError):
            _, resident, shared = Path(f"/proc/{each}/statm").read_text().split()[:3]
            pages += int(resident) - int(shared)
    return pages * os.sysconf("SC_PAGE_SIZE")


def kill_marked(mark: str) -> None:
    """Kill every process that was started in that plain box, wherever it has gone since."""
    wanted = f"ROLLOUTS_JOB={mark}".encode()
    for _ in range(3):
        found = [pid for pid in _process_ids() if wanted in _environ(pid)]
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if not found:
            return


def _process_ids() -> list[int]:
    with contextlib.suppress(OSError):
        names = [path.name for path in Path("/proc").iterdir()]
        return [int(name) for name in names if name.isdigit() and int(name) != os.getpid()]
    return []


def _environ(pid: int) -> list[bytes]:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return []
