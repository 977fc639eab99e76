"""Deletes batches that are older than someone wants to keep, with their runs.

A batch is renamed before anything of it is deleted, so it is either still listed and whole, or not listed any more and
deleted to the end by whoever cleans next. What belongs to it is found by its stamp, never by what its files say.
"""

import contextlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from rollouts.errors import ConfigError
from rollouts.files import sync_folder
from rollouts.leftovers import (
    DELETING,
    Broom,
    Layout,
    Removed,
    all_free,
    nobody_creates,
    remove_if_empty,
    size_of,
)
from rollouts.store import DataRoot, shown_path, stamp_time

_AGE = re.compile(r"([0-9]{1,5})([hdw])")
_UNIT_S = {"h": 3600, "d": 24 * 3600, "w": 7 * 24 * 3600}


def parse_age(text: str) -> int:
    """`12h`, `30d` or `2w` as seconds."""
    found = _AGE.fullmatch(text)
    if not found:
        expected = "a whole number with h, d or w behind it, like 12h, 30d or 2w"
        raise ConfigError(f'--runs-older-than: expected {expected}, got "{text}"')
    return int(found[1]) * _UNIT_S[found[2]]


@dataclass(frozen=True)
class OldBatch:
    """Everything of one stamp: a batch and its runs, or runs whose batch is gone."""

    stamp: str
    folders: tuple[Path, ...]
    """One; more when someone copied a batch to another name. Their runs are the same."""
    runs: tuple[Path, ...]
    bytes: int


def find_old(root: DataRoot, age_s: int) -> tuple[list[OldBatch], list[str]]:
    """Batches older than that by their stamp, oldest first; and those that are kept because someone works on them."""
    layout, now = Layout.read(root), datetime.now(UTC)
    old, kept = [], []
    for stamp in sorted({*layout.batches, *layout.runs} - {*layout.deleting}):
        made = stamp_time(stamp)
        if made is None or (now - made).total_seconds() <= age_s:
            continue
        folders, runs = layout.batches.get(stamp, []), layout.runs.get(stamp, [])
        at_work = [shown_path(folder) for folder in folders if not _is_free(folder)]
        if at_work:
            kept += at_work
            continue
        size = sum(size_of(path) for path in (*folders, *runs))
        old.append(OldBatch(stamp, tuple(folders), tuple(sorted(runs)), size))
    return old, kept


def _is_free(folder: Path) -> bool:
    with contextlib.suppress(OSError), all_free([folder], look_only=True) as free:
        return free
    return True  # what we may not lock we may not delete either, and deleting it will say so


def delete_old(broom: Broom, root: DataRoot, old: Iterable[OldBatch]) -> None:
    """Delete batches that were found, but for those on which someone works by now."""
    for batch in old:
        if not batch.folders:
            for run in batch.runs:
                broom.remove("run", run)
            continue
        try:
            with all_free(batch.folders, look_only=broom.dry_run) as free:
                if free:
                    aside = [_put_aside(broom, folder) for folder in batch.folders]
                    _delete(broom, root, aside, batch.folders, batch.runs, batch.bytes)
        except OSError as exc:
            broom.failed.append(f"{exc.filename or batch.stamp}: {exc.strerror}")


def _put_aside(broom: Broom, folder: Path) -> Path:
    """From here on the batch is not listed any more."""
    aside = folder.with_name(f"{DELETING}{folder.name}")
    if not broom.dry_run:
        folder.rename(aside)
        sync_folder(folder.parent)
    return aside


def finish_deletions(broom: Broom, root: DataRoot) -> None:
    """Go on where someone was killed while deleting what had been agreed upon."""
    layout = Layout.read(root)
    for stamp, folders in sorted(layout.deleting.items()):
        runs = [] if stamp in layout.batches else layout.runs.get(stamp, [])
        with contextlib.suppress(OSError), all_free(folders, look_only=broom.dry_run) as free:
            if free:
                size = sum(size_of(path) for path in (*folders, *runs))
                named = [folder.with_name(stamp) for folder in folders]
                _delete(broom, root, folders, named, runs, size)


def _delete(
    broom: Broom, root: DataRoot, aside: Sequence[Path], named: Sequence[Path], runs: Sequence[Path], size: int
) -> None:
    """Runs first: as long as one is left, the renamed folder says that it is to go."""
    gone = [broom.delete(run) for run in runs]
    temp = [root.rollouts / "temp" / f"rollout_{folder.parent.name}__{folder.name}.json" for folder in named]
    if not all(gone) or not all(broom.delete(path) for path in (*temp, *aside)):
        return
    for folder in named:
        broom.tell(Removed("batch", shown_path(folder), size, len(runs)))
        size = 0  # of a copy: counted with the first
        with nobody_creates(root, look_only=broom.dry_run) as free:
            if free:
                remove_if_empty(broom, folder.parent)
