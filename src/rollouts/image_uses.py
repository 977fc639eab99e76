"""Which images processes work with: a file for each process, so that nobody removes what another is about to use.

An image between two runs is in no container, so the engine would let it go.
"""

import json
import os
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

from rollouts.files import write_whole
from rollouts.owner import Owner


class ImageUses:
    """What this process works with."""

    def __init__(self, cache: Path) -> None:
        self._path = cache / "uses" / f"{os.getpid()}-{uuid.uuid4().hex[:12]}.json"
        self._lock = threading.Lock()
        self._tags: list[str] = []

    def add(self, tag: str) -> None:
        """From now on until `close`, or until the process dies. To be said before the engine is asked for it."""
        with self._lock:
            if tag in self._tags:
                return
            self._tags.append(tag)
            self._path.parent.mkdir(parents=True, exist_ok=True)
            text = json.dumps({"owner": Owner.current().encode(), "images": self._tags})
            write_whole(self._path, text.encode(), durable=False)

    def close(self) -> None:
        """All is done."""
        self._path.unlink(missing_ok=True)


def images_in_use(cache: Path) -> set[str]:
    """The tags that living processes work with, in this data folder."""
    return {tag for _, owner, tags in _read(cache) if not owner.is_dead() for tag in tags}


def left_behind(cache: Path) -> list[Path]:
    """The files of processes that died."""
    return [path for path, owner, _ in _read(cache) if owner.is_dead()]


def _read(cache: Path) -> Iterator[tuple[Path, Owner, list[str]]]:
    for path in sorted((cache / "uses").glob("[0-9]*.json")):
        try:
            said = json.loads(path.read_text())
            owner, tags = Owner.decode(said["owner"]), [str(tag) for tag in said["images"]]
        except (OSError, ValueError, TypeError, KeyError):
            continue
        if owner is not None:
            yield path, owner, tags
