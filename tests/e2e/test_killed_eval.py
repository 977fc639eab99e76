"""`eval` killed at every write it makes: verdicts are whole or not there, and the same command finishes the rest."""

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
    go_through,
    make_project,
    naming,
    same,
)


@pytest.fixture(scope="module")
def commands() -> Iterator[Commands]:
    with Commands() as commands:
        yield commands


@pytest.fixture(scope="module")
def ended(commands: Commands, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project whose runs ended and wait for their verdicts."""
    folder = make_project(tmp_path_factory.mktemp("ended"))
    ran = commands(folder, "run", "bench.toml")
    assert ran.code == 0, ran
    return folder


def test_kill_9_at_any_write_of_eval_is_finished_by_the_same_command(
    commands: Commands, ended: Path, tmp_path: Path
) -> None:
    def kill(point: int) -> Tried:
        folder = copy_project(ended, tmp_path / str(point))
        before = Left.by(folder)
        tried = commands(folder, "eval", "bench", kill_at=point)
        with naming(tried):
            left = Left.by(folder)
            assert left.ended == before.ended, "runs were touched"
            check_readable(commands, folder)
            again = commands(folder, "eval", "bench")
            assert again.code == 0, f"eval: {again}"
            same("boxes left behind", commands.boxes(), [])
            check_scored(folder, left)
            check_whole(folder, left)
        return tried

    go_through(every_point(300), kill)
