"""What killed processes leave under a data folder: every name that is made on the way, and how it is swept.

A sweep reads the names in each run's folder and no deeper, so it is cheap enough for every start. It holds the locks of
a batch while it removes something of it; what no lock guards must be old, or say itself that its process is dead.
"""

import contextlib
import logging
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from filelock import FileLock, Timeout

from rollouts.errors import StoreError
from rollouts.files import TEMPORARY, is_being_written, remove_tree
from rollouts.image_uses import left_behind
from rollouts.owner import is_left_behind
from rollouts.store import DataRoot, creation_lock, shown_path, stamp_time

log = logging.getLogger(__name__)

# Every name that is made on the way, and where:
#
# .NAME.PID.THREAD.tmp           beside what is written: batches, task_results/, temp/, runs, artifacts/, cache/judge
# .outputs, .scoring             in a run's folder, while it runs or is scored; all else that is temporary is in them
# logs/.NAME.tail                in a run's folder, while it has one of those
# cache/sources/.making-*        and rollouts-{start,patch,validate}-* in the system's own folder: by their owner
# cache/git/.cloning-NAME-*      while the lock of that mirror is held
# cache/uses/*                   the images that a process works with: by its owner
# STAMP without manifest.json    a batch that never began, and the empty folder of the first run that claimed it

OLD_S = 3600.0
"""From when on something temporary that nobody guards counts as left behind."""
CREATION_LIMIT_S = 10.0
"""How long to wait for others who make batches just now; then theirs are left for the next time."""
DELETING = ".deleting-"
"""Before the stamp of a batch that is being deleted."""
OF_A_RUN = (".outputs", ".scoring")
_RUN_ID = re.compile(r"(.{18})-\d{1,9}")
_TEMP_FILE = re.compile(r"\.?rollout_.+__(\d{8}__\d\d-\d\d-\d\d)\.json.*")
_IN_LOGS = re.compile(r"\..+\.tail")
_IN_SYSTEM_TEMP = re.compile(r"rollouts-(start|patch|validate)-.+")


@dataclass(frozen=True)
class Removed:
    """Something that was removed, or would be."""

    kind: str
    """box, temporary, source, mirror, unbegun, batch, run or image."""
    what: str
    bytes: int | None = None
    """How much that frees, where it is known."""
    runs: int = 0
    """Of a batch: how many runs went with it."""


@dataclass
class Broom:
    """Removes things and keeps account of it; with `dry_run` only the account."""

    dry_run: bool = False
    told: Callable[[Removed], None] = lambda removed: None
    removed: list[Removed] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    def remove(self, kind: str, path: Path) -> bool:
        """Remove a file or folder; False when it could not be."""
        if not os.path.lexists(path):
            return True
        size = size_of(path)
        if not self.delete(path):
            return False
        self.tell(Removed(kind, shown_path(path), size))
        return True

    def delete(self, path: Path) -> bool:
        """The same without a word of it, unless it fails."""
        try:
            if not self.dry_run:
                remove_tree(path)
        except OSError as exc:
            self.failed.append(f"{shown_path(path)}: {exc.strerror}")
            return False
        return True

    def tell(self, removed: Removed) -> None:
        """Something is gone."""
        self.removed.append(removed)
        self.told(removed)


def size_of(path: Path) -> int:
    """What it takes on the disk; no link is followed."""
    total = 0
    pending = [path]
    while pending:
        with contextlib.suppress(OSError):
            each = pending.pop()
            total += each.lstat().st_blocks * 512
            if each.is_dir() and not each.is_symlink():
                pending += [Path(entry.path) for entry in os.scandir(each)]
    return total


@dataclass(frozen=True)
class Layout:
    """The names of all batches and runs of a data folder, by stamp."""

    batches: dict[str, list[Path]]
    runs: dict[str, list[Path]]
    deleting: dict[str, list[Path]]

    @staticmethod
    def read(root: DataRoot) -> "Layout":
        """Folders only, and nothing of batches that links lead to: those are not ours to remove, nor are their runs."""
        layout, linked = Layout({}, {}, {}), set()
        for name in _entries(root.rollouts):
            for entry in _entries(Path(name.path)) if name.is_dir() else ():
                stamp = entry.name.removeprefix(DELETING)
                if stamp_time(stamp) and (name.is_symlink() or entry.is_symlink()):
                    linked.add(stamp)
                elif stamp_time(stamp) and entry.is_dir():
                    into = layout.batches if stamp == entry.name else layout.deleting
                    into.setdefault(stamp, []).append(Path(entry.path))
        for entry in _entries(root.runs):
            found = _RUN_ID.fullmatch(entry.name)
            if found and stamp_time(found[1]):
                layout.runs.setdefault(found[1], []).append(Path(entry.path))
        for stamp in linked:
            for part in (layout.batches, layout.runs, layout.deleting):
                part.pop(stamp, None)
        return layout


def _entries(folder: Path) -> list["os.DirEntry[str]"]:
    """What is in a folder, if it can be read."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        return list(entries)
    return []


def _names(folder: Path | str) -> list[str]:
    with contextlib.suppress(OSError):
        return os.listdir(folder)  # noqa: PTH208 - texts: this is asked for every run
    return []


def sweep(root: DataRoot, *, dry_run: bool = False) -> list[Removed]:
    """Remove what dead processes left under the data folder. Batches at work are left alone; never raises for trouble.

    Takes the locks of batches in which something is to be removed, so call it before you take one.
    """
    broom = Broom(dry_run)
    sweep_with(broom, root)
    for text in broom.failed:
        log.warning("cannot be removed: %s", text)
    return broom.removed


def sweep_with(broom: Broom, root: DataRoot) -> None:
    """The same, on an account of the caller's own."""
    layout = Layout.read(root)
    _sweep_owned(broom, root)
    _sweep_uses(broom, root)
    _sweep_mirrors(broom, root)
    for stamp, found in sorted(_temporaries(root, layout).items()):
        _sweep_batch(broom, layout.batches.get(stamp, []), found)
    _sweep_unbegun(broom, root, layout)


def _sweep_owned(broom: Broom, root: DataRoot) -> None:
    for path in (Path(entry.path) for entry in _entries(root.cache / "sources") if entry.name.startswith(".making-")):
        if is_left_behind(path):
            broom.remove("source", path)
    for entry in _entries(Path(tempfile.gettempdir())):
        ours = _IN_SYSTEM_TEMP.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False)
        with contextlib.suppress(FileNotFoundError):
            if ours and entry.stat(follow_symlinks=False).st_uid == os.getuid() and is_left_behind(Path(entry.path)):
                broom.remove("temporary", Path(entry.path))
    for entry in (*_entries(root.cache / "judge"), *_entries(root.cache / "uses")):
        if TEMPORARY.fullmatch(entry.name) and _is_old(Path(entry.path)):
            broom.remove("temporary", Path(entry.path))


def _sweep_uses(broom: Broom, root: DataRoot) -> None:
    for path in left_behind(root.cache):
        broom.remove("temporary", path)


def _sweep_mirrors(broom: Broom, root: DataRoot) -> None:
    for entry in _entries(root.cache / "git"):
        found = re.fullmatch(r"\.cloning-(.+)-[^-]+", entry.name)
        if found:
            with (
                contextlib.suppress(Timeout, OSError),
                FileLock(root.cache / "git" / f"{found[1]}.git.lock", timeout=0),
            ):
                broom.remove("mirror", Path(entry.path))


def _temporaries(root: DataRoot, layout: Layout) -> dict[str, list[Path]]:
    """What is temporary by its name, by the stamp of the batch that it belongs to."""
    found: dict[str, list[Path]] = {}
    for name in _names(root.rollouts / "temp"):
        of_batch = _TEMP_FILE.fullmatch(name)
        if of_batch and TEMPORARY.fullmatch(name):
            found.setdefault(of_batch[1], []).append(root.rollouts / "temp" / name)
    for stamp, folders in layout.batches.items():
        for folder in (each for batch in folders for each in (batch, batch / "task_results")):
            left = [folder / name for name in _names(folder) if name[0] == "." and TEMPORARY.fullmatch(name)]
            if left:
                found.setdefault(stamp, []).extend(left)
    for stamp, runs in layout.runs.items():
        for run in runs:
            for name in _names(run):
                if name[0] == "." and (name in OF_A_RUN or TEMPORARY.fullmatch(name)) and not run.is_symlink():
                    found.setdefault(stamp, []).append(run / name)
    return found


def _sweep_batch(broom: Broom, folders: list[Path], found: list[Path]) -> None:
    """Under the batch's locks all of it is left behind. Where there is no batch any more, its age must tell."""
    with contextlib.suppress(OSError), all_free(folders, look_only=broom.dry_run) as free:
        for path in _going(found, guarded=bool(folders)) if free else ():
            broom.remove("temporary", path)


def _going(found: list[Path], *, guarded: bool) -> list[Path]:
    going = [path for path in found if _is_old(path) or (guarded and not _is_being_written(path))]
    cut_off = {path.parent: None for path in going if path.name in OF_A_RUN}
    return [each for run in cut_off for each in _within(run)] + going


def _within(run: Path) -> Iterator[Path]:
    """What was cut off with a run, in folders that are looked into only then; so it goes before the run's mark does."""
    for folder in (run, *run.glob("attempts/*")):
        yield from (folder / "logs" / name for name in _names(folder / "logs") if _IN_LOGS.fullmatch(name))
        yield from (folder / "artifacts" / name for name in _names(folder / "artifacts") if TEMPORARY.fullmatch(name))


@contextlib.contextmanager
def all_free(folders: Iterable[Path], *, look_only: bool = False) -> Iterator[bool]:
    """Whether nobody runs or scores these batches. While this is open nobody else can begin to; unless `look_only`."""
    locks = [folder / name for folder in folders for name in (".lock", ".eval.lock")]
    yield from _held(FileLock(path, timeout=0) for path in locks if path.exists() or not look_only)


@contextlib.contextmanager
def nobody_creates(root: DataRoot, *, look_only: bool = False) -> Iterator[bool]:
    """Whether nobody makes a batch just now, neither while this is open; with `look_only` nobody is kept from it."""
    try:
        lock = None if look_only else creation_lock(root)
    except StoreError:
        yield False
        return
    yield from _held([] if lock is None else [FileLock(lock.lock_file, timeout=CREATION_LIMIT_S)])


def _held(locks: Iterable[FileLock]) -> Iterator[bool]:
    with contextlib.ExitStack() as stack:
        free = True
        try:
            for lock in locks:
                stack.enter_context(lock)
        except Timeout:
            free = False
        yield free


def _is_old(path: Path) -> bool:
    with contextlib.suppress(OSError):
        return path.lstat().st_mtime < time.time() - OLD_S
    return False


def _is_being_written(path: Path) -> bool:
    """By another process: this one writes nothing while it sweeps."""
    named = TEMPORARY.fullmatch(path.name)
    return named is not None and int(named["pid"]) != os.getpid() and is_being_written(path)


def _sweep_unbegun(broom: Broom, root: DataRoot, layout: Layout) -> None:
    """Batches whose process died before their first manifest, and claims of a stamp that no batch followed."""
    unbegun = {
        stamp: [folder for folder in folders if not (folder / "manifest.json").exists()]
        for stamp, folders in layout.batches.items()
    }
    known = {*layout.batches, *layout.deleting}
    claims = [run for stamp, runs in layout.runs.items() if stamp not in known for run in runs if _is_claim(run)]
    if not claims and not any(unbegun.values()):
        return
    with contextlib.suppress(OSError), nobody_creates(root, look_only=broom.dry_run) as free:
        if not free:
            return
        for stamp, folders in unbegun.items():
            runs = layout.runs.get(stamp, [])
            for folder in folders:
                _remove_unbegun(broom, root, folder, runs)
        for run in claims:
            if not any(root.rollouts.glob(f"*/{run.name[:-2]}")):
                _remove_claim(broom, run)


def _remove_unbegun(broom: Broom, root: DataRoot, folder: Path, runs: list[Path]) -> None:
    with contextlib.suppress(OSError), all_free([folder], look_only=broom.dry_run) as free:
        began = (folder / "manifest.json").exists() or any(not _is_claim(run) for run in runs)
        if not free or began or not broom.remove("unbegun", folder):
            return
        broom.delete(root.rollouts / "temp" / f"rollout_{folder.parent.name}__{folder.name}.json")
        for run in runs:
            _remove_claim(broom, run)
        remove_if_empty(broom, folder.parent)


def _is_claim(run: Path) -> bool:
    """Whether it is only what a batch makes first, to have the stamp for itself."""
    try:
        return run.name.endswith("-0") and not run.is_symlink() and not any(run.iterdir())
    except OSError:
        return False


def _remove_claim(broom: Broom, run: Path) -> None:
    """Only as long as it is empty."""
    with contextlib.suppress(OSError):
        if not broom.dry_run:
            run.rmdir()
        broom.tell(Removed("unbegun", shown_path(run), 0))


def remove_if_empty(broom: Broom, folder: Path) -> None:
    """For a benchmark's folder without batches. Whoever makes one now holds the lock that our caller holds."""
    with contextlib.suppress(OSError):
        if not broom.dry_run:
            folder.rmdir()
