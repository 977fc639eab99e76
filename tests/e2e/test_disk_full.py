"""The disk is full: at whatever page it runs out, nothing is half written, one line says so, and `resume` goes on.

Each try has a small disk of its own with room for a few pages more than the one before.
"""

import contextlib
import errno
import json
import os
import random
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from rollouts.errors import StoreError
from rollouts.files import Journal, read_journal
from rollouts.workspace import capture_patch, prepare_source
from tests.kill_points import Commands, Tried
from tests.killed import Left, check_readable, check_scored, check_whole, finish, go_through, make_project, naming, same
from tests.samples import make_task, write_files

DISK_KB = 2048
PAGE_KB = 4
NO_SPACE = os.strerror(errno.ENOSPC)


@pytest.fixture(scope="module")
def commands() -> Iterator[Commands]:
    with Commands() as commands:
        yield commands


@pytest.fixture(scope="module")
def warm(commands: Commands, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache that has the task's source."""
    folder = make_project(tmp_path_factory.mktemp("warm"))
    ran = commands(folder, "run", "bench.toml")
    assert ran.code == 0, ran
    return folder / "data/cache"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small disk of the test's own."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK_KB}k", "tmpfs", str(place)], capture_output=True, text=True
    )
    if mounted.returncode and os.environ.get("CI"):
        pytest.fail(f"CI is set, so this test must run: {mounted.stderr}", pytrace=False)
    if mounted.returncode:
        pytest.skip(f"no disk can be mounted here (it needs root): {mounted.stderr}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True, capture_output=True)


def fill(disk: Path, left_kb: int) -> Path:
    """Leave so much room; removing the file that is returned gives the rest back."""
    state, filler = os.statvfs(disk), disk / "filler"
    with filler.open("wb") as stream:
        os.posix_fallocate(stream.fileno(), 0, state.f_bavail * state.f_frsize - left_kb * 1024)
    return filler


def project_on(disk: Path, cache: Path, folder: Path) -> Path:
    """A project whose data lie on that disk, all but the cache."""
    make_project(folder)
    for path in disk.iterdir():
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    (disk / "cache").symlink_to(cache)
    (folder / "data").symlink_to(disk)
    config = folder / "bench.toml"
    config.write_text(f"min_free_disk_mb = 0\nretries = 0\n{config.read_text()}")
    return folder


def check_told(ran: Tried) -> None:
    """One clear line at the end, and no traceback."""
    assert ran.code == 1, f"not told by the exit code: {ran}"
    last = ran.err.splitlines()[-1]
    assert last.endswith(f": cannot be written: {NO_SPACE}"), f"not told: {ran}"
    assert "Traceback" not in ran.err, f"a traceback: {ran}"


def test_disk_full_at_any_page_stops_run_with_one_line_and_resume_finishes(
    commands: Commands, warm: Path, disk: Path, tmp_path: Path
) -> None:
    def run_with(left_kb: int) -> Tried:
        folder = project_on(disk, warm, tmp_path / str(left_kb))
        filler = fill(disk, left_kb)
        ran = commands(folder, "run", "bench.toml")
        with naming(ran):
            left = Left.by(folder)
            if ran.code:
                check_told(ran)
            same("boxes left behind", commands.boxes(), [])
            check_readable(commands, folder)
            filler.unlink()
            finish(commands, folder, left)
            check_whole(folder, left)
        return ran

    go_through(iter(range(0, 60 * PAGE_KB, PAGE_KB)), run_with, until=lambda ran: ran.code == 0)


def test_disk_full_at_any_page_stops_eval_with_one_line_and_the_same_command_finishes(
    commands: Commands, warm: Path, disk: Path, tmp_path: Path
) -> None:
    def score_with(left_kb: int) -> Tried:
        folder = project_on(disk, warm, tmp_path / str(left_kb))
        assert commands(folder, "run", "bench.toml").code == 0
        filler = fill(disk, left_kb)
        scored = commands(folder, "eval", "bench")
        with naming(scored):
            left = Left.by(folder)
            if scored.code:
                check_told(scored)
            check_readable(commands, folder)
            filler.unlink()
            again = commands(folder, "eval", "bench")
            assert again.code == 0, f"eval: {again}"
            same("boxes left behind", commands.boxes(), [])
            check_scored(folder, left)
            check_whole(folder, left)
        return scored

    go_through(iter(range(0, 60 * PAGE_KB, PAGE_KB)), score_with, until=lambda ran: ran.code == 0)


def test_disk_full_in_the_middle_of_an_append_takes_it_back(disk: Path) -> None:
    with contextlib.closing(Journal(disk / "events.jsonl")) as journal:
        journal.append({"event": "first"}, sync=True)
        filler = fill(disk, PAGE_KB)
        before = (disk / "events.jsonl").read_bytes()
        with pytest.raises(StoreError, match=NO_SPACE):
            journal.append({"event": "large", "pad": "x" * 50_000}, sync=True)
        assert (disk / "events.jsonl").read_bytes() == before
        filler.unlink()
        journal.append({"event": "second"}, sync=True)
    assert [event["event"] for event in read_journal(disk / "events.jsonl")] == ["first", "second"]


def test_disk_full_while_a_patch_is_captured_never_gives_a_smaller_one(disk: Path, tmp_path: Path) -> None:
    source = prepare_source(make_task(tmp_path / "t"), tmp_path / "cache")
    after = {"small.txt": "small\n", "large.txt": "".join(f"{random.getrandbits(256):x}\n" for _ in range(1000))}

    def patch(outputs: Path) -> bytes:
        shutil.rmtree(tmp_path / "tree", ignore_errors=True)
        shutil.copytree(source.tree, tmp_path / "tree")
        write_files(tmp_path / "tree", after)
        return capture_patch(source.base_git, tmp_path / "tree", outputs)["diff.patch"].read_bytes()

    whole, refused = patch(tmp_path / "outputs"), 0
    for left_kb in range(0, 80 * PAGE_KB, 2 * PAGE_KB):
        filler = fill(disk, left_kb)
        try:
            assert patch(disk / "outputs") == whole, f"another patch with {left_kb} KB left"
            break
        except (StoreError, OSError):
            refused += 1
        finally:
            filler.unlink()
            shutil.rmtree(disk / "outputs", ignore_errors=True)
    assert refused > 5


def test_disk_full_a_flood_of_output_stops_the_batch_and_is_not_booked_on_the_agent(
    commands: Commands, warm: Path, disk: Path, tmp_path: Path
) -> None:
    folder = project_on(disk, warm, tmp_path / "flood")
    make_flood = f"head -c {2 * DISK_KB * 1024} /dev/zero | tr '\\\\0' x"
    config = folder / "bench.toml"
    config.write_text(config.read_text().replace('command = "', f'command = "{make_flood}; '))
    ran = commands(folder, "run", "bench.toml")
    check_told(ran)
    (state,) = (json.loads(line) for line in [commands(folder, "list", "--json").out])
    assert state["batches"][0]["status"] in ({"running": 1, "pending": 1}, {"sandbox_failed": 1, "pending": 1})
