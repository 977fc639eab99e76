"""`eval` killed at every write it makes: verdicts are whole or not there, and the same command finishes the rest."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kill_points import Commands, Tried, every_point
from tests.killed import Left, batch_folders, check_readable, check_whole, copy_project, go_through, make_project

RUNS = 2


@pytest.fixture(scope="module")
def commands() -> Iterator[Commands]:
    with Commands() as commands:
        yield commands


@pytest.fixture(scope="module")
def ended(commands: Commands, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project whose runs ended and wait for their verdicts."""
    folder = make_project(tmp_path_factory.mktemp("ended"), runs=RUNS)
    ran = commands(folder, "run", "bench.toml")
    assert ran.code == 0, ran
    return folder


def test_eval_killed_at_any_write_is_finished_by_the_same_command(
    commands: Commands, ended: Path, tmp_path: Path
) -> None:
    def kill(point: int) -> Tried:
        folder = copy_project(ended, tmp_path / str(point))
        before = Left.by(folder)
        tried = commands(folder, "eval", "bench", kill_at=point)
        left = Left.by(folder)
        assert left.ended == before.ended, f"runs were touched by {tried}"
        check_readable(commands, folder)
        again = commands(folder, "eval", "bench")
        assert again.code == 0, f"after {tried}\n  {again}"
        try:
            check_scored(folder, left)
            check_whole(folder, left)
        except AssertionError as exc:
            raise AssertionError(f"after {tried}\n  {exc}") from exc
        return tried

    go_through(every_point(300), kill)


def check_scored(folder: Path, left: Left) -> None:
    """Every run has its verdict, and one that was there before is the same."""
    (batch,) = batch_folders(folder)
    manifest = json.loads((batch / "eval_manifest.json").read_bytes())
    assert manifest["finished_at"]
    assert [line["outcome"] for line in manifest["results"]] == ["resolved"] * RUNS
    found = {
        line["run_id"]: (folder / line["run_dir"] / "evaluation_results.json").read_bytes()
        for line in manifest["results"]
    }
    assert all(json.loads(content)["outcome"] == "resolved" for content in found.values())
    for run_id, content in left.verdicts.items():
        assert found[run_id] == content, f"{run_id} was scored again"
