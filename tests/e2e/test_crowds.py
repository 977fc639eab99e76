"""Many at once: boxes with a network, batches on one engine, commands on one batch; and what the dead leave."""

import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.command_line import Project
from tests.engines import OwnEngine, own_engine
from tests.soak import (
    PATIENCE_S,
    Process,
    batch_folder,
    check_complete,
    end,
    events,
    ready,
    said,
    start,
    wait_for,
)

docker = pytest.mark.docker
both = pytest.mark.parametrize("backend", ["local", pytest.param("docker", marks=docker)])
CROWD = 64
BATCHES = 16
GATE_PORT = 8000
QUICK = """
agent = "quick"
parallel = 2
[agents.quick]
command = "echo done >>hello.txt"
[[tasks]]
prepared_dir = "tasks/greet"
rollouts = 2
"""
LASTING = """
agent = "lasting"
parallel = 4
[agents.lasting]
command = "echo ready; sleep 600"
[[tasks]]
prepared_dir = "tasks/greet"
rollouts = 4
"""


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A project with one task."""
    project = Project(tmp_path)
    project.task()
    return project


@pytest.fixture
def place(backend: str, tmp_path: Path) -> Iterator["Place"]:
    """Somewhere to make boxes that nobody else uses."""
    if backend == "docker":
        with own_engine() as engine:
            yield Place(backend, engine.environ, engine, tmp_path)
    else:
        boxes = tmp_path / "boxes"
        boxes.mkdir()
        yield Place(backend, {"TMPDIR": str(boxes)}, None, boxes)


class Place:
    """A backend of the test's own: what commands must know to use it, and what is in there."""

    def __init__(self, backend: str, env: dict[str, str], engine: OwnEngine | None, folder: Path) -> None:
        self.backend, self.env, self._engine, self._folder = backend, env, engine, folder

    def boxes(self) -> set[str]:
        """What is there now."""
        if self._engine:
            return set(self._engine.boxes())
        return {str(path) for path in self._folder.glob("rollouts-*/*")}


# --- network pool ------------------------------------------------------------------------------------------------


@docker
def test_network_pool_64_boxes_with_a_network_at_once_make_none_of_their_own(project: Project, tmp_path: Path) -> None:
    with own_engine(networked=True) as engine:
        gate = tmp_path / "gate"
        gate.mkdir()
        address = engine.serve(gate, GATE_PORT)
        project.config(
            f'agent = "waiting"\nparallel = {CROWD}\n[network]\nmode = "open"\n[limits]\nmemory_mb = 64\n'
            f'[agents.waiting]\ncommand = "until wget -q -O - http://{address}/open; do sleep 1; done >>hello.txt"\n'
            f'[[tasks]]\nprepared_dir = "tasks/greet"\nrollouts = {CROWD}\n'
        )
        with engine.client() as client:
            before = {network["Name"] for network in client.networks()}
            process = start(project, "run", "bench.toml", "--backend", "docker", env=engine.environ)
            try:
                wait_for(lambda: len(client.containers()) == CROWD, "all boxes are open", process)
                assert {network["Name"] for network in client.networks()} == before
                (gate / "open").write_text("done\n")
                assert process.wait(PATIENCE_S) == 0, said(project)
            finally:
                end(process)
            assert {network["Name"] for network in client.networks()} == before
        check_complete(project, CROWD)
        assert {result["attempt"] for result in project.manifest()["results"]} == {1}
        assert engine.boxes() == []


# --- many batches ------------------------------------------------------------------------------------------------


@both
def test_sixteen_batches_at_once_share_no_stamp_and_leave_each_others_boxes_alone(
    project: Project, place: Place
) -> None:
    names = ["same"] * (BATCHES // 2) + [f"other{number}" for number in range(BATCHES // 2)]
    for name in set(names):
        project.config(f'name = "{name}"\n{QUICK}', f"{name}.toml")
    processes = [start(project, "run", f"{name}.toml", "--backend", place.backend, env=place.env) for name in names]
    try:
        codes = [process.wait(PATIENCE_S) for process in processes]
    finally:
        end(*processes)
    assert codes == [0] * BATCHES, said(project)
    manifests = [json.loads(path.read_text()) for path in project.folder.glob("data/rollouts/*/*/manifest.json")]
    assert sorted(manifest["name"] for manifest in manifests) == sorted(names)
    results = [result for manifest in manifests for result in manifest["results"]]
    assert len({result["run_id"] for result in results}) == 2 * BATCHES
    assert {(result["status"], result["attempt"]) for result in results} == {("launched", 1)}
    assert all(b"+done" in project.patch(result) for result in results)
    assert "left behind" not in said(project)
    assert place.boxes() == set()


# --- one batch ---------------------------------------------------------------------------------------------------


@both
def test_two_invocations_on_one_batch_the_second_is_refused_until_the_first_is_dead(
    project: Project, place: Place
) -> None:
    project.config(LASTING)
    first = start(project, "run", "bench.toml", "--backend", place.backend, env=place.env)
    try:
        wait_for(lambda: ready(project) == 4, "the first is at work", first)
        second = project("resume", "bench", env=place.env)
        assert second.code == 1
        assert str(first.pid) in second.err
        assert socket.gethostname() in second.err
        assert len(second.err.splitlines()) == 1
        assert first.poll() is None
    finally:
        end(first)
    project.config(LASTING.replace("echo ready; sleep 600", "echo done >>hello.txt"))
    changed = project("resume", "bench", env=place.env)
    assert changed.code == 2
    again = project("resume", "bench", "--force", env=place.env)
    assert again.code == 0, again.err
    check_complete(project, 4)
    assert next(event["pid"] for event in events(project) if event["event"] == "opened") == first.pid
    assert place.boxes() == set()


# --- orphans -----------------------------------------------------------------------------------------------------


@pytest.fixture
def living(tmp_path: Path, place: Place) -> Iterator[tuple[Process, set[str]]]:
    """A batch of someone else that is at work, and its boxes."""
    (tmp_path / "living").mkdir()
    project = Project(tmp_path / "living")
    project.task()
    project.config(LASTING.replace("rollouts = 4", "rollouts = 2"))
    process = start(project, "run", "bench.toml", "--backend", place.backend, env=place.env)
    try:
        wait_for(lambda: ready(project) == 2, "the other batch is at work", process)
        yield process, place.boxes()
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


@both
@pytest.mark.parametrize("command", ["run", "clean"])
def test_orphans_of_a_killed_orchestrator_are_removed_and_a_live_ones_boxes_stay(
    project: Project, place: Place, living: tuple[Process, set[str]], command: str
) -> None:
    other, theirs = living
    assert len(theirs) == 2
    project.config(LASTING)
    process = start(project, "run", "bench.toml", "--backend", place.backend, env=place.env)
    try:
        wait_for(lambda: ready(project) == 4, "four boxes are open", process)
        assert len(place.boxes()) == 6
    finally:
        end(process)
    project.config(QUICK, "quick.toml")
    arguments = ["run", "quick.toml", "--backend", place.backend] if command == "run" else ["clean"]
    ran = project(*arguments, env=place.env)
    assert ran.code == 0, ran.err
    assert place.boxes() == theirs
    assert other.poll() is None


def test_orphans_of_a_batch_that_was_killed_at_its_very_end_are_removed_by_resume(
    project: Project, tmp_path: Path
) -> None:
    boxes = tmp_path / "boxes"
    boxes.mkdir()
    project.config(QUICK)
    assert project("run", "bench.toml", "--backend", "local", env={"TMPDIR": str(boxes)}).code == 0
    journal = batch_folder(project) / "events.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    assert b'"finished"' in lines[-1]
    journal.write_bytes(b"".join(lines[:-1]))
    left = boxes / f"rollouts-{os.getuid()}" / "half-removed-1"
    left.mkdir()
    again = project("resume", "bench", env={"TMPDIR": str(boxes)})
    assert again.code == 0, again.err
    check_complete(project, 2)
    assert not left.exists()
