"""Writes that are whole or not at all."""

import errno
import json
import os
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rollouts.errors import StoreError
from rollouts.files import Journal, make_folder, move_whole, read_journal, remove_stale, write_json, write_whole


def no_space(*arguments: object, **options: object) -> Any:
    raise OSError(errno.ENOSPC, "No space left on device")


def read(path: Path) -> list[dict[str, Any]]:
    return list(read_journal(path))


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    write_whole(tmp_path / "x", b"old")
    write_whole(tmp_path / "x", b"new")
    assert (tmp_path / "x").read_bytes() == b"new"
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_json_is_written_for_people(tmp_path: Path) -> None:
    write_json(tmp_path / "x", {"é": [1]})
    assert (tmp_path / "x").read_text() == '{\n  "é": [\n    1\n  ]\n}\n'


def watched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is done to the disk, in order."""
    steps: list[str] = []
    fsync, replace = os.fsync, Path.replace

    def watch_fsync(descriptor: int) -> None:
        name = Path(f"/proc/self/fd/{descriptor}").readlink()
        steps.append(f"sync {'folder' if name.is_dir() else f'file of {name.stat().st_size} bytes'}")
        fsync(descriptor)

    def watch_replace(self: Path, target: Path) -> Path:
        steps.append(f"rename to {Path(target).name}")
        return replace(self, target)

    monkeypatch.setattr(os, "fsync", watch_fsync)
    monkeypatch.setattr(Path, "replace", watch_replace)
    return steps


def test_content_is_on_disk_before_its_name_and_the_name_before_the_return(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = watched(monkeypatch)
    write_whole(tmp_path / "x", b"12345")
    assert steps == ["sync file of 5 bytes", "rename to x", "sync folder"]


def test_new_folders_are_on_disk_from_the_top_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(Path(f"/proc/self/fd/{descriptor}").readlink()))
    make_folder(tmp_path / "a/b/c")
    assert synced == [tmp_path, tmp_path / "a", tmp_path / "a/b"]
    make_folder(tmp_path / "a/b/c")
    assert len(synced) == 3


def test_a_moved_file_is_on_disk_before_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_bytes(b"12345")
    steps = watched(monkeypatch)
    move_whole(tmp_path / "a", tmp_path / "b")
    assert steps == ["sync file of 5 bytes", "rename to b", "sync folder"]
    assert (tmp_path / "b").read_bytes() == b"12345"


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_whole(tmp_path / "x", b"old")
    monkeypatch.setattr(os if step == "fsync" else Path, step, no_space)
    with pytest.raises(StoreError, match=r"/x: cannot be written: No space left on device$"):
        write_whole(tmp_path / "x", b"new")
    monkeypatch.undo()
    assert (tmp_path / "x").read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_a_folder_that_is_gone_is_told(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="No such file or directory"):
        write_whole(tmp_path / "gone/x", b"new")


def test_what_a_dead_process_left_is_removed_also_when_its_number_was_given_to_another(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as living:
        at_work, reused = (tmp_path / f".{name}.{living.pid}.1.tmp" for name in ("at_work", "reused"))
        for path in (at_work, reused, tmp_path / ".x.tmp"):
            path.touch()
        os.utime(reused, (0, time.time() - 3600))
        remove_stale(tmp_path)
        assert sorted(path.name for path in tmp_path.iterdir()) == sorted([at_work.name, ".x.tmp"])
        living.kill()
    remove_stale(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [".x.tmp"]


def test_many_threads_write_one_file_without_mixing(tmp_path: Path) -> None:
    def write(letter: str) -> None:
        for _ in range(10):
            write_whole(tmp_path / "x", letter.encode() * 10_000)

    threads = [threading.Thread(target=write, args=(letter,)) for letter in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set((tmp_path / "x").read_bytes())) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


# --- the journal --------------------------------------------------------------------------------------------------


def test_what_is_appended_is_read_back_in_order(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j")
    journal.append({"n": 1}, {"n": 2, "text": "é\n\u2028"}, sync=True)
    journal.append({"n": 3}, sync=False)
    assert [event["n"] for event in read(tmp_path / "j")] == [1, 2, 3]
    assert read(tmp_path / "j")[1]["text"] == "é\n\u2028"
    journal.close()


def test_appending_with_sync_syncs_and_without_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(tmp_path / "j")
    steps = watched(monkeypatch)
    journal.append({"n": 1}, sync=False)
    assert steps == []
    journal.append({"n": 2}, sync=True)
    assert steps == [f"sync file of {(tmp_path / 'j').stat().st_size} bytes"]
    journal.close()


def test_a_torn_last_line_is_ignored_when_read(tmp_path: Path) -> None:
    (tmp_path / "j").write_bytes(b'{"n": 1}\n{"n": 2')
    assert read(tmp_path / "j") == [{"n": 1}]
    assert (tmp_path / "j").read_bytes() == b'{"n": 1}\n{"n": 2'


def test_a_torn_last_line_is_cut_when_opened_for_writing(tmp_path: Path) -> None:
    (tmp_path / "j").write_bytes(b'{"n": 1}\n{"n": 2')
    journal = Journal(tmp_path / "j")
    journal.append({"n": 3}, sync=False)
    journal.close()
    assert read(tmp_path / "j") == [{"n": 1}, {"n": 3}]


def test_a_journal_of_one_torn_line_is_empty(tmp_path: Path) -> None:
    (tmp_path / "j").write_bytes(b'{"n"')
    Journal(tmp_path / "j").close()
    assert (tmp_path / "j").read_bytes() == b""


def test_a_damaged_line_in_the_middle_is_told(tmp_path: Path) -> None:
    (tmp_path / "j").write_bytes(b'{"n": 1}\n{"n": \n{"n": 3}\n')
    with pytest.raises(StoreError, match=r"/j: the journal is damaged: line \d is not valid JSON; "):
        read(tmp_path / "j")


def test_a_journal_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"/j: cannot be read: No such file or directory$"):
        read(tmp_path / "j")


def short_writes(write: Callable[[int, Any], int]) -> Callable[[int, Any], int]:
    return lambda descriptor, data: write(descriptor, bytes(data)[:3])


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(tmp_path / "j")
    monkeypatch.setattr(os, "write", short_writes(os.write))
    journal.append({"n": 1}, {"n": 2}, sync=False)
    journal.close()
    assert read(tmp_path / "j") == [{"n": 1}, {"n": 2}]


def test_a_write_that_stops_half_way_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(tmp_path / "j")
    journal.append({"n": 1}, sync=False)
    write, calls = os.write, []

    def full_disk(descriptor: int, data: Any) -> int:
        calls.append(descriptor)
        return write(descriptor, bytes(data)[:12]) if len(calls) == 1 else no_space()

    monkeypatch.setattr(os, "write", full_disk)
    with pytest.raises(StoreError, match="No space left on device"):
        journal.append({"n": 2}, {"n": 3}, sync=True)
    monkeypatch.undo()
    assert (tmp_path / "j").read_bytes() == b'{"n": 1}\n'
    journal.append({"n": 4}, sync=True)
    journal.close()
    assert read(tmp_path / "j") == [{"n": 1}, {"n": 4}]


def test_lines_of_many_threads_do_not_mix(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j")

    def append(letter: str) -> None:
        for number in range(50):
            journal.append({"who": letter, "n": number, "pad": "x" * 200}, sync=False)

    threads = [threading.Thread(target=append, args=(letter,)) for letter in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    journal.close()
    found = read(tmp_path / "j")
    assert all([event["n"] for event in found if event["who"] == letter] == list(range(50)) for letter in "abcd")
    assert json.dumps(found[0])
