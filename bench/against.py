"""This tree against another revision: the same samples with both, in turns, each in a process of its own.

The files of `bench/` are this tree's for both; only `rollouts`, its sandbox scripts and its command are the other's.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import mkdtemp

from measure import ROOT, Cost, Row, alternate, cpu_ratio, scratch_folder, wall_ratio

SAMPLES: dict[str, list[tuple[str, ...]]] = {
    "docker": [("docker", "1"), ("docker", "4"), ("docker", "8")],
    "help": [("help",)],
    "plan": [("plan",)],
}
LIMIT_S = 600


class SampleFailed(Exception):
    """A tree cannot be measured so: it lacks what the sample calls, or the call failed."""


@contextmanager
def checked_out(revision: str) -> Iterator[Path]:
    """That revision in a folder that is gone afterwards."""
    with scratch_folder() as folder:
        tree = folder / "tree"
        _git("worktree", "add", "--quiet", "--detach", str(tree), revision)
        try:
            yield tree
        finally:
            _git("worktree", "remove", "--force", str(tree))


def _git(*arguments: str) -> None:
    done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"git {arguments[0]}: {done.stderr.strip()}")


def compare(part: str, tree: Path, quick: bool) -> list[Row]:
    """New against old for each sample of a part; raises SampleFailed when a tree cannot run it."""
    rows = []
    with scratch_folder() as folder:
        for words in SAMPLES[part]:
            new, old = partial(take, ROOT, folder, *words), partial(take, tree, folder, *words)
            pairs = alternate(new, old, 2 if quick else 6)
            name = " ".join(words)
            rows += [wall_ratio(f"{name}: new / old", pairs), cpu_ratio(f"{name}: new / old, CPU", pairs)]
    return rows


def take(tree: Path, folder: Path, *words: str) -> Cost:
    """One sample with that tree's code, in a new folder below one that stays.

    Nothing is deleted between samples: where thousands of files have just gone, ext4 makes new ones more slowly.
    """
    done = subprocess.run(
        [sys.executable, str(ROOT / "bench/sample.py"), str(tree), mkdtemp(dir=folder), *words],
        env={**os.environ, "PYTHONPATH": str(tree / "src")},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        raise SampleFailed(f"{tree}: {last[0]}")
    return Cost(**json.loads(done.stdout))
