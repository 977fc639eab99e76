"""Work locks: one holder at a time, named to whoever comes second, and known to have died."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from rollouts.errors import ExitCode, StoreError
from rollouts.locks import PATIENCE_S, WorkLock, held, holder, is_held
from rollouts.owner import Owner


def test_a_second_holder_is_refused_and_told_who_the_first_is(tmp_path: Path) -> None:
    lock = WorkLock(tmp_path / ".lock", "works on this batch")
    with pytest.raises(StoreError) as caught:
        WorkLock(tmp_path / ".lock", "works on this batch")
    assert str(caught.value) == f"{tmp_path}: process {os.getpid()} on {os.uname().nodename} works on this batch"
    assert caught.value.exit_code is ExitCode.NONE_SUCCEEDED
    lock.release()
    WorkLock(tmp_path / ".lock", "works").release()


def test_a_lock_names_its_holder_only_while_it_is_held(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    assert (holder(path), is_held(path)) == (None, False)
    with held(path, "works"):
        assert (holder(path), is_held(path)) == (Owner.current(), True)
    assert (holder(path), is_held(path)) == (None, False)


def test_who_fails_within_gives_the_lock_back(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), held(tmp_path / ".lock", "works"):
        _ = 1 / 0
    assert not is_held(tmp_path / ".lock")


def test_a_holder_that_was_killed_is_known_and_in_nobodys_way(tmp_path: Path) -> None:
    code = f"""
import os, pathlib, signal
from rollouts.locks import WorkLock
lock = WorkLock(pathlib.Path({str(tmp_path)!r}) / ".lock", "works")
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", code], timeout=60)
    assert done.returncode == -9
    left = holder(tmp_path / ".lock")
    assert left is not None
    assert left.is_dead()
    assert not is_held(tmp_path / ".lock")
    lock = WorkLock(tmp_path / ".lock", "works")
    assert holder(lock.path) == Owner.current()
    lock.release()


@pytest.mark.parametrize("content", [b"", b"nonsense", b"[1, 2]", b"\xff\xfe", b"{}"])
def test_a_file_that_names_nobody_is_a_free_lock(tmp_path: Path, content: bytes) -> None:
    (tmp_path / ".lock").write_bytes(content)
    assert (holder(tmp_path / ".lock"), is_held(tmp_path / ".lock")) == (None, False)
    WorkLock(tmp_path / ".lock", "works").release()


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match=r"\.lock"):
        WorkLock(tmp_path / "file" / ".lock", "works")
    (tmp_path / ".lock").mkdir()
    with pytest.raises(StoreError, match=r"\.lock"):
        WorkLock(tmp_path / ".lock", "works")


def test_a_lock_that_is_held_to_restore_what_the_dead_left_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    dead = replace(Owner.current(), start_time="1")
    path.write_text(dead.encode())
    lock = WorkLock(path, "works", restoring=True)
    assert holder(path) == dead
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(lambda: WorkLock(path, "works").release())
        with pytest.raises(TimeoutError):
            waiting.result(timeout=PATIENCE_S + 0.5)
        lock.release()
        waiting.result(timeout=60)


def test_who_restores_waits_for_nobody(tmp_path: Path) -> None:
    with held(tmp_path / ".lock", "works"), pytest.raises(StoreError):
        WorkLock(tmp_path / ".lock", "works", restoring=True)
