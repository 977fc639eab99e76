"""Stopping a batch: what was done is kept, nothing is left, and the exit code says how it ended."""

import contextlib
import os
import pty
import select
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest

from rollouts.backends.docker import BATCH_LABEL
from tests.boxes import processes_with, wait_until
from tests.command_line import SCRIPT, Project

PATIENCE_S = 120.0


@pytest.fixture
def project(tmp_path: Path) -> Project:
    project = Project(tmp_path)
    project.task()
    project.config(
        'agent = "command"\nparallel = 2\ncommand = "echo part >>hello.txt; echo ready; sleep 60"\n'
        '[[tasks]]\nprepared_dir = "tasks/greet"\nrollouts = 3\n'
    )
    return project


def start(project: Project, backend: str, *prefix: str) -> "subprocess.Popen[bytes]":
    """A batch whose first two runs have said `ready`."""
    command = [*prefix, sys.executable, str(SCRIPT), "run", "bench.toml", "--backend", backend]
    process = subprocess.Popen(command, cwd=project.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    deadline = time.monotonic() + PATIENCE_S
    while sum(b"ready" in log.read_bytes() for log in project.folder.glob("data/runs/*/logs/agent.log")) < 2:
        assert time.monotonic() < deadline, "the runs did not begin"
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    return process


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("backend", ["local", pytest.param("docker", marks=pytest.mark.docker)])
def test_a_stopped_batch_keeps_partial_patches_and_ends_soon(
    project: Project, backend: str, number: signal.Signals, code: int
) -> None:
    process = start(project, backend)
    process.send_signal(number)
    out, err = process.communicate(timeout=PATIENCE_S / 2)
    assert process.returncode == code
    assert b"stopping: open sandboxes are ended" in err
    assert b"Stopped: 0/3 tasks completed, 0 launched" in out
    results = project.manifest()["results"]
    assert [result["status"] for result in results] == ["cancelled", "cancelled", "pending"]
    for result in results[:2]:
        assert b"+part" in project.patch(result)
        assert result["changes"]["lines_added"] == 1


def test_a_terminal_that_hangs_up_twice_is_no_second_signal(project: Project) -> None:
    """Its shell tells it, and so does the kernel."""
    process = start(project, "local")
    for _ in range(2):
        process.send_signal(signal.SIGHUP)
        time.sleep(0.02)  # apart: two that are noted at once would be one
    process.communicate(timeout=PATIENCE_S / 2)
    assert process.returncode == 130
    assert [result["status"] for result in project.manifest()["results"]] == ["cancelled", "cancelled", "pending"]


def test_what_was_to_be_ignored_stays_ignored(project: Project) -> None:
    process = start(project, "local", "nohup")
    process.send_signal(signal.SIGHUP)
    time.sleep(0.5)
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=PATIENCE_S / 2)
    assert process.returncode == 143


def test_the_next_start_brings_the_manifest_of_a_killed_batch_up_to_date(project: Project) -> None:
    process = start(project, "local")
    process.kill()
    process.communicate()
    (batch,) = (project.folder / "data/rollouts/bench").iterdir()
    (batch / "manifest.json").write_text('{"results": []}')
    os.utime(batch / "manifest.json", (1, 1))
    project.config('agent = "nop"\n[[tasks]]\nprepared_dir = "tasks/greet"\n', "other.toml")
    assert project("run", "other.toml", "--backend", "local").code == 0
    assert [result["status"] for result in project.manifest()["results"]] == ["running", "running", "pending"]


@pytest.mark.docker
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_while_the_first_image_builds_ends_at_once(
    project: Project, number: signal.Signals, code: int
) -> None:
    never_built = f"ARG BASE_IMAGE\nFROM ${{BASE_IMAGE}}\nRUN sleep 40 # {uuid.uuid4()}\n"
    project.task("greet", Dockerfile=never_built)
    command = [sys.executable, str(SCRIPT), "run", "bench.toml", "--backend", "docker"]
    with subprocess.Popen(command, cwd=project.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        assert any(b"building" in line for line in process.stderr)
        begin = time.monotonic()
        process.send_signal(number)
        _, err = process.communicate(timeout=PATIENCE_S)
    assert time.monotonic() - begin < 20
    assert process.returncode == code
    assert err.decode().splitlines()[-1] == "stopped before anything was run"
    assert not (project.folder / "data/runs").exists()


# --- on a terminal -----------------------------------------------------------------------------------------------

TIDY = "trap 'echo tidy >tidy.txt; exit 0' TERM; echo part >>hello.txt; echo ready; while :; do sleep 0.1; done"
STUBBORN = "trap '' TERM; echo part >>hello.txt; echo ready; sh -c 'while :; do sleep 0.1; done' {token}"
BACKENDS = ["local", pytest.param("docker", marks=pytest.mark.docker)]


class Terminal:
    """A command on a terminal of its own, which someone watches and types on."""

    def __init__(self, project: Project, *arguments: str) -> None:
        self._master, slave = pty.openpty()
        command = ["setsid", "--ctty", sys.executable, str(SCRIPT), *arguments]
        self.process = subprocess.Popen(command, cwd=project.folder, stdin=slave, stdout=slave, stderr=slave)
        os.close(slave)
        self.shown = bytearray()
        self._closing = threading.Event()
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._watcher.start()

    def _watch(self) -> None:
        with contextlib.suppress(OSError):  # the other end is closed when the command has ended
            while not self._closing.is_set():
                if select.select([self._master], [], [], 0.1)[0]:
                    self.shown += os.read(self._master, 65536)

    def press_ctrl_c(self) -> None:
        os.write(self._master, b"\x03")

    def close(self) -> None:
        """As when its window is closed, or the line breaks."""
        if not self._closing.is_set():
            self._closing.set()
            self._watcher.join()
            os.close(self._master)

    def wait(self) -> int:
        return self.process.wait(PATIENCE_S)


def write_config(project: Project, command: str, rollouts: int = 2) -> str:
    """A benchmark whose name no other test has; returns that name."""
    name = f"stop-{uuid.uuid4().hex[:12]}"
    project.config(
        f'name = "{name}"\nagent = "command"\nparallel = 2\ncommand = """{command}"""\n'
        f'[[tasks]]\nprepared_dir = "tasks/greet"\nrollouts = {rollouts}\n'
    )
    return name


def begun(project: Project) -> int:
    return sum(b"ready" in log.read_bytes() for log in project.folder.glob("data/runs/*/logs/agent.log"))


@contextlib.contextmanager
def on_terminal(project: Project, backend: str) -> Iterator[Terminal]:
    """A batch whose two runs have said `ready`."""
    terminal = Terminal(project, "run", "bench.toml", "--backend", backend)
    try:
        wait_until(lambda: begun(project) == 2 or terminal.process.poll() is not None, "the runs begin")
        assert terminal.process.poll() is None, bytes(terminal.shown)
        yield terminal
    finally:
        terminal.process.kill()
        terminal.process.wait()
        terminal.close()


def containers_of_batch(project: Project, name: str) -> list[str]:
    (batch,) = (project.folder / "data/rollouts" / name).iterdir()
    with contextlib.closing(docker.from_env()) as client:
        found = client.api.containers(all=True, filters={"label": f"{BATCH_LABEL}={name}/{batch.name}"})
    return [container["Id"] for container in found]


@pytest.mark.parametrize("backend", BACKENDS)
def test_ctrl_c_asks_agents_to_end_and_keeps_what_they_did(project: Project, backend: str) -> None:
    name = write_config(project, TIDY)
    with on_terminal(project, backend) as terminal:
        terminal.press_ctrl_c()
        assert terminal.wait() == 130, bytes(terminal.shown)
    assert b"stopping: open sandboxes are ended" in terminal.shown
    manifest = project.manifest(name)
    assert [result["status"] for result in manifest["results"]] == ["cancelled", "cancelled"]
    for result in manifest["results"]:
        patch = project.patch(result)
        assert b"+part" in patch
        assert b"+tidy" in patch, "it was told before it was killed"


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_second_ctrl_c_leaves_at_once_and_leaves_no_box(project: Project, backend: str) -> None:
    token = f"token{uuid.uuid4().hex}"
    name = write_config(project, STUBBORN.format(token=token))
    with on_terminal(project, backend) as terminal:
        assert processes_with(token)
        terminal.press_ctrl_c()
        wait_until(lambda: b"again to leave at once" in terminal.shown, "the first is seen")
        terminal.press_ctrl_c()
        assert terminal.wait() == 130
    wait_until(lambda: not processes_with(token), "the agents are dead")
    if backend == "docker":
        wait_until(lambda: not containers_of_batch(project, name), "no container is left")
    assert {result["status"] for result in project.manifest(name)["results"]} <= {"pending", "running", "cancelled"}


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_terminal_that_is_closed_stops_the_batch_like_ctrl_c(project: Project, backend: str) -> None:
    name = write_config(project, TIDY)
    with on_terminal(project, backend) as terminal:
        terminal.close()
        assert terminal.wait() == 130
    manifest = project.manifest(name)
    assert [result["status"] for result in manifest["results"]] == ["cancelled", "cancelled"]
    assert all(b"+tidy" in project.patch(result) for result in manifest["results"])
    if backend == "docker":
        assert not containers_of_batch(project, name)


# --- in a pipe, from cron ----------------------------------------------------------------------------------------


def test_a_reader_that_leaves_does_not_stop_the_batch(project: Project) -> None:
    name = write_config(project, "echo part >>hello.txt", rollouts=3)
    command = [sys.executable, str(SCRIPT), "run", "bench.toml", "--backend", "local", "--parallel", "1"]
    with subprocess.Popen(command, cwd=project.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith(b"[rollouts] config=")
        process.stdout.close()  # as `| head -1` does
        lines = process.stderr.read().splitlines()
        assert process.wait(PATIENCE_S) == 0
        assert [line for line in lines if b"a dead process left" not in line] == []  # of tests before this one
    manifest = project.manifest(name)
    assert [result["status"] for result in manifest["results"]] == ["launched"] * 3
    assert manifest["finished_at"] is not None


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_start_like_crons_works(project: Project, backend: str) -> None:
    """No terminal, nothing to read from, next to no variables, SIGHUP ignored."""
    name = write_config(project, "echo part >>hello.txt")
    (project.folder / "cron.sh").write_text('trap "" HUP; exec "$@" <&- >cron.log 2>&1\n')
    environ = {name: os.environ[name] for name in ("ROLLOUTS_BASE_IMAGE", "DOCKER_HOST") if name in os.environ}
    environ |= {"PATH": "/usr/bin:/bin", "HOME": "/", "SHELL": "/bin/sh"}
    command = ["setsid", "--wait", "sh", "cron.sh", sys.executable, str(SCRIPT), "run", "bench.toml"]
    done = subprocess.run([*command, "--backend", backend], cwd=project.folder, env=environ, timeout=PATIENCE_S * 2)
    log = (project.folder / "cron.log").read_text()
    assert done.returncode == 0, log
    assert "All 2 tasks completed!" in log
    assert [result["status"] for result in project.manifest(name)["results"]] == ["launched", "launched"]
