"""Which process something belongs to. What dead owners left may be removed; what belongs to anyone else never."""

import contextlib
import json
import os
import socket
import tempfile
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

OWNER_FILE = "owner"
OWNERLESS_S = 3600.0
"""How old a folder without an owner must be to count as left behind: its process may be about to write the name."""


@dataclass(frozen=True)
class Owner:
    """The process that a box belongs to. Boxes of dead owners may be removed, others never."""

    host: str
    boot_id: str
    pid: int
    start_time: str
    pid_namespace: str
    """Where that pid means something: a container has processes and pids of its own."""

    @staticmethod
    def current() -> "Owner":
        """This process."""
        return _owner_of(os.getpid())

    def encode(self) -> str:
        """As one label value."""
        return json.dumps([self.host, self.boot_id, self.pid, self.start_time, self.pid_namespace])

    @staticmethod
    def decode(text: str) -> "Owner | None":
        """Read a label value back; None for one that is not ours."""
        try:
            host, boot_id, pid, start_time, pid_namespace = json.loads(text)
            return Owner(str(host), str(boot_id), int(pid), str(start_time), str(pid_namespace))
        except (ValueError, TypeError, OverflowError):
            return None

    def is_dead(self) -> bool:
        """Surely gone. A process on another host, or whose pids we cannot see, is never taken for dead."""
        if self.host != _host():
            return False
        if self.boot_id != _boot_id():
            return True
        return self.pid_namespace == _pid_namespace() and _start_time(self.pid) != self.start_time

    def describe(self) -> str:
        """For people: `process 123 on myhost`."""
        return f"process {self.pid} on {self.host.partition('/')[0]}"


@cache
def _owner_of(pid: int) -> Owner:
    """By its pid, because a process may fork."""
    return Owner(_host(), _boot_id(), pid, _start_time(pid) or "", _pid_namespace())


@cache
def _host() -> str:
    with contextlib.suppress(OSError):
        return f"{socket.gethostname()}/{Path('/etc/machine-id').read_text().strip()}"
    return f"{socket.gethostname()}/{uuid.getnode():x}"


@cache
def _boot_id() -> str:
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""


@cache
def _pid_namespace() -> str:
    with contextlib.suppress(OSError):
        return str(Path("/proc/self/ns/pid").readlink())
    return ""


def _start_time(pid: int) -> str | None:
    """Tells two processes of one pid apart; None when there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except FileNotFoundError:
        if Path("/proc/self").exists():
            return None
    except (OSError, IndexError):
        return ""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except OSError:
        return ""
    return ""


@contextlib.contextmanager
def owned_folder(prefix: str, parent: Path | None = None) -> Iterator[Path]:
    """A scratch folder that says whose it is, so that it can be removed when its process was killed."""
    with tempfile.TemporaryDirectory(prefix=prefix, dir=parent) as scratch:
        claim(Path(scratch))
        yield Path(scratch)


def claim(folder: Path) -> None:
    """Write into a folder whose it is."""
    (folder / OWNER_FILE).write_text(Owner.current().encode())


def owner_of(folder: Path) -> Owner | None:
    """Whose a folder is; None when that is not written there, or not legibly."""
    try:
        return Owner.decode((folder / OWNER_FILE).read_text())
    except (OSError, UnicodeDecodeError):
        return None


def is_left_behind(folder: Path) -> bool:
    """Whether the process that a folder belongs to is dead. Without a legible name, whether it is old."""
    owner = owner_of(folder)
    if owner is not None:
        return owner.is_dead()
    with contextlib.suppress(OSError):
        return folder.lstat().st_mtime < time.time() - OWNERLESS_S
    return False
