"""`resume` killed at every write it makes: the next `resume` finishes, and every attempt that was cut off is kept."""

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
def stopped(commands: Commands, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project whose batch was killed while its second run was under way, with a patch already there."""
    folder = make_project(tmp_path_factory.mktemp("stopped"))
    tried = commands(folder, "run", "bench.toml", kill_at="rename .*-1/result.json")
    assert tried.was_killed, tried
    left = Left.by(folder)
    assert [len(left.ended), ["artifacts/diff.patch" in files for files in left.cut_off.values()]] == [1, [True]]
    return folder


def test_kill_9_at_any_write_of_resume_is_finished_by_resume(commands: Commands, stopped: Path, tmp_path: Path) -> None:
    before = Left.by(stopped)

    def kill(point: int) -> Tried:
        folder = copy_project(stopped, tmp_path / str(point))
        tried = commands(folder, "resume", "bench", kill_at=point)
        with naming(tried):
            left = Left.by(folder)
            check_readable(commands, folder)
            finish(commands, folder, left)
            check_whole(folder, before)
            check_whole(folder, left)
        return tried

    go_through(every_point(MOST), kill)


def test_resume_that_scores_killed_at_many_writes_is_finished_by_resume_and_eval(
    commands: Commands, stopped: Path, tmp_path: Path
) -> None:
    before = Left.by(stopped)

    def kill(point: int) -> Tried:
        folder = copy_project(stopped, tmp_path / str(point))
        tried = commands(folder, "resume", "bench", "--eval", kill_at=point)
        with naming(tried):
            left = Left.by(folder)
            finish(commands, folder, left)
            scored = commands(folder, "eval", "bench")
            assert scored.code == 0, f"eval: {scored}"
            same("boxes left behind", commands.boxes(), [])
            check_whole(folder, before)
            check_whole(folder, left)
            check_scored(folder, left)
        return tried

    go_through(every_point(MOST, step=5), kill)
