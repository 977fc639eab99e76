"""Batches on disk: the journal is the truth, everything else is derived from it and valid at every instant."""

import json
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from rollouts import store
from rollouts.errors import ExitCode, NotFoundError, StoreError
from rollouts.files import write_whole
from rollouts.plan import RunSpec
from rollouts.results import RunError, RunResult, Status
from rollouts.store import (
    Batch,
    BatchState,
    DataRoot,
    batches,
    describe_batches,
    find_batch,
    refresh_abandoned,
    shown_path,
)
from tests.samples import make_spec, make_task

HEADER = {"config": "configs/x.toml", "backend": "local", "parallel": 2, "environment": {"python": "3"}}


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DataRoot:
    monkeypatch.chdir(tmp_path)
    return DataRoot(Path("data"))


@pytest.fixture
def spec(tmp_path: Path) -> RunSpec:
    return make_spec(make_task(tmp_path / "tasks/t"))


def specs_of(spec: RunSpec, count: int) -> list[RunSpec]:
    return [replace(spec, index=n, rollout=n, key=f"key{n}") for n in range(count)]


def create(root: DataRoot, spec: RunSpec, name: str = "bench", count: int = 2) -> Batch:
    return Batch.create(root, name, HEADER, specs_of(spec, count), b"# the config\n")


def end(batch: Batch, result: RunResult, **changes: Any) -> RunResult:
    ended = replace(batch.started(result.run_id), status=Status.LAUNCHED, launch_rc=0, **changes)
    batch.ended(ended)
    return ended


def manifest(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "manifest.json").read_text())
    return found


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that stands still."""

    class Stopped(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> "Stopped":
            return cls(2026, 1, 31, 23, 59, 59, 999, tzinfo=UTC)

    monkeypatch.setattr(store, "datetime", Stopped)


def test_a_new_batch_has_everything_on_disk(root: DataRoot, spec: RunSpec, clock: None) -> None:
    batch = create(root, spec)
    assert batch.folder == Path("data/rollouts/bench/20260131__23-59-59")
    assert {path.name for path in batch.folder.iterdir() if not path.name.startswith(".")} == {
        "manifest.json", "runs.txt", "events.jsonl", "config.toml", "task_results", "tasks.json",
    }  # fmt: skip
    assert (batch.folder / "config.toml").read_bytes() == b"# the config\n"
    assert (batch.folder / "runs.txt").read_text() == (
        "data/runs/20260131__23-59-59-0\ndata/runs/20260131__23-59-59-1\n"
    )
    temp = json.loads(Path("data/rollouts/temp/rollout_bench__20260131__23-59-59.json").read_text())
    assert temp == {
        "created_at": "20260131__23-59-59",
        "rollout_dir": "data/rollouts/bench/20260131__23-59-59",
        "runs": ["data/runs/20260131__23-59-59-0", "data/runs/20260131__23-59-59-1"],
        "tasks": ["tasks/t"],
    }
    found = manifest(batch.folder)
    assert {key: found[key] for key in ("schema", "name", "created_at", "finished_at")} == {
        "schema": 1, "name": "bench", "created_at": "20260131__23-59-59", "finished_at": None,
    }  # fmt: skip
    assert {key: found[key] for key in HEADER} == HEADER
    assert [(result["run_id"], result["status"], result["key"]) for result in found["results"]] == [
        ("20260131__23-59-59-0", "pending", "key0"),
        ("20260131__23-59-59-1", "pending", "key1"),
    ]
    batch.close(finished=False)


def test_two_starts_in_one_second_never_share_a_stamp(root: DataRoot, spec: RunSpec, clock: None) -> None:
    made = [create(root, spec, name) for name in ("bench", "bench", "other", "bench")]
    assert [batch.stamp for batch in made] == [
        "20260131__23-59-59", "20260201__00-00-00", "20260201__00-00-01", "20260201__00-00-02",
    ]  # fmt: skip
    for batch in made:
        batch.close(finished=False)


def test_many_starts_at_once_never_share_a_stamp(root: DataRoot, spec: RunSpec) -> None:
    made: list[Batch] = []
    together = threading.Barrier(8)

    def start(name: str) -> None:
        together.wait(10)
        made.append(create(root, spec, name))

    threads = [threading.Thread(target=start, args=(f"bench{n % 3}",)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({batch.stamp for batch in made}) == 8
    for batch in made:
        batch.close(finished=True)
    assert len(batches(root)) == 8


def test_the_life_of_a_run_is_in_the_manifest(root: DataRoot, spec: RunSpec) -> None:
    batch = create(root, spec)
    first, second = batch.results
    error = RunError("agent", "agent_failed", "the agent exited with 1")
    batch.started(first.run_id)
    batch.ended(replace(batch.results[0], status=Status.SANDBOX_FAILED, error=error))
    begun = batch.started(first.run_id)
    assert (begun.attempt, begun.status) == (2, Status.RUNNING)
    batch.ended(replace(begun, status=Status.LAUNCHED, launch_rc=0, error=None, duration_s=1.5))
    batch.started(second.run_id)
    batch.close(finished=False)
    found = manifest(batch.folder)
    assert [(result["status"], result["attempt"], result["launch_rc"]) for result in found["results"]] == [
        ("launched", 2, 0),
        ("running", 1, None),
    ]
    one = json.loads((batch.folder / "task_results" / f"{first.run_id}.json").read_text())
    assert one == found["results"][0]
    assert found["finished_at"] is None


def test_a_finished_batch_says_when(root: DataRoot, spec: RunSpec) -> None:
    batch = create(root, spec, count=1)
    end(batch, batch.results[0])
    batch.close(finished=True)
    finished = datetime.fromisoformat(manifest(batch.folder)["finished_at"])
    assert abs(finished - datetime.now(UTC)) < timedelta(minutes=1)


def test_the_journal_alone_gives_the_same_manifest(root: DataRoot, spec: RunSpec) -> None:
    batch = create(root, spec, count=3)
    hard = 'quote " back \\ é \u2028 \x85 \x1c \n control \x01'
    end(batch, batch.results[0], error=RunError("agent", "x", hard), changes={"files": 1})
    batch.started(batch.results[1].run_id)
    batch.close(finished=True)
    assert BatchState.load(batch.folder).manifest() == manifest(batch.folder)
    assert manifest(batch.folder)["results"][0]["error"]["message"] == hard


def test_the_manifest_is_valid_while_runs_end(root: DataRoot, spec: RunSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "MANIFEST_EVERY_S", 0.001)
    batch = create(root, spec, count=60)
    done, looks = threading.Event(), []

    def look() -> None:
        while not done.is_set():
            looks.append(len(manifest(batch.folder)["results"]))

    reader = threading.Thread(target=look)
    reader.start()
    for result in batch.results:
        end(batch, result)
    done.set()
    reader.join()
    batch.close(finished=True)
    assert set(looks) == {60}


@pytest.mark.parametrize(("count", "ends"), [(12, 12), (10_000, 300)])
def test_the_manifest_is_not_rewritten_once_per_event(
    count: int, ends: int, root: DataRoot, spec: RunSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = create(root, spec, count=count)
    written: list[str] = []

    def note(path: Path, content: bytes, *, durable: bool = True) -> None:
        if path.parent.name != "task_results":
            written.append(path.name)
            write_whole(path, content, durable=durable)

    monkeypatch.setattr(store, "write_whole", note)
    monkeypatch.setattr(store, "write_json", lambda path, value: None)
    monkeypatch.setattr("os.fsync", lambda descriptor: None)
    for number, result in enumerate(batch.results[:ends]):
        end(batch, result)
        if number < 10:
            time.sleep(0.005)  # long enough for a small manifest to be written each time
    batch.close(finished=True)
    assert 1 <= written.count("manifest.json") <= 5
    statuses = [result["status"] for result in manifest(batch.folder)["results"]]
    assert (statuses.count("launched"), statuses.count("pending")) == (ends, count - ends)


def test_a_batch_has_one_writer(root: DataRoot, spec: RunSpec) -> None:
    batch = create(root, spec)
    with pytest.raises(StoreError, match=r"bench/\S+: .*this batch") as caught:
        Batch(root, "bench", batch.stamp)
    assert caught.value.exit_code == ExitCode.NONE_SUCCEEDED
    batch.close(finished=False)


def test_a_data_folder_that_cannot_be_made_is_told(spec: RunSpec, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="file: cannot be written: Not a directory"):
        create(DataRoot(tmp_path / "file"), spec)


def test_a_full_disk_at_the_end_is_told(root: DataRoot, spec: RunSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = create(root, spec)

    def full(path: Path, content: bytes) -> None:
        raise StoreError(f"{path}: cannot be written: No space left on device")

    monkeypatch.setattr(store, "write_whole", full)
    with pytest.raises(StoreError, match=r"manifest\.json: cannot be written: No space left"):
        batch.close(finished=True)


# --- what a process that died left behind -------------------------------------------------------------------------


def die(root: DataRoot, spec: RunSpec) -> Path:
    """A batch whose process died after its first of three runs ended, with nothing but the journal up to date."""
    batch = create(root, spec, count=3)
    early = (batch.folder / "manifest.json").read_bytes()
    end(batch, batch.results[0], duration_s=1.5)
    batch.started(batch.results[1].run_id)
    batch.close(finished=False)
    for place in (batch.folder / "task_results").iterdir():
        place.unlink()
    (batch.folder / "runs.txt").unlink()
    (batch.folder / "manifest.json").write_bytes(early)
    make_older(batch.folder)
    return batch.folder


def make_older(folder: Path) -> None:
    """Let the manifest be behind its journal."""
    written = (folder / "events.jsonl").stat().st_mtime_ns
    os.utime(folder / "manifest.json", ns=(written - 10**9, written - 10**9))


def stats(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    return {
        str(path.relative_to(folder)): (path.stat().st_ino, path.stat().st_mtime_ns, path.read_bytes())
        for path in folder.rglob("*")
        if path.is_file() and path.name != ".lock"
    }


def test_what_a_dead_process_left_is_brought_up_to_date(root: DataRoot, spec: RunSpec) -> None:
    folder = die(root, spec)
    assert [result["status"] for result in manifest(folder)["results"]] == ["pending"] * 3
    journal = (folder / "events.jsonl").read_bytes()
    refresh_abandoned(root)
    found = manifest(folder)
    assert found == BatchState.load(folder).manifest()
    assert [(result["status"], result["attempt"]) for result in found["results"]] == [
        ("launched", 1),
        ("running", 1),
        ("pending", 0),
    ]
    assert (folder / "runs.txt").read_text() == "".join(f"data/runs/{folder.name}-{n}\n" for n in range(3))
    assert [path.name for path in (folder / "task_results").iterdir()] == [f"{folder.name}-0.json"]
    assert json.loads((folder / f"task_results/{folder.name}-0.json").read_text()) == found["results"][0]
    assert (folder / "events.jsonl").read_bytes() == journal
    assert not list(folder.rglob("*.tmp"))


def test_what_is_up_to_date_is_not_written_again(root: DataRoot, spec: RunSpec) -> None:
    folder = die(root, spec)
    refresh_abandoned(root)
    before = stats(folder)
    refresh_abandoned(root)
    assert stats(folder) == before
    batch = create(root, spec, "other")
    end(batch, batch.results[0])
    batch.close(finished=True)
    before = stats(batch.folder)
    refresh_abandoned(root)
    assert stats(batch.folder) == before


def test_a_batch_at_work_is_left_alone(root: DataRoot, spec: RunSpec) -> None:
    folder = die(root, spec)
    before = stats(folder)
    began = time.monotonic()
    with FileLock(folder / ".lock"):
        refresh_abandoned(root)
        assert stats(folder) == before
    assert time.monotonic() - began < 5
    refresh_abandoned(root)
    assert stats(folder) != before


def test_one_batch_that_cannot_be_refreshed_does_not_keep_others_from_it(
    root: DataRoot, spec: RunSpec, places: Sequence[str]
) -> None:
    damaged = root.rollouts / "bench" / places[0]
    (damaged / "events.jsonl").write_bytes(b"nonsense\n")
    make_older(damaged)
    gone = root.rollouts / "bench" / places[1]
    (gone / "events.jsonl").unlink()
    before = stats(damaged), stats(gone)
    folder = die(root, spec)
    refresh_abandoned(root)
    assert (stats(damaged), stats(gone)) == before
    assert manifest(folder) == BatchState.load(folder).manifest()


def test_where_nothing_was_run_nothing_is_refreshed(root: DataRoot) -> None:
    refresh_abandoned(root)
    assert not root.path.exists()


# --- finding batches ----------------------------------------------------------------------------------------------


@pytest.fixture
def places(root: DataRoot, spec: RunSpec) -> Sequence[str]:
    stamps = ("20260101__10-00-00", "20260102__09-00-00", "20260102__11-00-00", "20260103__08-00-00")
    for stamp in stamps:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(store, "_claim_stamp", lambda root, name, stamp=stamp: claim(root, name, stamp))
            create(root, spec).close(finished=True)
    return stamps


def claim(root: DataRoot, name: str, stamp: str) -> str:
    (root.rollouts / name / stamp).mkdir(parents=True)
    return stamp


def test_without_more_the_newest_batch_is_meant(root: DataRoot, places: Sequence[str]) -> None:
    assert find_batch(root, "bench").stamp == places[-1]


def test_a_stamp_means_its_batch_and_a_day_its_newest(root: DataRoot, places: Sequence[str]) -> None:
    assert find_batch(root, "bench", places[0]).stamp == places[0]
    assert find_batch(root, "bench", "20260102").stamp == places[2]


@pytest.mark.parametrize("rollout", ["20260104", "2026", "20260101__10-00-01", "../x", ""])
def test_a_batch_that_is_not_there_is_told_with_the_newest(rollout: str, root: DataRoot, places: Sequence[str]) -> None:
    with pytest.raises(NotFoundError, match=rf"no batch {rollout}; the newest are .*{places[-1]}$") as caught:
        find_batch(root, "bench", rollout)
    assert caught.value.exit_code == ExitCode.USAGE


def test_a_name_that_is_not_there_is_told_with_a_guess(root: DataRoot, places: Sequence[str]) -> None:
    with pytest.raises(NotFoundError, match=r"no batch of a benchmark bnch; did you mean bench\?$"):
        find_batch(root, "bnch")
    with pytest.raises(NotFoundError, match=r"no batch of a benchmark zzz; there are bench$"):
        find_batch(root, "zzz")


@pytest.mark.parametrize("name", ["../x", "", "/etc", "a b"])
def test_a_name_that_is_none_is_told(name: str, root: DataRoot) -> None:
    with pytest.raises(NotFoundError, match="is not the name of a benchmark"):
        find_batch(root, name)


def test_nothing_run_yet_is_told(root: DataRoot) -> None:
    assert batches(root) == []
    assert describe_batches(root, None) == []
    with pytest.raises(NotFoundError, match="nothing was run here yet"):
        find_batch(root, "bench")


def test_folders_that_are_no_batches_do_not_count(root: DataRoot, places: Sequence[str]) -> None:
    for name in ("bench/notes", "bench/20260105__00-00-00", "temp/20260105__00-00-00", ".hidden/20260105__00-00-00"):
        (root.rollouts / name).mkdir(parents=True, exist_ok=True)
    (root.rollouts / "file").touch()
    assert [place.stamp for place in batches(root)] == list(places)


@pytest.mark.parametrize("written", [b"", b'{"event": "batch", "na'])
def test_a_batch_killed_before_its_plan_was_on_disk_does_not_count(
    written: bytes, root: DataRoot, places: Sequence[str]
) -> None:
    folder = root.rollouts / "bench/20260105__00-00-00"
    folder.mkdir()
    (folder / "events.jsonl").write_bytes(written)
    assert find_batch(root, "bench").stamp == places[-1]
    assert len(describe_batches(root, None)) == len(places)


def test_batches_are_described(root: DataRoot, spec: RunSpec) -> None:
    batch = create(root, spec, count=3)
    end(batch, batch.results[0])
    batch.close(finished=False)
    assert describe_batches(root, "bench") == [
        {
            "name": "bench",
            "stamp": batch.stamp,
            "state": "stopped",
            "backend": "local",
            "runs": 3,
            "status": {"launched": 1, "pending": 2},
            "finished_at": None,
            "rollout_dir": f"data/rollouts/bench/{batch.stamp}",
        }
    ]


DAMAGE = {
    "no JSON": b"nonsense\n",
    "zeros": b"\0" * 100 + b"\n",
    "no table": b"[1]\n",
    "a number": b"5\n",
    "no event": b"{}\n",
    "an unknown run": b'{"event": "started", "at": "x", "run_id": "x", "attempt": 1}\n',
    "no run": b'{"event": "ended", "at": "x"}\n',
    "half a run": b'{"event": "ended", "run": {"run_id": "x"}}\n',
    "a run that is none": b'{"event": "ended", "run": null}\n',
    "no UTF-8": b'{"event": "\xff"}\n',
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_journal_does_not_hide_other_batches(
    damage: str, root: DataRoot, places: Sequence[str], caplog: pytest.LogCaptureFixture
) -> None:
    journal = root.rollouts / "bench" / places[1] / "events.jsonl"
    with journal.open("ab") as lines:
        lines.write(DAMAGE[damage])
    rows = describe_batches(root, None)
    assert [row["stamp"] for row in rows] == [places[0], *places[2:]]
    assert len(caplog.messages) == 1
    assert caplog.messages[0].startswith(f"{journal}: ")
    assert "damaged" in caplog.messages[0]
    with pytest.raises(StoreError, match="damaged"):
        BatchState.load(journal.parent)


def test_paths_are_relative_below_the_current_directory_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert shown_path(Path("a/b")) == "a/b"
    assert shown_path(tmp_path / "a") == "a"
    assert shown_path(Path("/elsewhere")) == "/elsewhere"
    assert shown_path(Path("..")) == str(tmp_path.parent)
