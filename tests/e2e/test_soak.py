"""The soak: a batch whose orchestrator is killed every few seconds, on an engine that goes down too, loses nothing."""

from pathlib import Path

import pytest

from tests.command_line import Project
from tests.engines import own_engine
from tests.soak import FULL, Soak, check_complete, said

RUNS = 200 if FULL else 24
LIMIT_S = 1500.0 if FULL else 240.0
MOST_BETWEEN = 16 if FULL else 8
SEED = 4
BENCHMARK = """
agent = "quick"
parallel = 4
retries = 3
[agents.quick]
command = "echo done >>hello.txt"
[[tasks]]
prepared_dir = "tasks/greet"
"""

pytestmark = pytest.mark.timeout(LIMIT_S + 120)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """Many quick runs."""
    project = Project(tmp_path)
    project.task()
    project.config(f"{BENCHMARK}rollouts = {RUNS}\n")
    return project


@pytest.mark.docker
def test_soak_every_run_is_finished_once_though_orchestrator_and_engine_die(project: Project) -> None:
    with own_engine() as engine:

        def crash() -> None:
            engine.kill()
            engine.start()

        faults = {RUNS // 2: engine.restart, **({RUNS * 3 // 4: crash} if FULL else {})}
        soak = Soak(project, "docker", engine.environ, MOST_BETWEEN, LIMIT_S, SEED, faults)
        assert soak.run() == 0, said(project)[-3000:]
        assert soak.kills >= 3
        assert not soak.faults
        check_complete(project, RUNS)
        assert engine.boxes() == []
        with engine.client() as client:
            assert client.containers(all=True) == []
            assert not client.volumes()["Volumes"]


def test_soak_without_an_engine_every_run_is_finished_once(project: Project, tmp_path: Path) -> None:
    boxes = tmp_path / "boxes"
    boxes.mkdir()
    soak = Soak(project, "local", {"TMPDIR": str(boxes)}, MOST_BETWEEN, LIMIT_S, SEED)
    assert soak.run() == 0, said(project)[-3000:]
    assert soak.kills >= 3
    check_complete(project, RUNS)
    assert [path for folder in boxes.iterdir() for path in folder.iterdir()] == []
