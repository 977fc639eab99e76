"""Patches made from edits, and a scorer to try them on.

An edit is a function that changes a copy of the task's source; git makes the patch from what it left, as for a run.
"""

import itertools
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rollouts.backends.base import Backend
from rollouts.prepare import Preparation
from rollouts.scoring.score import Place, Scorer
from rollouts.scoring.verdict import Scored
from rollouts.task_folder import load_task
from rollouts.tasks import Task
from rollouts.workspace import Source, capture_patch
from tests.boxes import ROOT, Collector
from tests.samples import make_benchmark, write_files

Edit = Callable[[Path], None]


def add(files: Mapping[str, bytes | str]) -> Edit:
    """Files written, over what may be there."""
    return lambda tree: (write_files(tree, files), None)[1]


def put_before(path: str, text: str) -> Edit:
    """Text put at a file's top."""

    def edit(tree: Path) -> None:
        file = tree / path
        file.write_text(text + file.read_text())

    return edit


def both(*edits: Edit) -> Edit:
    """One after the other."""

    def edit(tree: Path) -> None:
        for each in edits:
            each(tree)

    return edit


def make_patch(source: Source, edit: Edit) -> bytes:
    """What git makes of the edit."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        shutil.copytree(source.tree, tree, symlinks=True)
        edit(tree)
        return capture_patch(source.base_git, tree, Path(folder) / "out")["diff.patch"].read_bytes()


@dataclass
class Bench:
    """A scorer on one backend. Its verdicts on untouched repositories are the measure of all others."""

    backend: Backend
    folder: Path
    log: Collector = field(default_factory=Collector)
    """What the box of the last patch said."""
    _untouched: dict[str, Scored] = field(default_factory=dict)
    _numbers: "itertools.count[int]" = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        benchmark = make_benchmark()
        self.preparation = Preparation(benchmark, self.backend, self.folder / "cache")
        self._scorer = Scorer(benchmark, self.backend, self.preparation)

    def score(self, task: Task, change: Edit | bytes) -> Scored:
        """The verdict on a patch, or on what an edit makes."""
        number = next(self._numbers)
        patch = change if isinstance(change, bytes) else make_patch(self.preparation.source(task), change)
        self.log = Collector()
        return self._scorer.score(task, patch, Place(f"patch{number}", "tests", self.folder / f"out{number}", self.log))

    def untouched(self, task: Task) -> Scored:
        """The verdict on a patch that changes nothing of importance."""
        if task.digest not in self._untouched:
            self._untouched[task.digest] = self.score(task, add({"NOTES.md": "nothing\n"}))
        return self._untouched[task.digest]


def sample_task(name: str) -> Task:
    """One of the tasks that come with the project."""
    return load_task(ROOT / "data" / "tasks" / "prepared" / name)
