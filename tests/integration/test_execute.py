"""One run, start to end: its status, what is kept of it, and what must not be in anything that is kept."""

import contextlib
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import docker
import pytest

from rollouts.backends import base, disk_use
from rollouts.backends.base import Backend, BoxPaths, Ended, Finding, Image, Job, JobResult, LogSink
from rollouts.backends.bubblewrap import Isolation
from rollouts.config import Benchmark, DockerSettings
from rollouts.errors import JobCancelled, SandboxFailed, StoreError
from rollouts.execute import Finished, execute_run
from rollouts.plan import RunSpec, make_plan
from rollouts.prepare import Preparation
from rollouts.results import RunResult, Status
from rollouts.task_folder import load_task
from tests.boxes import Collector, Kind, base_image, containers_of, local_trouble, make_task, open_kind, processes

RUN_ID = f"20260101__00-00-00-{os.getpid()}"
SECRET = "sk-very-secret-value-0123456789"


@pytest.fixture(scope="module", autouse=True)
def _short_grace() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(base, "GRACE_S", 1.0)
        yield


def _best_local() -> Kind:
    return next(kind for kind in (Kind.ROOT, Kind.USER, Kind.PLAIN) if local_trouble(kind) is None)


@pytest.fixture(scope="module", params=["local", pytest.param("docker", marks=pytest.mark.docker)])
def backend(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Backend]:
    """Each backend at its best."""
    kind = Kind.DOCKER if request.param == "docker" else _best_local()
    with contextlib.closing(open_kind(kind, tmp_path_factory.mktemp("cache"))) as backend:
        yield backend


@dataclass
class Bench:
    """Runs commands as an agent of a benchmark's own."""

    folder: Path
    backend: Backend

    def spec(self, command: str, *, task: dict[str, Any] | None = None, **settings: Any) -> tuple[Benchmark, RunSpec]:
        folder = self.folder / "task"
        make_task(folder, **(task or {}))
        table = {"command": command, "env": ["THE_KEY"]}
        entry = {"prepared_dir": str(folder), "model": "some-model", **settings.pop("entry", {})}
        network = {"mode": "none"}
        fields = {"name": "bench", "agent": "mine", "agents": {"mine": table}, "tasks": [entry], "network": network}
        fields["docker"] = {"base_image": settings.pop("base_image", base_image())}
        benchmark = Benchmark.model_validate({**fields, **settings})
        return benchmark, make_plan(benchmark, [[load_task(folder)]])[0]

    def run(self, command: str, *, attempt: int = 1, echo: LogSink | None = None, **settings: Any) -> "Outcome":
        """Run one command to its end; its box is given back."""
        benchmark, spec = self.spec(command, **settings)
        begun = _begun(spec, attempt)
        preparation = Preparation(benchmark, self.backend, self.folder / "cache")
        place = self.folder / "runs" / begun.run_id
        finished = execute_run(spec, begun, place, preparation, self.backend, echo or Collector())
        finished.free()
        return Outcome(finished, place)


def _begun(spec: RunSpec, attempt: int) -> RunResult:
    return RunResult(
        task_dir=str(spec.task.folder),
        run_id=RUN_ID,
        status=Status.RUNNING,
        launch_rc=None,
        run_dir="",
        task_id=spec.task.task_id,
        model=spec.model,
        agent=spec.agent,
        rollout=spec.rollout,
        key=spec.key,
        attempt=attempt,
    )


@dataclass(frozen=True)
class Outcome:
    """A run that has ended, and its folder."""

    finished: Finished
    place: Path

    @property
    def result(self) -> RunResult:
        return self.finished.result

    def read(self, name: str) -> str:
        return (self.place / name).read_text()


@pytest.fixture
def bench(backend: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """A place to run in, with the agent's key in the environment."""
    monkeypatch.setenv("THE_KEY", SECRET)
    return Bench(tmp_path, backend)


@pytest.fixture
def boxed_bench(bench: Bench) -> Bench:
    """The same, where boxes have walls. Without them `kill -9 -1` would end every process of the user."""
    if bench.backend.versions().get("isolation") == Isolation.NONE:
        pytest.skip("a plain process is not isolated")
    return bench


# --- how a run ends ----------------------------------------------------------------------------------------------


def test_a_run_that_exits_0_is_launched_and_everything_is_in_its_folder(bench: Bench) -> None:
    ran = bench.run("echo hello to {model}; cat {instructions}; echo new >new.txt; rm gone.txt")
    assert (ran.result.status, ran.result.launch_rc, ran.result.error) == (Status.LAUNCHED, 0, None)
    assert ran.result.changes == {"files": 2, "lines_added": 1, "lines_removed": 1}
    assert ran.result.duration_s is not None
    assert ran.result.finished_at is not None
    assert ran.read("logs/agent.log") == "hello to some-model\nSay hello.\n"
    assert "+new" in ran.read("artifacts/diff.patch")
    assert "ended: exited, exit code 0" in ran.read("logs/sandbox.log")
    assert {path.name for path in ran.place.iterdir()} == {"artifacts", "logs", "result.json"}


def test_result_json_says_the_same_as_the_result(bench: Bench) -> None:
    ran = bench.run("exit 4")
    assert RunResult.from_json(json.loads(ran.read("result.json"))) == ran.result


def test_repo_info_names_the_source(bench: Bench) -> None:
    ran = bench.run("true")
    info = json.loads(ran.read("artifacts/repo_info.json"))
    assert info["origin"] == str(bench.folder / "task" / "repo")
    assert info["commit"] is None
    assert len(info["base_commit"]) == 40


def test_an_agent_that_exits_otherwise_has_failed_and_its_patch_is_kept(bench: Bench) -> None:
    ran = bench.run("echo half >half.txt; exit 7")
    assert (ran.result.status, ran.result.launch_rc) == (Status.AGENT_FAILED, 7)
    assert ran.result.error is not None
    assert (ran.result.error.stage, ran.result.error.message) == ("agent", "the agent exited with 7")
    assert "+half" in ran.read("artifacts/diff.patch")


def test_a_timed_out_run_keeps_its_partial_patch(bench: Bench) -> None:
    ran = bench.run("echo half >half.txt; echo thinking; sleep 60", timeout_s=1.0)
    assert (ran.result.status, ran.result.launch_rc) == (Status.TIMEOUT, None)
    assert ran.result.error is not None
    assert ran.result.error.stage == "agent"
    assert "time limit" in ran.result.error.message
    assert "+half" in ran.read("artifacts/diff.patch")
    assert ran.read("artifacts/notes.md") == "thinking\n"


def test_timeout_sec_of_a_task_entry_is_the_time_limit(bench: Bench) -> None:
    entry = {"environment_variables": {"TIMEOUT_SEC": "1", "EXTRA": "passed on"}}
    ran = bench.run('echo "$EXTRA"; sleep 60', entry=entry)
    assert ran.result.status is Status.TIMEOUT
    assert ran.read("logs/agent.log") == "passed on\n"


def test_a_run_that_writes_too_much_says_so_and_keeps_its_patch(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "LOOK_EVERY_S", 0.1)
    monkeypatch.setattr(disk_use, "LOOK_EVERY_S", 0.1)
    script = "echo half >half.txt; for n in 1 2; do head -c 12000000 /dev/urandom >$HOME/$n; done; sleep 60"
    ran = bench.run(script, limits={"disk_mb": 16})
    assert (ran.result.status, ran.result.launch_rc) == (Status.AGENT_FAILED, None)
    assert ran.result.error is not None
    assert ran.result.error.message == "wrote more than 16 MB, limits.disk_mb"
    assert "+half" in ran.read("artifacts/diff.patch")


def test_the_profile_reaches_the_box(bench: Bench) -> None:
    uid = bench.run("id -u; echo x >x", profile="compat")
    assert uid.result.status is Status.LAUNCHED
    assert (uid.read("logs/agent.log") == "0\n") == (bench.backend.name == "docker"), "local boxes know no profiles"
    assert "+x" in uid.read("artifacts/diff.patch")


def test_a_run_out_of_memory_says_so_and_keeps_its_patch(bench: Bench) -> None:
    hog = "import time; x = b'x' * (400 << 20); time.sleep(30)"
    ran = bench.run(f'echo half >half.txt; exec python3 -c "{hog}"', limits={"memory_mb": 96})
    assert (ran.result.status, ran.result.launch_rc) == (Status.OUT_OF_MEMORY, None)
    assert "+half" in ran.read("artifacts/diff.patch")


def test_an_agent_that_ends_its_own_sandbox_has_failed(boxed_bench: Bench) -> None:
    ran = boxed_bench.run("echo half >half.txt; kill -9 -1")
    assert (ran.result.status, ran.result.launch_rc) == (Status.AGENT_FAILED, None)
    assert "+half" in ran.read("artifacts/diff.patch")


def test_a_box_killed_from_outside_is_never_booked_on_the_agent(boxed_bench: Bench) -> None:
    echo = _OnOutput(_kill_containers if boxed_bench.backend.name == "docker" else _kill_bubblewrap)
    ran = boxed_bench.run("echo started; sleep 60", echo=echo)
    assert ran.result.status is Status.SANDBOX_FAILED
    assert ran.result.error is not None
    assert (ran.result.error.stage, ran.result.error.type) == ("sandbox", "SandboxFailed")
    assert "killed from outside" in ran.read("logs/sandbox.log")


class _OnOutput:
    """A sink that does something once, beside the run, at the first output."""

    def __init__(self, action: Callable[[], None]) -> None:
        self._action: Callable[[], None] | None = action

    def __call__(self, data: bytes) -> None:
        if self._action is not None and b"started" in data:
            threading.Thread(target=self._action, daemon=True).start()
            self._action = None


def _kill_bubblewrap() -> None:
    for pid, words in processes():
        if words[0].endswith("/bwrap") and any(RUN_ID in word for word in words):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _kill_containers() -> None:
    with contextlib.closing(docker.from_env()) as client:
        for container in containers_of(RUN_ID):
            client.api.kill(container)


def test_a_source_that_cannot_be_had_fails_in_its_stage(bench: Bench) -> None:
    ran = bench.run("true", task={"repo": {"git_url": "/no/such/repository"}})
    assert ran.result.status is Status.SANDBOX_FAILED
    assert ran.result.error is not None
    assert (ran.result.error.stage, ran.result.error.type) == ("source", "SandboxFailed")
    assert "/no/such/repository" in ran.result.error.message
    assert json.loads(ran.read("result.json"))["status"] == "sandbox_failed"


@pytest.mark.docker
def test_a_missing_base_image_fails_in_the_stage_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THE_KEY", SECRET)
    nowhere = DockerSettings(base_image="localhost:1/no/such:image")
    with contextlib.closing(open_kind(Kind.DOCKER, tmp_path / "cache", nowhere)) as backend:
        ran = Bench(tmp_path, backend).run("true")
    assert ran.result.error is not None
    assert (ran.result.status, ran.result.error.stage) == (Status.SANDBOX_FAILED, "image")
    assert (ran.result.error.type, "\n" in ran.result.error.message) == ("SandboxFailed", False)


# --- notes, secrets, attempts ------------------------------------------------------------------------------------


def test_notes_are_the_agents_own_when_it_left_some(bench: Bench) -> None:
    ran = bench.run('echo talk; echo "my notes" >"$ROLLOUTS_OUT/notes.md"')
    assert ran.read("artifacts/notes.md") == "my notes\n"


def test_notes_are_the_agents_last_words_when_it_left_none(bench: Bench) -> None:
    ran = bench.run("i=0; while [ $i -lt 2000 ]; do i=$((i+1)); echo line $i; done")
    notes = ran.read("artifacts/notes.md")
    assert notes.endswith("line 1999\nline 2000\n")
    assert len(notes) <= 4096


def test_secrets_of_the_agents_environment_are_in_nothing_that_is_kept_but_its_patch(bench: Bench) -> None:
    command = (
        'echo "key: $THE_KEY"; printf %s "$THE_KEY" | cut -c1-10 | tr -d "\\n"; sleep 0.2; printf %s "$THE_KEY" |'
        ' cut -c11-; echo "noted $THE_KEY" >"$ROLLOUTS_OUT/notes.md"; exit 3'
    )
    ran = bench.run(command)
    assert "noted [secret]" in ran.read("artifacts/notes.md")
    assert "key: [secret]" in ran.read("logs/agent.log")
    kept = [path for path in ran.place.rglob("*") if path.is_file()]
    assert not [path.name for path in kept if SECRET.encode() in path.read_bytes()]


def test_secrets_in_last_words_are_hidden_too(bench: Bench) -> None:
    ran = bench.run('echo "$THE_KEY"')
    assert ran.read("artifacts/notes.md") == "[secret]\n"


def test_an_earlier_attempt_is_put_aside_whole(bench: Bench) -> None:
    first = bench.run("echo first >first.txt; echo one; exit 1")
    second = bench.run("echo second >second.txt; echo two; exit 2", attempt=2)
    third = bench.run("echo three", attempt=3)
    assert first.place == second.place == third.place
    assert "+first" in first.read("attempts/1/artifacts/diff.patch")
    assert first.read("attempts/1/logs/agent.log") == "one\n"
    assert json.loads(first.read("attempts/1/result.json"))["launch_rc"] == 1
    assert "+second" in first.read("attempts/2/artifacts/diff.patch")
    assert json.loads(third.read("result.json"))["launch_rc"] == 0
    assert third.read("logs/agent.log") == "three\n"


# --- with a backend that does what it is told --------------------------------------------------------------------


class FakeBackend(Backend):
    """Ends every job in one way."""

    name = "fake"

    def __init__(self, folder: Path, end: Callable[[Job], JobResult]) -> None:
        super().__init__(DockerSettings(), folder)
        self._end = end
        self.freed = 0

    def check(self) -> None: ...

    def findings(self) -> list[Finding]:
        return []

    def prepare(self, image: Image, sink: LogSink) -> None: ...

    def is_prepared(self, image: Image) -> bool:
        return True

    def paths(self, job_id: str, image: Image) -> BoxPaths:
        return BoxPaths("/repo", "/repo", "/tools", "/home")

    def run(self, job: Job, sink: LogSink) -> JobResult:
        return replace(self._end(job), free=self._free)

    def reap(self, *, dry_run: bool = False) -> list[str]:
        return []

    def _free(self) -> None:
        self.freed += 1


EMPTY_HANDED = JobResult(Ended.EXITED, 0, 1.0, {}, None)


def _raising(exc: BaseException) -> Callable[[Job], JobResult]:
    def end(job: Job) -> JobResult:
        raise exc

    return end


@pytest.fixture
def fake_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Job], JobResult]], Outcome]:
    """Run on a backend whose jobs end as given."""
    monkeypatch.setenv("THE_KEY", SECRET)
    return lambda end: Bench(tmp_path, FakeBackend(tmp_path, end)).run("true")


FakeRun = Callable[[Callable[[Job], JobResult]], Outcome]


@pytest.mark.parametrize("exc", [SandboxFailed("the engine\nwent away"), ValueError("a bug of ours")], ids=str)
def test_whatever_a_backend_raises_is_data_with_its_stage(fake_run: FakeRun, exc: Exception) -> None:
    ran = fake_run(_raising(exc))
    assert ran.result.status is Status.SANDBOX_FAILED
    assert ran.result.error is not None
    assert ran.result.error.stage == "sandbox"
    assert ran.result.error.type == type(exc).__name__
    assert ran.result.error.message == " ".join(str(exc).split())
    assert json.loads(ran.read("result.json"))["error"]["stage"] == "sandbox"


def test_a_secret_in_an_error_is_hidden(fake_run: FakeRun) -> None:
    ran = fake_run(_raising(SandboxFailed(f"bad request: {SECRET}")))
    assert SECRET not in ran.read("result.json") + ran.read("logs/sandbox.log")
    assert ran.result.error is not None
    assert ran.result.error.message == "bad request: [secret]"


def test_a_box_that_gives_no_patch_fails_in_the_stage_artifacts(fake_run: FakeRun) -> None:
    ran = fake_run(lambda job: EMPTY_HANDED)
    assert ran.result.error is not None
    assert (ran.result.status, ran.result.error.stage) == (Status.SANDBOX_FAILED, "artifacts")


def test_a_cancelled_run_is_cancelled_and_has_a_result(fake_run: FakeRun) -> None:
    ran = fake_run(_raising(JobCancelled()))
    assert (ran.result.status, ran.result.error) == (Status.CANCELLED, None)
    assert json.loads(ran.read("result.json"))["status"] == "cancelled"


@pytest.mark.parametrize("name", ["repo_info.json", "result.json"])
def test_a_full_disk_stops_the_batch_and_gives_the_box_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("THE_KEY", SECRET)
    backend = FakeBackend(tmp_path, lambda job: EMPTY_HANDED)

    def refuse(path: Path, value: object) -> None:
        if path.name == name:
            raise StoreError("no space left")

    monkeypatch.setattr("rollouts.execute.write_json", refuse)
    with pytest.raises(StoreError):
        Bench(tmp_path, backend).run("true")
    assert backend.freed == 1
