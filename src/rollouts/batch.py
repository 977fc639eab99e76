"""A whole batch: from a benchmark file to a finished folder under `data/rollouts`."""

import contextlib
import platform
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol

from rollouts import __version__
from rollouts.backends import open_backend
from rollouts.backends.base import Backend, LogSink
from rollouts.disks import FreeDisk
from rollouts.errors import BackendUnavailable, ConfigError, ExitCode, Interrupted, JobCancelled, SandboxFailed
from rollouts.eval_manifest import MANIFEST, EvalManifest, Evaluated, manifest_head
from rollouts.evaluation import eval_lock, lines_so_far, open_recorder
from rollouts.execute import execute_run
from rollouts.leftovers import sweep
from rollouts.outage import MAX_EXCUSED, Outage
from rollouts.plan import RunSpec
from rollouts.planning import Plan, missing_variables
from rollouts.prepare import Preparation
from rollouts.results import UNFINISHED, RunResult, Status, exit_code_of
from rollouts.resuming import ResumeOptions, plan_resume
from rollouts.schedule import Schedule, backoff_s
from rollouts.scoring.record import Recorder, unscored
from rollouts.signals import Signals
from rollouts.store import Batch, BatchPlace, DataRoot, refresh_abandoned, shown_path

PREFETCHERS = 2
"""How many images are built at once, ahead of the runs that need them."""


class Listener(Protocol):
    """Is told what happens, from many threads. Must be quick and must not raise."""

    def planned(self, plan: Plan) -> None: ...
    def building(self, task_id: str, data: bytes) -> None: ...
    def output(self, run_id: str, data: bytes) -> None: ...
    def resuming(self, missing: int, kept: int, unscored: int) -> None: ...
    def created(self, folder: Path, plan: Plan) -> None: ...
    def started(self, result: RunResult) -> None: ...
    def ended(self, result: RunResult) -> None: ...
    def retrying(self, result: RunResult, attempts_left: int, wait_s: float) -> None: ...
    def scored(self, line: Evaluated) -> None: ...
    def warn(self, text: str) -> None: ...


@dataclass(frozen=True)
class BatchOutcome:
    """What `run` has to say when it is over; exit code and printed verdict both come from here."""

    folder: Path
    results: tuple[RunResult, ...]
    exit_code: ExitCode
    lines: tuple[Evaluated, ...] = ()
    """The verdicts, when each run was scored at its end."""


def run_batch(plan: Plan, root: DataRoot, listener: Listener, *, score: bool = False) -> BatchOutcome:
    """Run a plan to its end. Nothing is on disk until at least one run could start.

    With `score` each run is scored as soon as it ends, in its slot, while others still run.
    """
    listener.planned(plan)
    sweep(root)
    with _working(plan, root, listener, score=score) as work:
        text = plan.config.read_bytes()
        batch = Batch.create(root, plan.benchmark.name, _header(plan, work.backend, text), plan.specs, text)
        return work.run(batch)


def resume_batch(root: DataRoot, place: BatchPlace, options: ResumeOptions, listener: Listener) -> BatchOutcome:
    """Do what is missing of a batch, and touch nothing that is finished."""
    sweep(root)
    batch = Batch.open(root, place)
    try:
        resumption = plan_resume(root, place, batch.state, options)
        plan = resumption.plan
        if plan.specs:
            listener.planned(plan)
        for warning in resumption.warnings:
            listener.warn(warning)
        listener.resuming(len(plan.specs), resumption.kept, len(resumption.unscored))
        if not plan.specs and not resumption.unscored:
            _reap_for(plan, root, listener)
            return _nothing_missing(batch)
        with _working(plan, root, listener, score=options.score) as work:
            batch.resume(resumption.replanned, changed=resumption.changed)
            _forget_verdicts(root, batch, plan)
            return work.run(batch, resumption.unscored)
    finally:
        batch.close()


def _reap_for(plan: Plan, root: DataRoot, listener: Listener) -> None:
    """Remove what the batch's dead process left; where no engine answers, the next command that needs one will."""
    backend = open_backend(plan.backend, plan.benchmark.docker, root.cache)
    with contextlib.closing(backend), contextlib.suppress(BackendUnavailable):
        if backend.is_answering():
            _reap(backend, listener)


def _nothing_missing(batch: Batch) -> BatchOutcome:
    """Its process may have died between the last run's end and the batch's."""
    results = tuple(batch.results)
    if batch.state.finished_at is None and all(result.status not in UNFINISHED for result in results):
        batch.resume((), changed=False)
        batch.close(finished=True)
    return BatchOutcome(batch.folder, results, exit_code_of(results))


def _reap(backend: Backend, listener: Listener) -> None:
    for box in backend.reap():
        listener.warn(f"removed what a dead process left behind: {box}")


def _forget_verdicts(root: DataRoot, batch: Batch, plan: Plan) -> None:
    """A verdict on an earlier attempt says nothing about the next one."""
    if (batch.folder / MANIFEST).exists():
        again = {f"{batch.stamp}-{spec.index}" for spec in plan.specs}
        with eval_lock(batch.folder):
            lines = [
                unscored(result) if result.run_id in again else line
                for result, line in zip(batch.results, lines_so_far(root, batch.results), strict=True)
            ]
            head = manifest_head(batch.name, batch.stamp, plan.backend, plan.parallel, plan.benchmark)
            EvalManifest(batch.folder, head, lines).close(finished=False)


@contextlib.contextmanager
def _working(plan: Plan, root: DataRoot, listener: Listener, *, score: bool) -> Iterator["_Work"]:
    """Everything that runs need, checked and open; at least one of them can start."""
    missing = missing_variables(plan)
    if missing:
        raise ConfigError(*missing)
    backend = open_backend(plan.backend, plan.benchmark.docker, root.cache)
    with contextlib.closing(backend), Signals(backend, listener.warn, "their patches kept") as signals:
        backend.check()
        _reap(backend, listener)
        root.make()
        refresh_abandoned(root)
        preparation = Preparation(plan.benchmark, backend, root.cache)
        outage = Outage(backend, listener.warn)
        recorder = None
        if score:
            recorder = open_recorder(plan.benchmark, backend, preparation, root.cache, listener.building, outage)
        with contextlib.suppress(JobCancelled):
            if plan.specs:
                require_one_image(plan, preparation, listener)
        if signals.exit_code is not None:
            raise Interrupted(signals.exit_code)
        yield _Work(plan, root, backend, preparation, listener, signals, outage, recorder)


def require_one_image(plan: Plan, preparation: Preparation, listener: Listener) -> None:
    """Prepare images in order until one is there. With none at all there is nothing to run and nothing to write."""
    failures: dict[str, None] = {}
    for spec in plan.first_of_each_image():
        try:
            preparation.ready(spec, _build_echo(listener, spec))
        except SandboxFailed as exc:
            failures[str(exc)] = None
        else:
            return
    raise BackendUnavailable("\n".join(failures))


def _build_echo(listener: Listener, spec: RunSpec) -> LogSink:
    return lambda data: listener.building(spec.task.task_id, data)


def _echo(listener: Listener, run_id: str) -> LogSink:
    return lambda data: listener.output(run_id, data)


def _header(plan: Plan, backend: Backend, config_text: bytes) -> dict[str, Any]:
    environment = {
        "rollouts": __version__,
        "python": platform.python_version(),
        "os": platform.platform(),
        **backend.versions(),
    }
    return {
        "config": shown_path(plan.config),
        "directory": str(Path.cwd()),
        "config_sha256": sha256(config_text).hexdigest(),
        "backend": plan.backend,
        "parallel": plan.parallel,
        "profile": plan.benchmark.profile,
        "only": plan.only,
        "retries": plan.benchmark.retries,
        "pass_threshold": plan.benchmark.pass_threshold,
        "environment": environment,
    }


class _Scoring:
    """Scores a batch's runs as they end."""

    def __init__(self, recorder: Recorder, plan: Plan, root: DataRoot, batch: Batch, listener: Listener) -> None:
        self._recorder, self._root, self._batch, self._listener = recorder, root, batch, listener
        head = manifest_head(batch.name, batch.stamp, plan.backend, plan.parallel, plan.benchmark)
        self._manifest = EvalManifest(batch.folder, head, lines_so_far(root, batch.results))

    def score(self, spec: RunSpec, result: RunResult) -> None:
        """The verdict on a run that just ended; none when the batch is being stopped."""
        folder, batch = self._root.runs / result.run_id, f"{self._batch.name}/{self._batch.stamp}"
        with contextlib.suppress(JobCancelled):
            line = self._recorder.score(result, spec.task, folder, batch, _echo(self._listener, result.run_id))
            self._manifest.put(line)
            self._listener.scored(line)

    def close(self, *, finished: bool) -> tuple[Evaluated, ...]:
        """Bring `eval_manifest.json` up to date."""
        return self._manifest.close(finished=finished)


@dataclass(frozen=True)
class _Work:
    """What the runs of a plan need, and how they are run."""

    plan: Plan
    root: DataRoot
    backend: Backend
    preparation: Preparation
    listener: Listener
    signals: Signals
    outage: Outage
    recorder: Recorder | None

    def run(self, batch: Batch, unscored: Sequence[RunSpec] = ()) -> BatchOutcome:
        """Run the plan's runs as those of `batch`, and close it. Of `unscored` only the verdict is missing."""
        self.listener.created(batch.folder, self.plan)
        running = _Running(self, batch, unscored)
        if self.recorder is None:
            return running.run(None)
        with eval_lock(batch.folder):
            return running.run(_Scoring(self.recorder, self.plan, self.root, batch, self.listener))


class _Running:
    """A batch while it runs."""

    def __init__(self, work: _Work, batch: Batch, unscored: Sequence[RunSpec]) -> None:
        self._plan, self._root, self._backend, self._signals = work.plan, work.root, work.backend, work.signals
        self._preparation, self._listener, self._outage = work.preparation, work.listener, work.outage
        self._batch, self._unscored = batch, {spec.index: spec for spec in unscored}
        self._scoring: _Scoring | None = None
        self._excused: Counter[int] = Counter()
        self._halted: str | None = None
        """Why nothing new is started, if so."""
        self._disk = FreeDisk(work.plan.benchmark.min_free_disk_mb, (work.root.path, *work.backend.disks()))
        self._schedule: Schedule[RunSpec] = Schedule(self._work, work.plan.parallel, work.backend.cancelled)

    def run(self, scoring: _Scoring | None) -> BatchOutcome:
        self._scoring = scoring
        lines: tuple[Evaluated, ...] = ()
        finished = False
        try:
            self._prefetch()
            self._schedule.run([*self._plan.specs, *self._unscored.values()])
            finished = self._signals.exit_code is None and self._halted is None
        finally:
            self._backend.close()
            try:
                lines = scoring.close(finished=finished) if scoring else ()
            finally:
                self._batch.close(finished=finished)
        results = tuple(self._batch.results)
        code = exit_code_of(results)
        if code is ExitCode.OK and not all(line.is_settled for line in lines):
            code = ExitCode.SOME_FAILED if any(line.is_settled for line in lines) else ExitCode.NONE_SUCCEEDED
        return BatchOutcome(self._batch.folder, results, self._signals.exit_code or code, lines)

    def _work(self, spec: RunSpec, attempt: int) -> float | None:
        """One attempt at one run; in how many seconds it wants another."""
        if not self._has_room():
            return None
        run_id = f"{self._batch.stamp}-{spec.index}"
        try:
            if spec.index in self._unscored:
                result, wait_s = self._batch.state.results[run_id], None
            else:
                result = self._run(spec, run_id)
                wait_s = self._wait_s(spec, result, attempt)
                if wait_s is None:
                    self._listener.ended(result)
            if self._scoring and wait_s is None and not self._backend.cancelled.is_set():
                self._scoring.score(spec, result)
        except BaseException:  # nothing can be kept any more: there is no use in letting the others go on
            self._backend.cancel()
            raise
        return wait_s

    def _run(self, spec: RunSpec, run_id: str) -> RunResult:
        """Its end is on disk before its box is given back."""
        begun = self._batch.started(run_id)
        self._listener.started(begun)
        echo = _echo(self._listener, run_id)
        finished = execute_run(spec, begun, self._root.runs / run_id, self._preparation, self._backend, echo)
        try:
            self._batch.ended(finished.result)
        finally:
            finished.free()
        return finished.result

    def _has_room(self) -> bool:
        """Below the floor nothing new is started; what runs may end."""
        trouble = self._disk.trouble()
        if trouble is not None:
            self._schedule.stop()
            if self._halted is None:
                self._listener.warn(f"{trouble}; free some space, then `resume {self._batch.name}` goes on from here")
            self._halted = trouble
        return trouble is None

    def _wait_s(self, spec: RunSpec, result: RunResult, attempt: int) -> float | None:
        """Another try only for faults of ours or the machine's. An image that does not build would not build again."""
        if result.status is not Status.SANDBOX_FAILED or self._backend.cancelled.is_set():
            return None
        if result.error is not None and result.error.type == "ImageFailed":
            return None
        if self._excused[spec.index] < MAX_EXCUSED and self._was_away():
            self._excused[spec.index] += 1
        used = attempt - self._excused[spec.index]
        if used > self._plan.benchmark.retries or self._backend.cancelled.is_set():
            return None
        wait_s = backoff_s(max(1, used))
        self._listener.retrying(result, self._plan.benchmark.retries - used, wait_s)
        return wait_s

    def _was_away(self) -> bool:
        """Whether the engine itself was gone; then all wait for it, and the attempt does not count."""
        with contextlib.suppress(JobCancelled):
            return self._outage.wait()
        return False

    def _prefetch(self) -> None:
        """Build images ahead of the runs, in the order in which they are needed."""
        waiting = iter(self._plan.first_of_each_image())
        lock = threading.Lock()

        def build() -> None:
            while not self._backend.cancelled.is_set():
                with lock:
                    spec = next(waiting, None)
                if spec is None:
                    return
                try:
                    self._preparation.ready(spec, _build_echo(self._listener, spec))
                except Exception:  # noqa: BLE001 - the runs that need it meet it again, and say so
                    continue

        for number in range(PREFETCHERS):
            threading.Thread(target=build, name=f"prefetch-{number}", daemon=True).start()
