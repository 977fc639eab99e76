"""`clean`: everything that killed processes left behind, and on request old batches and images that can be built again.

Never anyone else's, never anything of a batch at work or of a process that lives.
"""

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rollouts.backends import BACKENDS, open_backend
from rollouts.backends.base import Backend
from rollouts.config import DockerSettings, choose_docker_settings
from rollouts.errors import BackendUnavailable, ExitCode, SandboxFailed
from rollouts.leftovers import Broom, Removed, sweep_with
from rollouts.pruning import OldBatch, delete_old, find_old, finish_deletions
from rollouts.store import DataRoot


@dataclass(frozen=True)
class CleanOptions:
    """What this one command asks for."""

    dry_run: bool = False
    images: bool = False
    older_than_s: int | None = None
    """Delete batches older than this."""


@dataclass(frozen=True)
class CleanOutcome:
    """What `clean` has to say when it is over; exit code and printed lines both come from here."""

    dry_run: bool
    removed: tuple[Removed, ...]
    failed: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """What `--json` prints."""
        return {
            "schema": 1,
            "dry_run": self.dry_run,
            "removed": [asdict(each) for each in self.removed],
            "freed_bytes": sum(each.bytes or 0 for each in self.removed),
            "failed": list(self.failed),
        }

    @property
    def exit_code(self) -> ExitCode:
        """1 when something should be gone and is not."""
        return ExitCode.NONE_SUCCEEDED if self.failed else ExitCode.OK


def clean(
    root: DataRoot,
    options: CleanOptions,
    *,
    agreed: Callable[[Sequence[OldBatch]], bool],
    told: Callable[[Removed], None],
    warn: Callable[[str], None],
) -> CleanOutcome:
    """Remove all that may go. `agreed` is asked before data is deleted, and before anything else is done."""
    broom = Broom(options.dry_run, told)
    old: Sequence[OldBatch] = ()
    if options.older_than_s is not None:
        old, kept = find_old(root, options.older_than_s)
        for folder in kept:
            warn(f"{folder}: kept, a process works on it")
        if old and not options.dry_run and not agreed(old):
            old = ()
    for backend in _backends(root):
        with contextlib.closing(backend):
            _clean_backend(broom, backend, options.images, warn)
    sweep_with(broom, root)
    finish_deletions(broom, root)
    delete_old(broom, root, old)
    return CleanOutcome(options.dry_run, tuple(broom.removed), tuple(broom.failed))


def _backends(root: DataRoot) -> Iterator[Backend]:
    settings = choose_docker_settings(os.environ, DockerSettings())
    for name in BACKENDS:
        yield open_backend(name, settings, root.cache)


def _clean_backend(broom: Broom, backend: Backend, images: bool, warn: Callable[[str], None]) -> None:
    """Its boxes and images. One that cannot be used here has left nothing that could be removed now."""
    try:
        _clean_boxes(broom, backend)
        _clean_images(broom, backend, images)
    except BackendUnavailable as exc:
        warn(f"what {backend.name} may have left is not looked at: {exc}")


def _clean_boxes(broom: Broom, backend: Backend) -> None:
    gone = backend.reap(dry_run=broom.dry_run)
    left = {*backend.reap(dry_run=True)} if gone and not broom.dry_run else set()
    for box in gone:
        if box in left:
            broom.failed.append(f"{backend.name}: {box}: the box is still there")
        else:
            broom.tell(Removed("box", f"{backend.name} {box}"))


def _clean_images(broom: Broom, backend: Backend, images: bool) -> None:
    for image in backend.removable_images():
        if not images and not image.unfinished:
            continue
        try:
            if broom.dry_run or backend.remove_image(image):
                broom.tell(Removed("image", image.name, image.bytes))
        except SandboxFailed as exc:
            broom.failed.append(f"{image.name}: {exc}")
