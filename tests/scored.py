"""Starts and patches that the tests of scoring are made from."""

import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollouts.scoring.patch import EXECUTABLE, LINK, PLAIN, Changes, Content, Start
from rollouts.tasks import Task
from rollouts.workspace import Source, prepare_source
from tests.samples import GIT_ENV, WHO, Tree, make_task

Files = dict[str, Content]
"""A repository, by path."""
MODES = {"file": PLAIN, "executable": EXECUTABLE, "link": LINK}


def plain(data: str | bytes) -> Content:
    """A file that is nothing but its bytes."""
    return Content(PLAIN, data.encode() if isinstance(data, str) else data)


def executable(data: str) -> Content:
    """A file that can be run."""
    return Content(EXECUTABLE, data.encode())


def link(target: str) -> Content:
    """A symbolic link."""
    return Content(LINK, os.fsencode(target))


def write_tree(folder: Path, files: Mapping[str, Content]) -> Path:
    """Make a repository's files below a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if content.mode == LINK:
            path.symlink_to(os.fsdecode(content.data))
        else:
            path.write_bytes(content.data)
            path.chmod(0o755 if content.mode == EXECUTABLE else 0o644)
    return folder


def as_files(tree: Tree) -> Files:
    """What `read_tree` found, as scoring sees it."""
    return {os.fsdecode(name): Content(MODES[kind], data) for name, (kind, data) in tree.items()}


@dataclass(frozen=True)
class Base:
    """A task with its source and its recorded start."""

    task: Task
    source: Source
    start: Start
    files: Files

    def patch(self, after: Mapping[str, Content], folder: Path, *options: str) -> bytes:
        """What git makes of the way from the start to `after`."""
        work = folder / "work"
        shutil.rmtree(work, ignore_errors=True)
        shutil.copytree(self.source.tree / ".git", work / ".git", symlinks=True)
        write_tree(work, after)
        git_bytes("add", "-A", "-f", cwd=work)
        return git_bytes("diff", "--cached", "--binary", *options, "HEAD", cwd=work)

    def after(self, changes: Changes) -> Files:
        """The start with changes done to it."""
        changed = {**self.files, **changes}
        return {path: content for path, content in changed.items() if content is not None}


def git_bytes(*arguments: str, cwd: Path) -> bytes:
    """What git prints, byte for byte."""
    done = subprocess.run(["git", *WHO, *arguments], cwd=cwd, env=GIT_ENV, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def make_base(folder: Path, repo: Mapping[str, Content], **parts: Any) -> Base:
    """A task whose repository holds those files; `parts` as for `make_task`."""
    write_tree(folder / "t/repo", repo)
    task = make_task(folder / "t", repo={}, **parts)
    source = prepare_source(task, folder / "cache")
    return Base(task, source, Start(source.base_git), dict(repo))
