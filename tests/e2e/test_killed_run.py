"""`run` killed at every write it makes: what ended stays, `resume` does the rest, and nothing is lost or done twice."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kill_points import Commands, Tried, every_point
from tests.killed import (
    Left,
    check_readable,
    check_scored,
    check_whole,
    copy_project,
    finish,
    go_through,
    make_project,
    naming,
    same,
)

MOST = 600


@pytest.fixture(scope="module")
def commands() -> Iterator[Commands]:
    with Commands() as commands:
        yield commands


@pytest.fixture(scope="module")
def warm(commands: Commands, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project in which nothing was run yet, but the task's source is in the cache."""
    folder = make_project(tmp_path_factory.mktemp("warm"))
    ran = commands(folder, "run", "bench.toml")
    assert ran.code == 0, ran
    for name in ("rollouts", "runs"):
        shutil.rmtree(folder / "data" / name)
    return folder


def kill_and_finish(commands: Commands, folder: Path, point: int) -> Tried:
    tried = commands(folder, "run", "bench.toml", kill_at=point)
    with naming(tried):
        left = Left.by(folder)
        check_readable(commands, folder)
        finish(commands, folder, left)
        check_whole(folder, left)
    return tried


@pytest.mark.parametrize("first", [1, 2, 3])  # a third of the points each: all at once take long on a busy machine
def test_kill_9_at_any_write_of_run_is_finished_by_resume(
    first: int, commands: Commands, warm: Path, tmp_path: Path
) -> None:
    def kill(point: int) -> Tried:
        return kill_and_finish(commands, copy_project(warm, tmp_path / str(point)), point)

    go_through(every_point(MOST, 3, first), kill)


def test_runs_side_by_side_killed_at_many_writes_are_finished_by_resume(
    commands: Commands, warm: Path, tmp_path: Path
) -> None:
    def kill(point: int) -> Tried:
        folder = make_project(copy_project(warm, tmp_path / str(point)), runs=3, parallel=2)
        return kill_and_finish(commands, folder, point)

    go_through(every_point(MOST, step=7), kill)


def test_run_killed_while_it_makes_the_source_starts_anew(commands: Commands, tmp_path: Path) -> None:
    def kill(point: int) -> Tried:
        folder = make_project(tmp_path / str(point))
        tried = kill_and_finish(commands, folder, point)
        is_made = any(step.what == "mkdir" and step.path == "data/runs" for step in tried.steps)
        return Tried(0, "", "", tried.steps) if is_made else tried  # from there on the other tests go

    go_through(every_point(MOST, step=4), kill)


def test_run_that_scores_killed_at_many_writes_is_finished_by_resume_and_eval(
    commands: Commands, warm: Path, tmp_path: Path
) -> None:
    def kill(point: int) -> Tried:
        folder = copy_project(warm, tmp_path / str(point))
        tried = commands(folder, "run", "bench.toml", "--eval", kill_at=point)
        with naming(tried):
            left = Left.by(folder)
            check_readable(commands, folder)
            finish(commands, folder, left)
            scored = commands(folder, "eval", "bench")
            assert scored.code == 0, f"eval: {scored}"
            same("boxes left behind", commands.boxes(), [])
            check_whole(folder, left)
            check_scored(folder, left)
        return tried

    go_through(every_point(MOST, step=5), kill)
