"""Boxes that print without end: the orchestrator's memory stays flat, and logs keep their beginning and their end."""

import subprocess
import sys
from pathlib import Path

import pytest

from rollouts.logs import LOG_LIMIT_BYTES
from tests.command_line import SCRIPT, Project
from tests.soak import FULL

BOXES = 8
EACH_MB = 1024 if FULL else 100
"""Either way more than a log may hold."""
MEMORY_LIMIT_MB = 100
LINE = "0123456789abcdef" * 4
"""A short line: long ones are cheaper to pass on."""

_MEASURE = """
import resource, subprocess, sys
code = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL).returncode
print(code, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""
"""Asked by a small process: a program's peak begins with the size of the process that it was started from."""


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """Eight runs at once, each of which prints."""
    project = Project(tmp_path)
    project.task()
    flood = f"echo first; yes {LINE} | head -c {EACH_MB}M; echo; echo last"
    project.config(
        f'name = "flood"\nagent = "flood"\nparallel = {BOXES}\n'
        f'[agents.flood]\ncommand = "{flood}"\n'
        f'[[tasks]]\nprepared_dir = "tasks/greet"\nrollouts = {BOXES}\n'
    )
    return project


def peak_mb(project: Project, backend: str) -> tuple[int, float]:
    """The exit code of a batch, and the most memory that it, or any one process it waited for, ever held."""
    command = [sys.executable, str(SCRIPT), "run", "bench.toml", "--backend", backend]
    done = subprocess.run([sys.executable, "-c", _MEASURE, *command], cwd=project.folder, stdout=subprocess.PIPE)
    code, peak_kb = done.stdout.split()
    return int(code), int(peak_kb) / 1024


@pytest.mark.timeout(900)
@pytest.mark.parametrize("backend", ["local", pytest.param("docker", marks=pytest.mark.docker)])
def test_gigabytes_of_output_leave_memory_flat_and_logs_capped(project: Project, backend: str) -> None:
    code, memory_mb = peak_mb(project, backend)
    assert code == 0
    assert memory_mb < MEMORY_LIMIT_MB
    logs = sorted(project.folder.glob("data/runs/*/logs/agent.log"))
    assert len(logs) == BOXES
    for log in logs:
        content = log.read_bytes()
        assert len(content) <= LOG_LIMIT_BYTES + 100
        assert content.startswith(f"first\n{LINE}\n".encode())
        assert content.endswith(b"\nlast\n")
        left_out = EACH_MB * 1024 * 1024 + len(b"first\n\nlast\n") - LOG_LIMIT_BYTES
        assert content.count(f"\n[… {left_out} bytes of output left out here …]\n".encode()) == 1
        assert [path.name for path in log.parent.iterdir() if path.name.startswith(".")] == []
