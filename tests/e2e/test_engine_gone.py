"""An engine that goes away while runs are in it, on an engine of the tests' own: the fault is never the model's."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.command_line import Project
from tests.engines import OwnEngine, own_engine
from tests.soak import PATIENCE_S, Process, check_complete, end, events, ready, said, start, wait_for

pytestmark = pytest.mark.docker
RUNS = 3
BENCHMARK = f"""
agent = "slow"
parallel = {RUNS}
retries = 0
[agents.slow]
command = "echo ready; sleep 6; echo done >>hello.txt"
[[tasks]]
prepared_dir = "tasks/greet"
rollouts = {RUNS}
"""
IMPATIENT = "import rollouts.outage as o; o.OUTAGE_LIMIT_S = 1.0; from rollouts.cli import main; main()"


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A few runs that take long enough to be hit, and no attempt to spare."""
    project = Project(tmp_path)
    project.task()
    project.config(BENCHMARK)
    return project


@pytest.fixture
def engine() -> Iterator[OwnEngine]:
    """The engine that goes away."""
    with own_engine() as engine:
        yield engine


@pytest.fixture
def started(project: Project, engine: OwnEngine) -> Iterator[Process]:
    """A batch with all its runs in the engine."""
    process = start(project, "run", "bench.toml", "--backend", "docker", env=engine.environ)
    wait_for(lambda: ready(project) == RUNS, "all runs are at work", process)
    yield process
    end(process)


def ends(project: Project) -> list[str]:
    """How attempts ended. The last run to begin was surely hit; on a slow machine others may have been done by then."""
    return [event["run"]["status"] for event in events(project) if event["event"] == "ended"]


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_engine_gone_mid_run_all_wait_for_it_and_no_attempt_is_used_up(
    project: Project, engine: OwnEngine, started: Process, how: str
) -> None:
    engine.stop() if how == "stop" else engine.kill()
    wait_for(lambda: "does not answer; waiting" in said(project), "the user is told", started)
    engine.start()
    assert started.wait(PATIENCE_S) == 0, said(project)
    assert said(project).count("answers again") == said(project).count("does not answer; waiting")
    assert "sandbox_failed" in ends(project)
    check_complete(project, RUNS)
    assert engine.boxes() == []


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_engine_gone_mid_run_and_back_before_anyone_looked_is_never_booked_on_the_model(
    project: Project, engine: OwnEngine, how: str
) -> None:
    project.config(BENCHMARK.replace("retries = 0", "retries = 3"))
    process = start(project, "run", "bench.toml", "--backend", "docker", env=engine.environ)
    try:
        wait_for(lambda: ready(project) == RUNS, "all runs are at work", process)
        process.send_signal(signal.SIGSTOP)
        engine.stop() if how == "stop" else engine.kill()
        engine.start()
        process.send_signal(signal.SIGCONT)
        assert process.wait(PATIENCE_S) == 0, said(project)
    finally:
        end(process)
    assert "sandbox_failed" in ends(project)
    check_complete(project, RUNS)
    assert engine.boxes() == []


def test_engine_gone_mid_run_for_good_ends_the_command_and_resume_finishes(project: Project, engine: OwnEngine) -> None:
    process = start(project, "run", "bench.toml", "--backend", "docker", env=engine.environ, script=IMPATIENT)
    try:
        wait_for(lambda: ready(project) == RUNS, "all runs are at work", process)
        engine.stop()
        assert process.wait(PATIENCE_S) == 4, said(project)
    finally:
        end(process)
    assert "did not answer for 1 s" in said(project)
    assert "sandbox_failed" in ends(project)
    assert project.manifest()["finished_at"] is None
    again = project("resume", "bench", env=engine.environ)
    assert again.code == 4
    assert "cannot reach the engine" in again.err
    engine.start()
    again = project("resume", "bench", env=engine.environ)
    assert again.code == 0, again.err
    check_complete(project, RUNS, also=("cancelled",))
    assert engine.boxes() == []
