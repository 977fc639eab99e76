"""Tiny tasks and real boxes for tests, and the questions that tests ask about them.

A `Lab` is one backend with one small image. Everything here waits for what it wants to see, with a deadline; nothing
sleeps and hopes.
"""

import contextlib
import gc
import json
import os
import shutil
import subprocess
import sys
import threading
import time
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any

import docker
import requests
from docker.errors import DockerException

from rollouts.backends.base import Backend, Image, Job, JobResult, LogSink
from rollouts.backends.bubblewrap import Isolation
from rollouts.backends.docker import RUN_LABEL, DockerBackend
from rollouts.backends.local import LocalBackend
from rollouts.config import DockerSettings, Limits
from rollouts.prepare import image_of
from rollouts.task_folder import load_task
from rollouts.tasks import Task
from rollouts.workspace import capture_patch, prepare_source

ROOT = Path(__file__).resolve().parents[1]
TEST_BASE_IMAGE = "rollouts-test-base:bookworm"
PATIENCE_S = 60.0
"""How long a test waits for something that takes moments on an idle machine."""
SMALL = Limits(cpus=1.0, memory_mb=512, pids=128)
TREE = {
    "README.md": b"hello\n",
    "src/app.txt": b"one\ntwo\nthree\n",
    "gone.txt": b"delete me\n",
    "data.bin": bytes(range(256)),
}
"""The source of the tiny task."""


class Kind(StrEnum):
    """A backend in one of its ways of working."""

    ROOT = "bubblewrap-root"
    USER = "bubblewrap-user"
    PLAIN = "plain"
    DOCKER = "docker"


BOXED = (Kind.ROOT, Kind.USER, Kind.DOCKER)
"""Those that close a box off. A plain process is not kept from anything."""
_ISOLATION = {Kind.ROOT: Isolation.ROOT, Kind.USER: Isolation.USER, Kind.PLAIN: Isolation.NONE}


def base_image() -> str:
    """What boxes of the tests are made from."""
    return os.environ.get("ROLLOUTS_BASE_IMAGE") or TEST_BASE_IMAGE


@cache
def engine_trouble() -> str | None:
    """Why tests that need a Docker engine cannot run here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # docker-py forgets a socket that it could not connect
        trouble = _ask_engine()
        gc.collect()
    return trouble


def _ask_engine() -> str | None:
    advice = 'start one and make the base image with: eval "$(.ci/engine)"'
    try:
        with contextlib.closing(docker.from_env(timeout=20)) as client:
            client.ping()
            if not client.images.list(base_image()):
                return f"the Docker engine has no image {base_image()}; {advice}"
    except (DockerException, requests.RequestException, OSError) as exc:
        return f"no Docker engine answers ({' '.join(str(exc).split())[:120]}); {advice}"
    return None


@cache
def local_trouble(kind: Kind) -> str | None:
    """Why that way of making local boxes cannot work here."""
    if kind is Kind.PLAIN:
        return None
    if not shutil.which("bwrap"):
        return "bubblewrap is not installed"
    if kind is Kind.ROOT and (os.getuid() != 0 or not shutil.which("setpriv")):
        return "needs root and setpriv"
    own = ["--unshare-user", "--disable-userns"] if kind is Kind.USER else []
    probe = ["bwrap", *own, "--unshare-pid", "--unshare-net", "--ro-bind", "/", "/", "--proc", "/proc", "true"]
    done = subprocess.run(probe, capture_output=True, text=True, timeout=30)
    return f"bubblewrap does not work here: {done.stderr.strip()}" if done.returncode else None


def write_tree(folder: Path, files: Mapping[str, bytes]) -> None:
    """Make files below a folder."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def make_task(folder: Path, *, files: Mapping[str, bytes] | None = None, **meta: Any) -> Task:
    """A task folder on disk with a small source; `files` go beside `repo/`, other keywords into tb_meta.json."""
    if "repo" not in meta:
        write_tree(folder / "repo", TREE)
    described = {"task_id": folder.name, "lm": {"instructions": "Say hello.\n"}, **meta}
    write_tree(folder, {"tb_meta.json": json.dumps(described).encode(), **(files or {})})
    return load_task(folder)


def make_image(folder: Path, *, install: str | None = None, cache_dir: Path | None = None, **parts: Any) -> Image:
    """The recipe of such a task's box."""
    task = make_task(folder, **parts)
    return image_of(task, prepare_source(task, cache_dir or folder.parent / "cache"), install)


def open_kind(kind: Kind, cache_dir: Path, settings: DockerSettings | None = None) -> Backend:
    """A fresh backend."""
    settings = settings or DockerSettings(base_image=base_image())
    if kind is Kind.DOCKER:
        return DockerBackend(settings, cache_dir)
    return LocalBackend(settings, cache_dir, _ISOLATION[kind])


@dataclass(frozen=True)
class Ran:
    """A job that came to its end, with everything it left read into memory and its box given back."""

    result: JobResult
    log: bytes
    patch: bytes
    files: Mapping[str, bytes]
    took_s: float


@dataclass
class Collector:
    """A sink that keeps what comes and can be waited on."""

    data: bytearray = field(default_factory=bytearray)
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def __call__(self, data: bytes) -> None:
        with self._changed:
            self.data += data
            self._changed.notify_all()

    def wait_for(self, text: bytes, times: int = 1) -> None:
        """Return once `text` was written so many times."""
        with self._changed:
            seen = self._changed.wait_for(lambda: self.data.count(text) >= times, PATIENCE_S)
        assert seen, f"{text!r} did not come; only {bytes(self.data[-2000:])!r}"


@dataclass
class Lab:
    """One backend, one image, and a folder for what comes out."""

    kind: Kind
    backend: Backend
    image: Image
    folder: Path
    _started: "list[Running]" = field(default_factory=list)

    def close(self) -> None:
        """End what a failed test left running, and give everything back."""
        self.backend.cancel()
        for running in self._started:
            running.wait()
        self.backend.close()

    def job(self, script: str, **changes: Any) -> Job:
        """A shell script as a job of its own; keywords replace parts of it."""
        job_id = f"t{uuid.uuid4().hex[:12]}"
        job = Job(
            job_id=job_id,
            run_id=f"run-{job_id}",
            batch="tests",
            image=self.image,
            argv=("sh", "-c", script),
            env={},
            limits=SMALL,
            timeout_s=60.0,
            network="none",
            outputs_dir=self.folder / job_id,
        )
        job.outputs_dir.mkdir(parents=True)
        return replace(job, **changes)

    def run(self, script: str, sink: LogSink | None = None, **changes: Any) -> Ran:
        """Run a script to its end and give its box back."""
        return self.run_job(self.job(script, **changes), sink)

    def run_job(self, job: Job, sink: LogSink | None = None) -> Ran:
        """The same for a job."""
        collector = Collector()
        begin = time.monotonic()
        self.backend.prepare(job.image, lambda data: None)
        result = self.backend.run(job, sink or collector)
        return self._read(job, result, bytes(collector.data), time.monotonic() - begin)

    def ran(self, running: "Running") -> Ran:
        """The same for one that runs: wait for its end."""
        result = running.end()
        return self._read(running.job, result, bytes(running.sink.data), running.took_s)

    def _read(self, job: Job, result: JobResult, log: bytes, took_s: float) -> Ran:
        try:
            outputs = dict(result.outputs)
            if "diff.patch" not in outputs and result.workspace is not None:
                outputs |= capture_patch(job.image.base_git, result.workspace, job.outputs_dir)
            files = {name: path.read_bytes() for name, path in outputs.items()}
        finally:
            result.free()
        return Ran(result, log, files.get("diff.patch", b""), files, took_s)

    def start(self, script: str, **changes: Any) -> "Running":
        """Run a script in a thread of its own and return when it has said `started`."""
        running = Running(self, self.job(script, **changes))
        self._started.append(running)
        running.sink.wait_for(b"started")
        return running

    def tree_after(self, patch: bytes) -> dict[str, bytes]:
        """What the source looks like with the patch applied, by git itself; a link's content is its target."""
        tree = self.folder / f"tree-{uuid.uuid4().hex[:8]}"
        shutil.copytree(self.image.tree, tree, symlinks=True, ignore=shutil.ignore_patterns(".git"))
        if patch:
            command = ["git", "apply", "--binary", "--whitespace=nowarn", "-"]
            ceiling = {**os.environ, "GIT_CEILING_DIRECTORIES": str(tree.parent)}
            done = subprocess.run(command, cwd=tree, input=patch, capture_output=True, env=ceiling)
            assert done.returncode == 0, done.stderr.decode()
        return {
            str(path.relative_to(tree)): os.fsencode(path.readlink()) if path.is_symlink() else path.read_bytes()
            for path in tree.rglob("*")
            if path.is_symlink() or path.is_file()
        }

    def is_left(self, job: Job) -> bool:
        """Whether something of that job's box is still there."""
        if self.kind is Kind.DOCKER:
            return bool(containers_of(job.run_id))
        assert isinstance(self.backend, LocalBackend)
        return self.backend._box(job.job_id).exists()


class Running:
    """A job that runs in a thread of its own."""

    def __init__(self, lab: Lab, job: Job) -> None:
        self.job, self.sink = job, Collector()
        self._lab = lab
        self._result: JobResult | None = None
        self._error: BaseException | None = None
        self.took_s = 0.0
        lab.backend.prepare(job.image, lambda data: None)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        begin = time.monotonic()
        try:
            self._result = self._lab.backend.run(self.job, self.sink)
            self.took_s = time.monotonic() - begin
        except BaseException as exc:  # noqa: BLE001 - raised again in the test's own thread
            self._error = exc

    def wait(self) -> None:
        """Return when the job has ended, however that was."""
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "the job did not end"

    def end(self) -> JobResult:
        """Wait for the end; raises what `run` raised."""
        self.wait()
        if self._error is not None:
            raise self._error
        assert self._result is not None
        return self._result


def wait_until(condition: Callable[[], object], what: str) -> None:
    """Return once `condition` holds."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain: {what}"
        time.sleep(0.02)


def containers_of(run_id: str) -> list[str]:
    """The engine's containers of that run, also stopped ones."""
    with contextlib.closing(docker.from_env()) as client:
        found = client.api.containers(all=True, filters={"label": f"{RUN_LABEL}={run_id}"})
        return [container["Id"] for container in found]


def forget_image(backend: Backend, image: Image) -> None:
    """Remove a task's image that no later test run can use."""
    if isinstance(backend, DockerBackend):
        with contextlib.closing(docker.from_env()) as client:
            client.api.remove_image(backend._images.tag(image), force=True)


def processes() -> Iterator[tuple[int, list[str]]]:
    """Every process of this machine, boxes included, with its arguments."""
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            with contextlib.suppress(OSError):
                words = (path / "cmdline").read_bytes().decode(errors="replace").split("\0")
                yield int(path.name), words


def processes_with(token: str) -> list[int]:
    """Processes that have `token` among their arguments."""
    return [pid for pid, words in processes() if any(token in word for word in words)]


class ArgumentWatch:
    """While it is open, looks at all processes' arguments again and again for a text that must not be there."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._stop = threading.Event()
        self.looks = 0
        self.seen: list[list[str]] = []
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "ArgumentWatch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.is_set():
            self.seen += [words for _, words in processes() if any(self._text in word for word in words)]
            self.looks += 1


def memory_mb() -> float:
    """What this process holds in memory now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def start_holder(
    kind: Kind, folder: Path, token: str, then: str = "", ttl_s: float | None = None
) -> "subprocess.Popen[bytes]":
    """Another process of ours that runs a box; returns once its job runs. The run's id is `run-<token>`.

    The job does not end unless `then`, a shell script, does so. With `ttl_s` its box lives no longer by itself.
    """
    wanted = (kind.value, str(folder), token, then, ttl_s)
    code = f"from tests.boxes import hold_a_box; hold_a_box(*{wanted!r})"
    environ = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"}
    holder = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, env=environ, stdout=subprocess.PIPE)
    assert holder.stdout is not None
    line = holder.stdout.readline()
    assert line == b"started\n", line
    return holder


def hold_a_box(kind: str, folder: str, token: str, then: str, ttl_s: float | None) -> None:
    """What that process does: run a job that does not end."""
    if ttl_s is not None:
        Job.ttl_s = Job.handout_ttl_s = property(lambda job: ttl_s)  # type: ignore[assignment,method-assign]
    place = Path(folder)
    backend = open_kind(Kind(kind), place / "cache")
    lab = Lab(Kind(kind), backend, make_image(place / "task"), place)
    script = f"echo started; {then}\nwhile :; do sleep 0.1; done"
    job = lab.job("", argv=("sh", "-c", script, token), job_id=token, run_id=f"run-{token}")
    lab.run_job(job, lambda data: print("started", flush=True))
