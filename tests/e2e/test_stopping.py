"""Stopping a batch: what was done is kept, nothing is left, and the exit code says how it ended."""

import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from tests.command_line import SCRIPT, Project

PATIENCE_S = 60.0


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
