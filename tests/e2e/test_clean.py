"""`clean`, as a user starts it: what killed processes left goes, what anybody may need stays, data only when agreed."""

import contextlib
import json
import os
import pty
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.boxes import Kind, containers_of, processes_with, start_holder
from tests.command_line import SCRIPT, Project

PATIENCE_S = 90.0
OLD = "20200101__00-00-00"
LEFT = ".manifest.json.999999999.1.tmp"
"""By a process that no machine has."""
NO_ENGINE = {"DOCKER_HOST": "unix:///no/engine.sock"}


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """With one batch of two runs that ended."""
    project = Project(tmp_path)
    project.task()
    project.config('agent = "nop"\n[[tasks]]\nprepared_dir = "tasks/greet"\nrollouts = 2\n')
    assert project("run", "bench.toml", "--backend", "local").code == 0
    return project


@pytest.fixture
def with_old(project: Project) -> Project:
    """And an old one."""
    data = project.folder / "data"
    (batch,) = (data / "rollouts/bench").iterdir()
    text = (data / f"rollouts/temp/rollout_bench__{batch.name}.json").read_text()
    (data / f"rollouts/temp/rollout_old__{OLD}.json").write_text(text)
    shutil.copytree(batch, data / "rollouts/old" / OLD)
    for index in range(2):
        shutil.copytree(data / f"runs/{batch.name}-{index}", data / f"runs/{OLD}-{index}")
    return project


def listing(project: Project) -> set[str]:
    """Everything below the data folder, without locks and what a process writes this moment."""
    data = project.folder / "data"
    found = {str(path.relative_to(data)) for path in data.rglob("*") if not path.name.endswith("lock")}
    return {name for name in found if not name.endswith(".tmp") or name.endswith(LEFT)}


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Return once `condition` holds."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain: {what}"
        time.sleep(0.05)


def boxes_of(kind: Kind, token: str) -> list[str]:
    """What is left of a holder's box."""
    if kind is Kind.DOCKER:
        return containers_of(f"run-{token}")
    return [str(box) for box in (Path(tempfile.gettempdir()) / f"rollouts-{os.getuid()}").glob(f"{token}-*")]


@pytest.mark.parametrize("kind", [Kind.PLAIN, pytest.param(Kind.DOCKER, marks=pytest.mark.docker)])
def test_orphans_are_removed_and_boxes_of_living_processes_stay(kind: Kind, tmp_path: Path) -> None:
    tokens = [f"clean{uuid.uuid4().hex[:10]}" for _ in range(3)]
    with contextlib.ExitStack() as stack:
        holders = []
        for token in tokens:
            holder = start_holder(kind, tmp_path / token, token)
            stack.callback(end, holder)
            holders.append(holder)
        end(holders[0])
        project = Project(tmp_path)
        would = project("clean", "--dry-run", "--json")
        assert would.code == 0
        named = [each["what"] for each in would.json()["removed"] if each["kind"] == "box"]
        assert not [what for what in named for token in tokens[1:] if token in what]
        done = project("clean")
        assert done.code == 0, done.err
        wait_until(lambda: not boxes_of(kind, tokens[0]) and not processes_with(tokens[0]), "the orphan is gone")
        assert not [line for line in done.out.splitlines() for token in tokens[1:] if token in line]
        for token in tokens[1:]:
            assert boxes_of(kind, token)
            assert processes_with(token)
    assert project("clean").code == 0
    wait_until(lambda: not any(boxes_of(kind, token) for token in tokens), "the others are gone too")


def end(holder: "subprocess.Popen[bytes]") -> None:
    """As a crash does it."""
    holder.kill()
    holder.communicate(timeout=PATIENCE_S)


@contextlib.contextmanager
def batch_at_work(project: Project, name: str) -> Iterator["subprocess.Popen[bytes]"]:
    """A batch whose run has begun and does not end."""
    text = 'agent = "command"\ncommand = "echo ready; sleep 600"\n[[tasks]]\nprepared_dir = "tasks/greet"\n'
    project.config(text, f"{name}.toml")
    command = [sys.executable, str(SCRIPT), "run", f"{name}.toml", "--backend", "local"]
    process = subprocess.Popen(command, cwd=project.folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: b"ready" in b"".join(logs_of(project, name)), "the run begins")
        yield process
    finally:
        process.kill()
        process.wait(PATIENCE_S)


def logs_of(project: Project, name: str) -> list[bytes]:
    data = project.folder / "data"
    stamps = [path.name for path in (data / "rollouts" / name).glob("2*")]
    return [log.read_bytes() for stamp in stamps for log in data.glob(f"runs/{stamp}-*/logs/agent.log")]


def test_what_a_killed_batch_left_goes_and_its_results_and_others_at_work_stay(project: Project) -> None:
    data = project.folder / "data"
    with batch_at_work(project, "alive"):
        with batch_at_work(project, "killed"):
            pass
        (killed,), (alive,) = ([*(data / "rollouts" / name).iterdir()] for name in ("killed", "alive"))
        for batch in (killed, alive):
            (batch / LEFT).write_text("half")
        before = listing(project)
        would = project("clean", "--dry-run", env=NO_ENGINE)
        assert listing(project) == before
        done = project("clean", env=NO_ENGINE)
        assert (would.code, done.code) == (0, 0)
        gone = {f"runs/{killed.name}-0/.outputs", f"rollouts/killed/{killed.name}/{LEFT}"}
        assert before - listing(project) == gone
        for name in gone:
            assert f"would remove temporary data/{name} (" in would.out
            assert f"removed temporary data/{name} (" in done.out
        assert (data / f"runs/{alive.name}-0/.outputs").exists()
    again = project("clean", "--json", env=NO_ENGINE).json()
    assert again["schema"] == 1
    assert [each for each in again["removed"] if f"runs/{alive.name}-0/.outputs" in each["what"]]
    assert again["failed"] == []


def test_a_missing_engine_is_said_in_one_line_and_no_error(project: Project) -> None:
    ran = project("clean", "--images", env=NO_ENGINE)
    assert ran.code == 0
    (line,) = ran.err.splitlines()
    assert line.startswith("[rollouts] what docker may have left is not looked at: docker: cannot reach the engine")


def test_nothing_to_remove_makes_nothing(tmp_path: Path) -> None:
    ran = Project(tmp_path)("clean", "--dry-run", "--runs-older-than", "1d", env=NO_ENGINE)
    assert ran.code == 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("age", ["soon", "30", "-3d"])
def test_a_bad_age_is_refused_with_what_is_expected(project: Project, age: str) -> None:
    ran = project("clean", "--yes", f"--runs-older-than={age}")
    assert ran.code == 2
    assert ran.err.strip().endswith(f'with h, d or w behind it, like 12h, 30d or 2w, got "{age}"')


def test_data_is_not_deleted_where_nobody_can_be_asked(with_old: Project) -> None:
    before = listing(with_old)
    ran = with_old("clean", "--runs-older-than", "30d", env=NO_ENGINE)
    assert ran.code == 2
    assert "give --yes" in ran.err
    assert listing(with_old) == before


def test_old_batches_are_deleted_with_yes_and_the_rest_can_still_be_used(with_old: Project) -> None:
    old = {name for name in listing(with_old) if OLD in name} | {"rollouts/old"}
    before = listing(with_old)
    would = with_old("clean", "--runs-older-than", "30d", "--dry-run", env=NO_ENGINE)
    assert f"would remove batch data/rollouts/old/{OLD} with 2 runs (" in would.out
    assert listing(with_old) == before
    done = with_old("clean", "--runs-older-than", "30d", "--yes", "--json", env=NO_ENGINE)
    assert done.code == 0, done.err
    document = done.json()
    (batch,) = [each for each in document["removed"] if each["kind"] == "batch"]
    assert (batch["what"], batch["runs"]) == (f"data/rollouts/old/{OLD}", 2)
    assert document["freed_bytes"] >= batch["bytes"] > 0
    assert before - listing(with_old) == old
    listed = with_old("list", "--json").json()["batches"]
    assert [(each["name"], each["runs"]) for each in listed] == [("bench", 2)]
    assert with_old("summarize", "bench").code == 0


@pytest.mark.parametrize(("answer", "code", "deleted"), [("y\n", 0, True), ("\n", 0, False), (None, 130, False)])
def test_data_is_deleted_only_after_a_yes_on_the_terminal(
    with_old: Project, answer: str | None, code: int, deleted: bool
) -> None:
    """No answer: Ctrl-C."""
    before = listing(with_old)
    terminal, theirs = pty.openpty()
    command = [sys.executable, str(SCRIPT), "clean", "--runs-older-than", "30d"]
    environ = {**os.environ, **NO_ENGINE}
    process = subprocess.Popen(command, cwd=with_old.folder, env=environ, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    try:
        assert b"Delete 1 batch with 2 runs, " in read_until(terminal, b"[y/N]")
        assert listing(with_old) == before
        os.write(terminal, answer.encode()) if answer is not None else process.send_signal(signal.SIGINT)
        read_until(terminal, None)
        assert process.wait(PATIENCE_S) == code
    finally:
        end(process)
        os.close(terminal)
    assert (with_old.folder / "data/rollouts/old").exists() != deleted
    if not deleted:
        assert listing(with_old) == before


def read_until(terminal: int, text: bytes | None) -> bytes:
    """What comes until `text` does; None: until the end."""
    said, deadline = b"", time.monotonic() + PATIENCE_S
    while text is None or text not in said:
        assert time.monotonic() < deadline, said
        if select.select([terminal], [], [], 1)[0]:
            try:
                data = os.read(terminal, 65536)
            except OSError:  # the other end is closed
                data = b""
            if not data:
                assert text is None, said
                break
            said += data
    return said


def test_a_batch_at_work_is_kept_whatever_its_age(project: Project) -> None:
    with batch_at_work(project, "alive"):
        ran = project("clean", "--runs-older-than", "0h", "--yes", env=NO_ENGINE)
        assert ran.code == 0, ran.err
        (kept,) = (project.folder / "data/rollouts/alive").iterdir()
        assert f"data/rollouts/alive/{kept.name}: kept, a process works on it" in ran.err
        assert not (project.folder / "data/rollouts/bench").exists()
        assert (project.folder / f"data/runs/{kept.name}-0/logs/agent.log").exists()


def test_a_clean_that_was_killed_is_finished_by_the_next(with_old: Project) -> None:
    """Other commands do not see what is half deleted."""
    data = with_old.folder / "data"
    (data / "rollouts/old" / OLD).rename(data / "rollouts/old" / f".deleting-{OLD}")
    shutil.rmtree(data / f"runs/{OLD}-1")
    assert [each["name"] for each in with_old("list", "--json").json()["batches"]] == ["bench"]
    ran = with_old("clean", env=NO_ENGINE)
    assert ran.code == 0
    assert f"removed batch data/rollouts/old/{OLD} with 1 run (" in ran.out
    assert not [name for name in listing(with_old) if OLD in name]


@pytest.mark.skipif(os.getuid() != 0 or not shutil.which("chattr"), reason="needs root and chattr")
def test_what_cannot_be_removed_is_named_and_the_exit_code_says_so(with_old: Project) -> None:
    stuck = with_old.folder / f"data/runs/{OLD}-0/result.json"
    if subprocess.run(["chattr", "+i", str(stuck)], capture_output=True).returncode:
        pytest.skip("this file system has no immutable files")
    try:
        ran = with_old("clean", "--runs-older-than", "30d", "--yes", env=NO_ENGINE)
    finally:
        subprocess.run(["chattr", "-i", str(stuck)], check=True)
    assert ran.code == 1
    assert f"cannot be removed: data/runs/{OLD}-0: " in ran.err
    assert with_old("clean", env=NO_ENGINE).code == 0
    assert not [name for name in listing(with_old) if OLD in name]


@pytest.mark.docker
def test_images_are_listed_with_what_they_free_and_the_base_is_not_among_them(
    tmp_path: Path, engine_image: str
) -> None:
    """Only listed: the engine is shared with other tests, which may be about to use theirs."""
    project = Project(tmp_path)
    project.task(**{"repo/unique": uuid.uuid4().hex})
    project.config('agent = "nop"\n[[tasks]]\nprepared_dir = "tasks/greet"\n')
    said = project("run", "bench.toml", "--backend", "docker", "-vv", env={"ROLLOUTS_BASE_IMAGE": engine_image})
    assert said.code == 0, said.err
    tag = next(word for word in (said.out + said.err).split() if word.startswith("rollouts/task:"))
    document = project("clean", "--images", "--dry-run", "--json").json()
    assert document["dry_run"] is True
    found = {each["what"]: each["bytes"] for each in document["removed"] if each["kind"] == "image"}
    assert 0 < found[tag] < 5_000_000
    assert not [name for name in found if not name.startswith("rollouts/")]
    assert json.dumps(document)
    subprocess.run(["docker", "image", "rm", tag], capture_output=True, check=True)


def test_ctrl_c_ends_it_with_130(with_old: Project) -> None:
    """In the middle of a wait: someone makes a batch and does not come to an end with it."""
    data = with_old.folder / "data"
    (data / "runs/20200202__00-00-00-0").mkdir()
    (data / "cache/locks").mkdir(exist_ok=True)
    lock = f"FileLock({str(data / 'cache/locks/batches.lock')!r})"
    hold = f"from filelock import FileLock\nimport time\nwith {lock}:\n print('held', flush=True)\n time.sleep(600)"
    holder = subprocess.Popen([sys.executable, "-c", hold], stdout=subprocess.PIPE)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        command, environ = [sys.executable, str(SCRIPT), "clean"], {**os.environ, **NO_ENGINE}
        process = subprocess.Popen(command, cwd=with_old.folder, env=environ, stderr=subprocess.PIPE)
        assert process.stderr is not None
        process.stderr.readline()  # the engine was asked: what follows waits
        said = interrupt(process)
        assert process.returncode == 130, said
    finally:
        end(holder)


def interrupt(process: "subprocess.Popen[bytes]") -> bytes:
    """Ctrl-C; again when Python was in a place where it lets none through, like a finalizer."""
    for _ in range(2):
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.communicate(timeout=4)[1]
    return process.communicate(timeout=PATIENCE_S)[1]
