"""Writes that are whole or not at all, whatever instant the process or the machine dies at.

A reader would get wrong that renaming is enough: without the two fsyncs a power cut may leave an empty file behind the
new name.
"""

import contextlib
import json
import os
import re
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rollouts.errors import StoreError

encode = json.JSONEncoder(ensure_ascii=False).encode
"""One line of JSON. Made once: `json.dumps` with options makes an encoder each time."""
JOURNAL_ADVICE = "; put the file back as it was (a line that tells of a run's start or end may be taken out instead)"
TEMPORARY = re.compile(r"\..+\.(?P<pid>\d+)\.\d+\.tmp")
"""What `write_whole` calls a file that is not complete yet; the number is its process."""


def cannot_write(path: Path, exc: OSError) -> StoreError:
    """What stops the program when the disk is full, or the folder not ours."""
    return StoreError(f"{path}: cannot be written: {exc.strerror or exc}")


def write_whole(path: Path, content: bytes, *, durable: bool = True) -> None:
    """Put `content` at `path`: readers find the old file or the new one, never a part.

    Not `durable`: a power cut may lose it. For what can be derived again.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}.tmp")
    try:
        with temporary.open("wb") as stream:
            stream.write(content)
            if durable:
                stream.flush()
                os.fsync(stream.fileno())
        temporary.replace(path)
        if durable:
            sync_folder(path.parent)
    except OSError as exc:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise cannot_write(path, exc) from exc


def write_json(path: Path, value: object) -> None:
    """The same for a value, as JSON for people."""
    write_whole(path, (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode())


def move_whole(source: Path, target: Path) -> None:
    """Give a complete file its final place, on disk for sure."""
    with source.open("rb") as stream:
        os.fsync(stream.fileno())
    source.replace(target)
    sync_folder(target.parent)


def remove_tree(path: Path) -> None:
    """Remove a file, a link or a folder with all that is in it; no link is followed. Raises OSError if it stays.

    What boxes leave may be closed even to its owner, and another process may be removing the same.
    """
    if path.is_symlink() or not path.is_dir():
        path.unlink(missing_ok=True)
        return
    shutil.rmtree(path, ignore_errors=True)
    if path.exists():
        _open_up(path)
        shutil.rmtree(path, ignore_errors=True)
    if path.exists():
        shutil.rmtree(path)


def _open_up(folder: Path) -> None:
    """Let its owner into every folder below; from the top, because a closed one cannot be looked into."""
    with contextlib.suppress(OSError):
        folder.chmod(0o700)
    for root, names, _ in os.walk(folder):
        for path in (Path(root, name) for name in names):
            with contextlib.suppress(OSError):
                if not path.is_symlink():
                    path.chmod(0o700)


def make_folder(folder: Path) -> None:
    """Make it with its parents, so that none of the new names can be lost by a power cut."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for path in reversed(missing):
        with contextlib.suppress(PermissionError):  # a parent that may be written and entered, but not read
            sync_folder(path.parent)


def remove_stale(folder: Path) -> None:
    """Remove what `write_whole` left in `folder` when its process died between writing and renaming."""
    for path in folder.glob(".*.tmp"):
        if TEMPORARY.fullmatch(path.name) and not is_being_written(path):
            path.unlink(missing_ok=True)


def is_being_written(path: Path) -> bool:
    """Whether the process that a temporary file is named after may still be at it."""
    named = TEMPORARY.fullmatch(path.name)
    return named is not None and is_alive(int(named["pid"])) and not _began_after(int(named["pid"]), path)


def _began_after(pid: int, path: Path) -> bool:
    """Whether a process is younger than a file: the numbers of dead processes are given to others."""
    try:
        ticks = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
        booted_at = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
        return booted_at + ticks / os.sysconf("SC_CLK_TCK") > path.lstat().st_mtime + 1.0
    except (OSError, IndexError, ValueError, AttributeError):  # not on Linux, or gone meanwhile: the next start knows
        return False


def is_alive(pid: int) -> bool:
    """Whether this machine has a process of that number."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):  # someone else's, or no number of a process
        return True
    return True


def sync_folder(folder: Path) -> None:
    """Make a rename or a new name in `folder` survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class Journal:
    """An append-only file of JSON lines. A line that did not reach the disk whole is as if it was never written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        self._cut_torn_line()

    def append(self, *events: dict[str, Any], sync: bool) -> None:
        """Add lines; with `sync` they are on disk when this returns. Either all are there or none."""
        data = "".join(encode(event) + "\n" for event in events).encode()
        with self._lock:
            start = os.fstat(self._descriptor).st_size
            try:
                view = memoryview(data)
                while view:
                    view = view[os.write(self._descriptor, view) :]
                if sync:
                    os.fsync(self._descriptor)
            except OSError as exc:
                os.ftruncate(self._descriptor, start)
                raise cannot_write(self.path, exc) from exc

    def close(self) -> None:
        """Give the file back."""
        os.close(self._descriptor)

    def _cut_torn_line(self) -> None:
        size = os.fstat(self._descriptor).st_size
        whole = self.path.read_bytes().rfind(b"\n") + 1 if size else 0
        if whole != size:
            os.ftruncate(self._descriptor, whole)


def read_journal(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a journal, without a torn last one. Safe while another process writes it."""
    number = 0
    try:
        if path.exists() and not path.is_file():
            raise StoreError(f"{path}: is not a file")  # a pipe would never end
        with path.open("rb") as lines:
            for line in lines:
                number += 1
                if line.endswith(b"\n"):
                    yield json.loads(line)
    except OSError as exc:
        raise StoreError(f"{path}: cannot be read: {exc.strerror}") from exc
    except (ValueError, RecursionError):
        raise StoreError(f"{path}: the journal is damaged: line {number} is not valid JSON{JOURNAL_ADVICE}") from None
