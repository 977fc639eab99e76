"""Old batches are deleted whole, whatever instant the process dies at, and nothing beside them."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from filelock import FileLock

from rollouts import leftovers, pruning
from rollouts.errors import ConfigError
from rollouts.files import remove_tree
from rollouts.leftovers import Broom
from rollouts.pruning import delete_old, find_old, finish_deletions, parse_age
from rollouts.store import DataRoot, batches
from tests.samples import write_files

DAY_S = 24 * 3600
OLD = "20200101__00-00-00"
YOUNG = (datetime.now(UTC) - timedelta(hours=1)).strftime("%Y%m%d__%H-%M-%S")
AHEAD = (datetime.now(UTC) + timedelta(days=400)).strftime("%Y%m%d__%H-%M-%S")


@pytest.fixture
def root(tmp_path: Path) -> DataRoot:
    root = DataRoot(tmp_path / "data")
    (root.cache / "locks").mkdir(parents=True)
    return root


def make_batch(root: DataRoot, stamp: str, name: str = "bench") -> Path:
    """A batch of two runs. Its manifest names things that are none of its business."""
    elsewhere = str(root.path.parent / "precious")
    manifest = {"results": [{"run_id": "../../precious", "run_dir": elsewhere}]}
    folder = write_files(root.rollouts / name / stamp, {"manifest.json": json.dumps(manifest), "runs.txt": elsewhere})
    write_files(root.rollouts / "temp", {f"rollout_{name}__{stamp}.json": "{}"})
    for index in range(2):
        write_files(root.runs / f"{stamp}-{index}", {"result.json": "{}", "artifacts/diff.patch": "x"})
    return folder


def everything(root: DataRoot) -> set[str]:
    return {str(path.relative_to(root.path)) for path in root.path.rglob("*") if not path.name.endswith("lock")}


def prune(root: DataRoot, age_s: int = DAY_S, *, dry_run: bool = False) -> Broom:
    broom = Broom(dry_run)
    delete_old(broom, root, find_old(root, age_s)[0])
    return broom


@pytest.mark.parametrize(("text", "seconds"), [("12h", 43_200), ("30d", 30 * DAY_S), ("2w", 14 * DAY_S), ("0h", 0)])
def test_ages_are_hours_days_or_weeks(text: str, seconds: int) -> None:
    assert parse_age(text) == seconds


@pytest.mark.parametrize("text", ["", "30", "d", "-1d", "1.5d", "30 d", "30D", "1y", "999999d", "٣d", "30d\n"])
def test_other_ages_are_refused_with_what_is_expected(text: str) -> None:
    with pytest.raises(ConfigError, match="--runs-older-than: expected a whole number with h, d or w behind it"):
        parse_age(text)


def test_old_batches_go_with_their_runs_and_everything_else_stays(root: DataRoot) -> None:
    for stamp in (YOUNG, AHEAD, "20209999__99-99-99"):
        make_batch(root, stamp)
    write_files(root.runs / "my-own-notes", {"x": ""})
    write_files(root.path.parent / "precious", {"x": ""})
    before = everything(root)
    make_batch(root, OLD)
    make_batch(root, "20200102__00-00-00", "only_old")
    there = everything(root)
    would = prune(root, dry_run=True)
    assert everything(root) == there
    done = prune(root)
    assert everything(root) == before
    assert done.removed == would.removed
    assert [(each.kind, each.runs) for each in done.removed] == [("batch", 2), ("batch", 2)]
    assert all(each.bytes for each in done.removed)
    assert (root.path.parent / "precious/x").exists()


@pytest.mark.parametrize("lock", [".lock", ".eval.lock"])
def test_a_batch_at_work_is_kept(root: DataRoot, lock: str) -> None:
    folder = make_batch(root, OLD)
    found, _ = find_old(root, DAY_S)
    before = everything(root)
    with FileLock(folder / lock):
        assert find_old(root, DAY_S) == ([], [str(folder)])
        broom = Broom()
        delete_old(broom, root, found)  # work on it began after it was found
        assert (broom.removed, broom.failed) == ([], [])
    assert everything(root) == before


def test_runs_whose_batch_is_gone_go_too(root: DataRoot) -> None:
    write_files(root.runs / f"{OLD}-3", {"result.json": "{}"})
    write_files(root.runs / f"{YOUNG}-3", {"result.json": "{}"})
    assert [(each.kind, each.what) for each in prune(root).removed] == [("run", str(root.runs / f"{OLD}-3"))]
    assert {path.name for path in root.runs.iterdir()} == {f"{YOUNG}-3"}


def test_links_are_removed_and_never_followed(root: DataRoot, tmp_path: Path) -> None:
    make_batch(root, OLD)
    precious = write_files(tmp_path / "elsewhere", {"x": "", "closed/y": ""})
    (root.runs / f"{OLD}-5").symlink_to(precious)
    (root.runs / f"{OLD}-0" / "artifacts" / "link").symlink_to(precious)
    (root.rollouts / "bench" / OLD / "link").symlink_to(precious)
    assert prune(root).failed == []
    assert (precious / "x").exists()
    assert (precious / "closed/y").exists()
    assert list(root.runs.iterdir()) == []


def test_folders_that_a_box_closed_go_too(root: DataRoot) -> None:
    make_batch(root, OLD)
    (root.runs / f"{OLD}-0" / "artifacts").chmod(0)
    assert prune(root).failed == []
    assert list(root.runs.iterdir()) == []


def test_a_batch_that_was_copied_to_another_name_shares_its_runs(root: DataRoot) -> None:
    """They go only when both may go."""
    make_batch(root, OLD)
    copy = make_batch(root, OLD, "copy")
    before = everything(root)
    with FileLock(copy / ".lock"):
        assert prune(root).removed == []
    assert everything(root) == before
    assert len(prune(root).removed) == 2
    assert not list(root.runs.iterdir())


class Killed(BaseException):
    """Stands for SIGKILL: nobody catches it."""


def test_a_deletion_that_was_killed_at_any_step_is_finished_by_the_next(
    root: DataRoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_batch(root, YOUNG, "other")
    before = everything(root)
    steps_left, steps = 0, 0

    def count() -> None:
        nonlocal steps_left
        if steps_left == 0:
            raise Killed
        steps_left -= 1

    def remove_slowly(path: Path) -> None:
        """Each file is a step of its own, so that folders are left half deleted too."""
        for each in sorted(path.rglob("*"), reverse=True) if path.is_dir() else ():
            count()
            each.rmdir() if each.is_dir() else each.unlink()
        count()
        remove_tree(path)

    def put_aside(broom: Broom, folder: Path) -> Path:
        count()
        return real_put_aside(broom, folder)

    real_put_aside = pruning._put_aside
    while True:
        folder = make_batch(root, OLD)
        whole = everything(root)
        with monkeypatch.context() as patch:
            patch.setattr(leftovers, "remove_tree", remove_slowly)
            patch.setattr(pruning, "_put_aside", put_aside)
            steps_left = steps
            killed = False
            try:
                prune(root)
            except Killed:
                killed = True
        listed = [place.stamp for place in batches(root)]
        assert YOUNG in listed
        if OLD in listed:
            assert everything(root) == whole, "still listed, so still whole"
            assert folder.exists()
        broom = Broom()
        finish_deletions(broom, root)
        delete_old(broom, root, find_old(root, DAY_S)[0])
        assert everything(root) == before
        if not killed:
            break
        steps += 1
    assert steps > 10


def test_what_was_half_deleted_is_finished_without_an_age(root: DataRoot) -> None:
    folder = make_batch(root, OLD)
    folder.rename(folder.with_name(f".deleting-{OLD}"))
    remove_tree(root.runs / f"{OLD}-1")
    would, done = Broom(dry_run=True), Broom()
    finish_deletions(would, root)
    assert (root.runs / f"{OLD}-0").exists()
    finish_deletions(done, root)
    assert done.removed == would.removed
    assert [(each.kind, each.what, each.runs) for each in done.removed] == [("batch", str(folder), 1)]
    assert not (root.rollouts / "bench").exists()
    assert not list(root.runs.iterdir())


def test_what_cannot_be_deleted_is_named_and_tried_again_next_time(
    root: DataRoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_batch(root, OLD)
    stuck = root.runs / f"{OLD}-0"

    def refuse(path: Path) -> None:
        if path == stuck:
            raise PermissionError(1, "Operation not permitted", str(path))
        remove_tree(path)

    with monkeypatch.context() as patch:
        patch.setattr(leftovers, "remove_tree", refuse)
        broom = prune(root)
    assert (broom.removed, broom.failed) == ([], [f"{stuck}: Operation not permitted"])
    finish_deletions(broom, root)
    assert [each.kind for each in broom.removed] == ["batch"]
    assert not stuck.exists()


@pytest.mark.parametrize("linked", ["benchmark", "batch"])
def test_a_batch_that_a_link_leads_to_stays_with_its_runs(root: DataRoot, tmp_path: Path, linked: str) -> None:
    folder = make_batch(root, OLD)
    place = folder.parent if linked == "benchmark" else folder
    place.rename(tmp_path / "away")
    place.symlink_to(tmp_path / "away")
    before = everything(root)
    assert prune(root).removed == []
    assert everything(root) == before
