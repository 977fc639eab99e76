"""A task's source, as the agent finds it, with a recorded base; and what the agent did to it, as a patch.

The source is made once per content and kept under `cache/sources`. The base is a git directory with one commit that
lies outside the agent's reach: the agent's own `.git` counts for nothing when the patch is made.
"""

import contextlib
import errno
import io
import logging
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from rollouts.backends.base import HANDOUT_LIMIT_S, sandbox_file
from rollouts.config import safe_relative
from rollouts.digests import digest_folder, digest_of
from rollouts.errors import ImageFailed, SandboxFailed, StoreError
from rollouts.owner import owned_folder
from rollouts.repositories import (
    ATTRIBUTES,
    check_out,
    commit_id,
    has_commit,
    mirror_of,
    mirror_path,
    one_line,
    origin_of,
    resolve_commit,
    run_git,
)
from rollouts.tasks import Task

log = logging.getLogger(__name__)

FULL_BYTES = 1024 * 1024
"""With less than this left on a disk, whatever fails there fails for want of room."""
FORMAT = 1
"""Part of every source's digest: raise it when the way sources are made changes."""


@dataclass(frozen=True)
class Source:
    """A task's source, ready to be put into boxes."""

    tree: Path
    base_git: Path
    digest: str
    origin: str
    """Where it came from, without credentials."""
    commit: str | None
    """The commit it was taken from; None for a folder."""


@dataclass
class FileChange:
    """How much a patch changes of one file."""

    path: str
    added: int = 0
    removed: int = 0


@dataclass(frozen=True)
class Changes:
    """How much a patch changes."""

    files: int
    lines_added: int
    lines_removed: int


def prepare_source(task: Task, cache: Path) -> Source:
    """Make or find the task's source; raises ImageFailed when it cannot be had, SandboxFailed when not now."""
    mirror = None if task.part("repo") else mirror_of(task, cache / "git")
    commit = resolve_commit(task, mirror) if mirror else None
    source = _source(task, cache, commit)
    if not source.tree.exists():
        try:
            _make_source(task, mirror, commit, source.tree.parent)
        except shutil.Error as exc:  # copying goes on past what cannot be copied, and tells it all at the end
            name, _, problem = exc.args[0][0]
            raise ImageFailed(f"{name}: cannot be copied: {problem}") from None
        except (OSError, UnicodeError) as exc:
            raise ImageFailed(f"{task.folder}: the source cannot be made: {exc}") from exc
    if task.repo.subdir and not (source.tree / task.repo.subdir).is_dir():
        raise ImageFailed(f"{task.folder}/tb_meta.json: repo.subdir: no such folder, got {task.repo.subdir}")
    return source


def find_source(task: Task, cache: Path) -> Source | None:
    """Where the source is or would be; None when that is not known without fetching. Makes nothing."""
    if task.part("repo"):
        return _source(task, cache, None)
    mirror, wanted = mirror_path(task, cache / "git"), task.repo.start_commit_sha
    if wanted and mirror.exists() and has_commit(mirror, wanted):
        return _source(task, cache, commit_id(mirror, wanted))
    return None


def _source(task: Task, cache: Path, commit: str | None) -> Source:
    own = task.part("repo")
    digest = digest_of(
        FORMAT,
        digest_folder(own) if own else [origin_of(task), commit, task.repo.sparse_checkout],
        digest_folder(task.part("overlay_repo_files")),
        task.remove_repo_paths,
        [(file.path, file.content) for file in task.inject_files],
    )[:24]
    kept = cache / "sources" / digest
    return Source(kept / "tree", kept / "base.git", digest, origin_of(task), commit)


def _make_source(task: Task, mirror: Path | None, commit: str | None, kept: Path) -> None:
    """Make it beside its place and move it there whole; two processes may do so at the same time."""
    kept.parent.mkdir(parents=True, exist_ok=True)
    with owned_folder(".making-", kept.parent) as scratch:
        made = scratch / "made"
        tree = made / "tree"
        made.mkdir()
        if mirror and commit:
            check_out(mirror, commit, task.repo.sparse_checkout, tree)
        else:
            shutil.copytree(task.folder / "repo", tree, symlinks=True, ignore=shutil.ignore_patterns(".git"))
        _change(task, tree)
        _record_base(tree, made / "base.git")
        try:
            made.rename(kept)
        except OSError:
            if not kept.exists():
                raise


def _change(task: Task, tree: Path) -> None:
    """Overlays, removals and injected files, in that order."""
    overlay = task.part("overlay_repo_files")
    for path in sorted(overlay.rglob("*")) if overlay else ():
        if overlay and (path.is_symlink() or not path.is_dir()):
            name = path.relative_to(overlay).as_posix()
            with _applying(task, name):
                shutil.copy2(path, _inside(tree, name, task), follow_symlinks=False)
    for pattern in task.remove_repo_paths:
        with _applying(task, pattern):
            _remove(task, tree, pattern)
    for file in task.inject_files:
        with _applying(task, file.path):
            _inside(tree, file.path, task).write_bytes(file.content.encode())


@contextlib.contextmanager
def _applying(task: Task, name: str) -> Iterator[None]:
    """What does not fit the repository, like a file below a file, is the task's mistake and told as such."""
    try:
        yield
    except (OSError, ValueError) as exc:
        problem = (exc.strerror if isinstance(exc, OSError) else None) or exc
        raise ImageFailed(f"{task.overrides or task.folder}: {name}: {problem}") from None


def _remove(task: Task, tree: Path, pattern: str) -> None:
    """By its name when there is such a file, even one like `[id].js`; else as a glob."""
    if any("**" in part and part != "**" for part in PurePosixPath(pattern).parts):
        raise ValueError("** must stand alone between slashes")  # newer Pythons would take it, for something else
    exact = tree / pattern.strip("/")
    found = [exact] if os.path.lexists(exact) else list(tree.glob(pattern.strip("/")))
    if not found:
        log.warning("%s: remove_repo_paths: nothing matches %s", task.task_id, pattern)
    for path in found:
        target = _inside(tree, path.relative_to(tree).as_posix(), task, make=False)
        if target.is_dir() and not target.is_symlink():
            shutil.rmtree(target)
        else:
            target.unlink(missing_ok=True)


def _inside(tree: Path, relative: str, task: Task, make: bool = True) -> Path:
    """`relative` below `tree`, refused when it leaves it or goes through a link; with `make`, ready to be written."""
    parts = (safe_relative(relative) or PurePosixPath("..")).parts
    if parts == ("..",):
        raise ImageFailed(f"{task.overrides or task.folder}: {relative}: leaves the repository")
    folder = tree
    for part in parts[:-1]:
        folder = folder / part
        if folder.is_symlink():
            raise ImageFailed(f"{task.overrides or task.folder}: {relative}: goes through a link")
    target = tree.joinpath(*parts)
    if make:
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.is_symlink() or target.is_file():
            target.unlink()
        elif target.is_dir():
            raise ImageFailed(f"{task.overrides or task.folder}: {relative}: is a folder in the repository")
    return target


def _record_base(tree: Path, base_git: Path) -> None:
    """Give the tree a history of one commit, and keep a copy of it as the base."""
    run_git("init", "-q", "--template=", "-b", "main", ".", cwd=tree)
    for nested in [path for path in tree.rglob(".git") if path.parent != tree]:
        shutil.rmtree(nested) if nested.is_dir() and not nested.is_symlink() else nested.unlink()
    (tree / ".git/info").mkdir(exist_ok=True)
    (tree / ".git/info/attributes").write_text(ATTRIBUTES)
    run_git("add", "-A", "-f", cwd=tree)
    run_git("commit", "-q", "--allow-empty", "--no-verify", "-m", "Start of the task", cwd=tree)
    run_git("repack", "-q", "-a", "-d", cwd=tree)
    shutil.copytree(tree / ".git", base_git, symlinks=True)


def capture_patch(base_git: Path, tree: Path, outputs: Path) -> dict[str, Path]:
    """Make the patch on the host, from a tree that came out of a box. Uses the tree up.

    Raises SandboxFailed when that cannot be done, StoreError when it is the disk that is full.
    """
    outputs.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".capture-", dir=outputs.resolve()) as scratch:
        script, tree = str(sandbox_file("capture.sh")), tree.parent.resolve() / tree.name
        command = ["sh", script, str(base_git.resolve()), str(tree), scratch]
        try:
            done = subprocess.run(command, capture_output=True, timeout=HANDOUT_LIMIT_S, start_new_session=True)
        except subprocess.TimeoutExpired:
            raise SandboxFailed(f"capturing the patch took more than {HANDOUT_LIMIT_S:.0f} s") from None
        if done.returncode and shutil.disk_usage(scratch).free < FULL_BYTES:
            raise StoreError(f"{outputs}: cannot be written: {os.strerror(errno.ENOSPC)}")
        if done.returncode:
            words = one_line(done.stderr.decode(errors="replace")) or f"exit code {done.returncode}"
            raise SandboxFailed(f"the patch could not be captured: {words}")
        names = [name for name in ("diff.patch", "skipped.txt") if (Path(scratch) / name).exists()]
        return {name: (Path(scratch) / name).rename(outputs / name) for name in names}


def count_changes(patch: Path) -> Changes:
    """Files and lines of a patch made by git."""
    with patch.open("rb") as lines:
        files = _changes_by_file(lines)
    return Changes(len(files), sum(file.added for file in files), sum(file.removed for file in files))


def file_changes(patch: bytes) -> list[FileChange]:
    """The same for each of its files."""
    return _changes_by_file(io.BytesIO(patch))


def _changes_by_file(lines: Iterable[bytes]) -> list[FileChange]:
    """Counts within hunks only: content may look like headers."""
    files: list[FileChange] = []
    old_left = new_left = 0
    for line in lines:
        if old_left > 0 or new_left > 0:
            if line[:1] == b"+":
                files[-1].added, new_left = files[-1].added + 1, new_left - 1
            elif line[:1] == b"-":
                files[-1].removed, old_left = files[-1].removed + 1, old_left - 1
            elif line[:1] != b"\\":
                old_left, new_left = old_left - 1, new_left - 1
        elif line.startswith(b"diff --git "):
            files.append(FileChange(line.rpartition(b" b/")[2].decode(errors="replace").strip()))
        elif files and (header := re.match(rb"@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@", line)):
            old_left, new_left = (int(group) if group is not None else 1 for group in header.groups())
    return files


def repo_info(source: Source, task: Task) -> Mapping[str, object]:
    """What `repo_info.json` says: enough to find the source again."""
    return {
        "schema": 1,
        "origin": source.origin,
        "commit": source.commit,
        "base_commit": (source.base_git / "refs/heads/main").read_text().strip(),
        "digest": source.digest,
        "branch": task.repo.branch,
        "subdir": task.repo.subdir,
        "sparse_checkout": list(task.repo.sparse_checkout),
        "overrides": str(task.overrides) if task.overrides else None,
    }
