"""What killed processes leave under a data folder goes; what anybody may still need stays."""

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from filelock import FileLock

from rollouts import leftovers
from rollouts.files import remove_tree
from rollouts.image_uses import ImageUses, images_in_use
from rollouts.leftovers import Removed, size_of, sweep
from rollouts.owner import Owner, owned_folder
from rollouts.store import DataRoot, creation_lock
from tests.samples import write_files

STAMP, OTHER = "20260101__00-00-00", "20260202__00-00-00"
DEAD = replace(Owner.current(), start_time="0")


def dead_pid() -> int:
    """Of a process that was here a moment ago."""
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        return process.pid


@pytest.fixture
def root(tmp_path: Path) -> DataRoot:
    return DataRoot(tmp_path / "data")


@pytest.fixture(autouse=True)
def _own_system_temp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "system").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "system"))


def make_batch(root: DataRoot, stamp: str = STAMP, name: str = "bench", runs: int = 2) -> Path:
    """A batch that began, with runs that ended."""
    folder = write_files(root.rollouts / name / stamp, {"manifest.json": "{}", "events.jsonl": "{}\n", ".lock": ""})
    (folder / "task_results").mkdir()
    write_files(root.rollouts / "temp", {f"rollout_{name}__{stamp}.json": "{}"})
    for index in range(runs):
        files = {"result.json": "{}", "logs/agent.log": "x", "artifacts/diff.patch": ""}
        write_files(root.runs / f"{stamp}-{index}", files)
    return folder


def names_below(folder: Path) -> set[str]:
    """Everything that is there, locks aside."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.name.endswith("lock")}


def make_leftovers(root: DataRoot, folder: Path, pid: int) -> list[Path]:
    """What a process may leave of a batch when it is killed."""
    run = root.runs / f"{folder.name}-1"
    left = [
        folder / f".manifest.json.{pid}.140.tmp",
        folder / "task_results" / f".{run.name}.json.{pid}.140.tmp",
        root.rollouts / "temp" / f".rollout_bench__{folder.name}.json.{pid}.140.tmp",
        run / f".result.json.{pid}.140.tmp",
        run / "artifacts" / f".notes.md.{pid}.140.tmp",
        run / "logs" / ".agent.log.tail",
        run / "attempts/1/logs" / ".agent.log.tail",
        run / ".outputs/.workspace-x/tree/file",
        run / ".outputs/.diff.patch.clean",
        run / ".scoring/.capture-x/diff.patch",
    ]
    for path in left:
        write_files(path.parent, {path.name: "half"})
    return left


def test_what_a_killed_process_left_of_its_batch_is_removed(root: DataRoot) -> None:
    folder = make_batch(root)
    write_files(root.runs / f"{STAMP}-1/attempts/1/logs", {"agent.log": "earlier"})
    before = names_below(root.path)
    make_leftovers(root, folder, dead_pid())
    there = names_below(root.path)
    assert len(sweep(root, dry_run=True)) == 9  # .outputs and .scoring whole
    assert names_below(root.path) == there
    removed = sweep(root)
    assert names_below(root.path) == before
    assert {each.kind for each in removed} == {"temporary"}
    assert all(each.bytes for each in removed)
    assert sweep(root) == []


@pytest.mark.parametrize("lock", [".lock", ".eval.lock"])
def test_nothing_of_a_batch_at_work_is_removed(root: DataRoot, lock: str) -> None:
    folder = make_batch(root)
    left = make_leftovers(root, folder, dead_pid())
    with FileLock(folder / lock):
        assert sweep(root) == []
        assert sweep(root, dry_run=True) == []
    assert all(path.exists() for path in left)


def test_what_a_living_process_writes_is_left_alone(root: DataRoot) -> None:
    folder = make_batch(root)
    with subprocess.Popen(["sleep", "60"]) as process:
        path = folder / f".summary.md.{process.pid}.140.tmp"
        path.touch()
        assert sweep(root) == []
        os.utime(path, (1, 1))  # nobody writes for years: another process has that number now
        assert [each.what for each in sweep(root)] == [str(path)]
        process.kill()


def test_without_a_batch_only_what_is_old_is_removed(root: DataRoot) -> None:
    run = write_files(root.runs / f"{STAMP}-0", {".outputs/x": "", "result.json": "{}"})
    assert sweep(root) == []
    os.utime(run / ".outputs", (1, 1))
    assert [each.what for each in sweep(root)] == [str(run / ".outputs")]
    assert (run / "result.json").exists()


def test_a_name_that_is_not_ours_stays(root: DataRoot) -> None:
    folder = make_batch(root)
    files = {".notes": "", ".hidden.tmp": "", "mine.1.1.tmp": "", ".git/config": ""}
    for place in (folder, root.runs / f"{STAMP}-0", root.runs / "my_own-0", root.cache / "sources"):
        write_files(place, files)
    before = names_below(root.path)
    assert sweep(root) == []
    assert names_below(root.path) == before


def test_a_link_is_not_followed(root: DataRoot, tmp_path: Path) -> None:
    make_batch(root)
    elsewhere = write_files(tmp_path / "elsewhere", {".outputs/precious": "", "result.json": ""})
    (root.runs / f"{STAMP}-7").symlink_to(elsewhere)
    other = "20260202__00-00-00"
    (root.rollouts / "linked").symlink_to(write_files(tmp_path / "away" / other, {"events.jsonl": ""}).parent)
    (root.runs / f"{other}-0").mkdir()
    (root.runs / f"{STAMP}-1" / ".outputs").symlink_to(elsewhere)
    assert [each.what for each in sweep(root)] == [str(root.runs / f"{STAMP}-1" / ".outputs")]
    assert (elsewhere / ".outputs/precious").exists()
    assert (tmp_path / "away" / other / "events.jsonl").exists()
    assert (root.runs / f"{other}-0").exists(), "the claim of a batch that a link leads to"


def test_scratch_folders_of_dead_processes_are_removed(root: DataRoot, tmp_path: Path) -> None:
    (root.cache / "sources").mkdir(parents=True)
    dead = write_files(root.cache / "sources/.making-dead", {"owner": DEAD.encode(), "made/tree/file": "x"})
    patch = write_files(tmp_path / "system/rollouts-patch-dead", {"owner": DEAD.encode()})
    old = write_files(tmp_path / "system/rollouts-start-old", {})
    os.utime(old, (1, 1))
    write_files(tmp_path / "system/rollouts-other-dead", {"owner": DEAD.encode()})
    write_files(tmp_path / "system/rollouts-validate-young", {})
    with owned_folder(".making-", root.cache / "sources") as ours, owned_folder("rollouts-patch-") as here:
        assert {each.what for each in sweep(root)} == {str(path) for path in (dead, patch, old)}
        assert ours.exists()
        assert here.exists()
    assert {path.name for path in (tmp_path / "system").iterdir()} == {"rollouts-other-dead", "rollouts-validate-young"}


def test_half_made_mirrors_are_removed_unless_someone_makes_them(root: DataRoot) -> None:
    clone = write_files(root.cache / "git/.cloning-abc-x1", {"mirror/HEAD": ""})
    with FileLock(root.cache / "git/abc.git.lock"):
        assert sweep(root) == []
    assert [(each.kind, each.what) for each in sweep(root)] == [("mirror", str(clone))]


def test_what_a_dead_process_said_of_its_images_is_removed(root: DataRoot) -> None:
    uses = ImageUses(root.cache)
    uses.add("rollouts/task:1")
    dead = json.dumps({"owner": DEAD.encode(), "images": ["rollouts/task:2"]})
    write_files(root.cache / "uses", {"1-a.json": dead, "2-b.json": "torn"})
    assert images_in_use(root.cache) == {"rollouts/task:1"}
    assert [each.what for each in sweep(root)] == [str(root.cache / "uses/1-a.json")]
    uses.close()
    assert images_in_use(root.cache) == set()


def test_a_batch_that_never_began_is_removed_with_its_claim(root: DataRoot) -> None:
    begun = make_batch(root)
    folder = write_files(root.rollouts / "new" / OTHER, {"events.jsonl": "{}\n", "config.toml": "", ".lock": ""})
    write_files(root.rollouts / "temp", {f"rollout_new__{OTHER}.json": "{}"})
    (root.runs / f"{OTHER}-0").mkdir()
    with FileLock(folder / ".lock"):
        assert sweep(root) == []
    assert len(sweep(root, dry_run=True)) == 2
    assert folder.exists()
    assert [each.kind for each in sweep(root)] == ["unbegun", "unbegun"]
    assert begun.exists()
    assert not folder.parent.exists()
    assert not (root.runs / f"{OTHER}-0").exists()
    assert not (root.rollouts / "temp" / f"rollout_new__{OTHER}.json").exists()
    assert (root.rollouts / "temp" / f"rollout_bench__{STAMP}.json").exists()


def test_a_claim_without_a_batch_is_removed_and_nothing_that_holds_something(root: DataRoot) -> None:
    make_batch(root)
    (root.runs / f"{STAMP}-0/result.json").unlink()
    (root.runs / f"{OTHER}-0").mkdir()
    kept = write_files(root.runs / "20260303__00-00-00-0", {"result.json": "{}"})
    assert sweep(root) == [Removed("unbegun", str(root.runs / f"{OTHER}-0"), 0)]
    assert kept.exists()


def test_a_batch_that_lost_its_manifest_but_has_runs_is_kept(root: DataRoot) -> None:
    folder = make_batch(root)
    (folder / "manifest.json").unlink()
    assert sweep(root) == []
    assert (folder / "events.jsonl").exists()


def test_a_batch_that_is_being_made_is_left_alone(root: DataRoot, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its folder is there and its own lock is not taken yet: that is why there is a lock for making batches."""
    (root.runs / f"{OTHER}-0").mkdir(parents=True)
    folder = write_files(root.rollouts / "new" / OTHER, {})
    asked = threading.Event()

    def creation_lock_asked_for(root: DataRoot) -> FileLock:
        asked.set()
        return creation_lock(root)

    monkeypatch.setattr(leftovers, "creation_lock", creation_lock_asked_for)
    monkeypatch.setattr(leftovers, "CREATION_LIMIT_S", 60.0)
    removed: list[Removed] = []
    sweeper = threading.Thread(target=lambda: removed.extend(sweep(root)))
    with creation_lock(root):
        sweeper.start()
        assert asked.wait(60)
        sweeper.join(1)
        assert sweeper.is_alive(), "it waits"
        lock = FileLock(folder / ".lock", thread_local=False)
        lock.acquire()
    sweeper.join(60)
    lock.release()
    assert removed == []
    assert folder.exists()
    assert (root.runs / f"{OTHER}-0").exists()


def test_ten_thousand_runs_are_swept_in_well_under_a_second(root: DataRoot) -> None:
    make_batch(root, runs=0)
    for index in range(10_000):
        (root.runs / f"{STAMP}-{index}").mkdir(parents=True)
        (root.runs / f"{STAMP}-{index}" / "result.json").touch()
    sweep(root)
    begin = time.process_time()
    assert sweep(root) == []
    assert time.process_time() - begin < 1


def test_what_cannot_be_removed_is_said_and_does_not_stop_the_rest(
    root: DataRoot, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_batch(root)
    make_leftovers(root, folder, dead_pid())
    stuck = root.runs / f"{STAMP}-1" / ".outputs"
    real = remove_tree

    def refuse(path: Path) -> None:
        if path == stuck:
            raise OSError(1, "Operation not permitted", str(path))
        real(path)

    monkeypatch.setattr(leftovers, "remove_tree", refuse)
    assert len(sweep(root)) == 8
    assert f"cannot be removed: {stuck}: Operation not permitted" in caplog.text
    assert stuck.exists()


def test_a_size_is_what_the_disk_gives(tmp_path: Path) -> None:
    write_files(tmp_path / "a", {"b": bytes(100_000)})
    with (tmp_path / "a/sparse").open("wb") as sparse:
        sparse.truncate(1 << 30)
    (tmp_path / "a/link").symlink_to("/usr")
    assert 100_000 <= size_of(tmp_path / "a") < 200_000
    assert size_of(tmp_path / "missing") == 0
