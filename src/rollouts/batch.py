"""A whole batch: from a benchmark file to a finished folder under `data/rollouts`."""

import contextlib
import platform
import threading
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol

from rollouts import __version__
from rollouts.backends import open_backend
from rollouts.backends.base import Backend, LogSink
from rollouts.errors import BackendUnavailable, ConfigError, ExitCode, Interrupted, JobCancelled, SandboxFailed
from rollouts.eval_manifest import EvalManifest, Evaluated, manifest_head
from rollouts.evaluation import eval_lock, open_recorder
from rollouts.execute import execute_run
from rollouts.plan import RunSpec
from rollouts.planning import Plan, missing_variables
from rollouts.prepare import Preparation
from rollouts.results import RunResult, Status, exit_code_of
from rollouts.schedule import Schedule
from rollouts.scoring.record import Recorder, unscored
from rollouts.signals import Signals
from rollouts.store import Batch, DataRoot, refresh_abandoned, shown_path

PREFETCHERS = 2
"""How many images are built at once, ahead of the runs that need them."""


class Listener(Protocol):
    """Is told what happens, from many threads. Must be quick and must not raise."""

    def planned(self, plan: Plan) -> None: ...
    def building(self, task_id: str, data: bytes) -> None: ...
    def output(self, run_id: str, data: bytes) -> None: ...
    def created(self, folder: Path, plan: Plan) -> None: ...
    def started(self, result: RunResult) -> None: ...
    def ended(self, result: RunResult) -> None: ...
    def retrying(self, result: RunResult, attempts_left: int) -> None: ...
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
    missing = missing_variables(plan)
    if missing:
        raise ConfigError(*missing)
    backend = open_backend(plan.backend, plan.benchmark.docker, root.cache)
    with contextlib.closing(backend), Signals(backend, listener.warn, "their patches kept") as signals:
        backend.check()
        for box in backend.reap():
            listener.warn(f"removed what a dead process left behind: {box}")
        root.make()
        refresh_abandoned(root)
        preparation = Preparation(plan.benchmark, backend, root.cache)
        recorder = None
        if score:
            recorder = open_recorder(plan.benchmark, backend, preparation, root.cache, listener.building)
        with contextlib.suppress(JobCancelled):
            require_one_image(plan, preparation, listener)
        if signals.exit_code is not None:
            raise Interrupted(signals.exit_code)
        batch = Batch.create(root, plan.benchmark.name, _header(plan, backend), plan.specs, plan.config.read_bytes())
        listener.created(batch.folder, plan)
        running = _Running(plan, root, backend, preparation, batch, listener, signals)
        if recorder is None:
            return running.run(None)
        with eval_lock(batch.folder):
            return running.run(_Scoring(recorder, plan, root, batch, listener))


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


def _header(plan: Plan, backend: Backend) -> dict[str, Any]:
    environment = {
        "rollouts": __version__,
        "python": platform.python_version(),
        "os": platform.platform(),
        **backend.versions(),
    }
    return {
        "config": shown_path(plan.config),
        "config_sha256": sha256(plan.config.read_bytes()).hexdigest(),
        "backend": plan.backend,
        "parallel": plan.parallel,
        "retries": plan.benchmark.retries,
        "pass_threshold": plan.benchmark.pass_threshold,
        "environment": environment,
    }


class _Scoring:
    """Scores a batch's runs as they end."""

    def __init__(self, recorder: Recorder, plan: Plan, root: DataRoot, batch: Batch, listener: Listener) -> None:
        self._recorder, self._root, self._batch, self._listener = recorder, root, batch, listener
        head = manifest_head(batch.name, batch.stamp, plan.backend, plan.parallel, plan.benchmark)
        self._manifest = EvalManifest(batch.folder, head, [unscored(result) for result in batch.results])

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


class _Running:
    """A batch while it runs."""

    def __init__(
        self,
        plan: Plan,
        root: DataRoot,
        backend: Backend,
        preparation: Preparation,
        batch: Batch,
        listener: Listener,
        signals: Signals,
    ) -> None:
        self._plan, self._root, self._backend, self._signals = plan, root, backend, signals
        self._preparation, self._batch, self._listener = preparation, batch, listener
        self._scoring: _Scoring | None = None
        self._schedule: Schedule[RunSpec] = Schedule(self._work, plan.parallel, backend.cancelled)

    def run(self, scoring: _Scoring | None) -> BatchOutcome:
        self._scoring = scoring
        finished = False
        try:
            self._prefetch()
            self._schedule.run(self._plan.specs)
            finished = self._signals.exit_code is None
        finally:
            self._backend.close()
            self._batch.close(finished=finished)
        lines = scoring.close(finished=finished) if scoring else ()
        results = tuple(self._batch.results)
        code = exit_code_of(results)
        if code is ExitCode.OK and not all(line.is_settled for line in lines):
            code = ExitCode.SOME_FAILED if any(line.is_settled for line in lines) else ExitCode.NONE_SUCCEEDED
        return BatchOutcome(self._batch.folder, results, self._signals.exit_code or code, lines)

    def _work(self, spec: RunSpec, attempt: int) -> bool:
        """One attempt at one run; True when it wants another. The box is given back only after all is saved."""
        run_id = f"{self._batch.stamp}-{spec.index}"
        begun = self._batch.started(run_id)
        self._listener.started(begun)
        folder = self._root.runs / run_id
        echo = _echo(self._listener, run_id)
        try:
            finished = execute_run(spec, begun, folder, self._preparation, self._backend, echo)
            again = self._wants_retry(finished.result, attempt)
            self._batch.ended(finished.result)
            finished.free()
            self._tell(finished.result, attempt, again)
            if self._scoring and not again and not self._backend.cancelled.is_set():
                self._scoring.score(spec, finished.result)
        except BaseException:  # nothing can be kept any more: there is no use in letting the others go on
            self._backend.cancel()
            raise
        return again

    def _tell(self, result: RunResult, attempt: int, again: bool) -> None:
        if again:
            self._listener.retrying(result, self._plan.benchmark.retries - attempt + 1)
        else:
            self._listener.ended(result)

    def _wants_retry(self, result: RunResult, attempt: int) -> bool:
        """Only for faults of ours or the machine's. An image that does not build would not build again."""
        ours = result.status is Status.SANDBOX_FAILED and result.error is not None
        again = ours and attempt <= self._plan.benchmark.retries and not self._backend.cancelled.is_set()
        return again and result.error is not None and result.error.type != "ImageFailed"

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
