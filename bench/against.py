"""This tree against another revision: the same work with both, in turns, each time in a process of its own.

Runs and `--help` go through each tree's own command, start-up included: that outlives every rearrangement inside. Only
planning is called from within; a revision that lacks what `plan_cost.py` of this tree calls is left out, and said.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import mkdtemp

from docker_overhead import RUNS, write_config
from measure import ROOT, Cost, Row, alternate, cpu_ratio, scratch_folder, timed, wall_ratio

LIMIT_S = 600

Sample = Callable[[Path, Path], Cost]
"""Does a piece of work with the tree it is given, in a folder of its own."""


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
    """New against old for each sample of a part; raises SampleFailed when a tree cannot do it."""
    rows = []
    with scratch_folder() as folder:
        for name, sample in SAMPLES[part].items():
            new, old = partial(_take, sample, ROOT, folder), partial(_take, sample, tree, folder)
            pairs = alternate(new, old, 3 if quick else 7)[1:]  # the first round warms up: images, byte code, caches
            rows += [wall_ratio(f"{name}: new / old", pairs), cpu_ratio(f"{name}: new / old, CPU", pairs)]
    return rows


def _take(sample: Sample, tree: Path, folder: Path) -> Cost:
    """Nothing is deleted between samples: where thousands of files have just gone, ext4 makes new ones more slowly."""
    if not (tree / "src/rollouts").is_dir():
        raise SampleFailed(f"there is no src/rollouts in {tree}")
    return sample(tree, Path(mkdtemp(dir=folder)))


def _run_noops(tree: Path, folder: Path, parallel: int) -> Cost:
    config = write_config(folder, RUNS[parallel])
    options = ("--backend", "docker", "--parallel", str(parallel), "--data-dir", str(folder / "data"))
    return timed(lambda: _python(tree, str(tree / "scripts/eval_rollouts.py"), "run", str(config), *options))


def _show_help(tree: Path, folder: Path) -> Cost:
    return timed(lambda: [_python(tree, str(tree / "scripts/eval_rollouts.py"), "--help") for _ in range(5)])


def _keep_books(tree: Path, folder: Path) -> Cost:
    return Cost(**json.loads(_python(tree, str(ROOT / "bench/plan_cost.py"), str(folder))))


def _python(tree: Path, *arguments: str) -> str:
    """What a program of that tree prints."""
    done = subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "PYTHONPATH": str(tree / "src")},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        raise SampleFailed(f"{tree}: {last[0]}")
    return done.stdout


SAMPLES: dict[str, dict[str, Sample]] = {
    "docker": {f"docker, parallel {parallel}": partial(_run_noops, parallel=parallel) for parallel in RUNS},
    "help": {"--help": _show_help},
    "plan": {"plan, journal, manifest": _keep_books},
}
