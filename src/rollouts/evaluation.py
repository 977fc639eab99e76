"""Scores a whole batch: every ended run's patch, in fresh boxes, as often as wanted.

The truth is in the runs' own folders; `eval_manifest.json` is gathered from them and can be made again at any time.
"""

import contextlib
import fnmatch
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from rollouts.backends import open_backend
from rollouts.backends.base import Backend
from rollouts.config import Benchmark, choose_backend, choose_docker_settings, load_benchmark
from rollouts.errors import ConfigError, ExitCode, JobCancelled, SandboxFailed
from rollouts.eval_manifest import EvalManifest, Evaluated, manifest_head, mean_score
from rollouts.leftovers import sweep
from rollouts.locks import held
from rollouts.outage import Outage
from rollouts.prepare import Preparation
from rollouts.results import RunResult
from rollouts.schedule import Schedule
from rollouts.scoring.judge import Judge
from rollouts.scoring.record import Recorder, line_of, load_evaluation, not_scored, unscored
from rollouts.scoring.score import Scorer
from rollouts.signals import Signals
from rollouts.store import BatchPlace, BatchState, DataRoot
from rollouts.task_folder import load_task
from rollouts.tasks import Task


class EvalListener(Protocol):
    """Is told what happens, from many threads. Must be quick and must not raise."""

    def planned(self, place: BatchPlace, runs: int, left_alone: int, backend: str, parallel: int) -> None: ...
    def building(self, task_id: str, data: bytes) -> None: ...
    def output(self, run_id: str, data: bytes) -> None: ...
    def started(self, result: RunResult) -> None: ...
    def scored(self, line: Evaluated) -> None: ...
    def warn(self, text: str) -> None: ...


@dataclass(frozen=True)
class EvalOptions:
    """What this one command asks for."""

    backend: str | None = None
    parallel: int | None = None
    only: str | None = None
    force: bool = False
    config: Path | None = None
    """Settings from this file, in place of the batch's own copy: for a judge that was named later."""
    fail_under: float | None = None


@dataclass(frozen=True)
class EvalOutcome:
    """What `eval` has to say when it is over; exit code and printed verdict both come from here."""

    folder: Path
    lines: tuple[Evaluated, ...]
    exit_code: ExitCode
    waiting: int = 0
    """Runs that have not ended yet."""
    gate: str | None = None
    """Why a gate failed."""


def open_recorder(
    benchmark: Benchmark,
    backend: Backend,
    preparation: Preparation,
    cache: Path,
    building: Callable[[str, bytes], None],
    outage: Outage,
) -> Recorder:
    """What scores runs with these settings; says so at once when the judge's key is missing."""
    judge = Judge(benchmark.judge, cache, backend.cancelled) if benchmark.judge else None
    missing = judge.missing_key() if judge else None
    if missing is not None:
        raise ConfigError(missing)
    scorer = Scorer(benchmark, backend, preparation, judge, building)
    return Recorder(scorer, backend.name, benchmark.retries, backend.cancelled.wait, outage.wait, preparation.secrets)


def eval_lock(folder: Path) -> contextlib.AbstractContextManager[None]:
    """One process at a time scores a batch."""
    return held(folder / ".eval.lock", "scores this batch")


def evaluate_batch(root: DataRoot, place: BatchPlace, options: EvalOptions, listener: EvalListener) -> EvalOutcome:
    """Score every ended run of a batch that has no verdict yet, or all with `force`."""
    sweep(root)
    state = BatchState.load(place.folder)
    benchmark = load_benchmark(options.config or place.folder / "config.toml")
    used = benchmark.model_copy(update={"backend": state.header.get("backend", benchmark.backend)})
    name = choose_backend(options.backend, os.environ, used)
    parallel = options.parallel or int(state.header.get("parallel", benchmark.parallel))
    chosen = [result for result in state.results.values() if _wanted(result, options.only)]
    if not chosen:
        raise ConfigError(f"--only: nothing matches {options.only!r} in {place.folder}")
    settings = choose_docker_settings(os.environ, benchmark.docker)
    benchmark = benchmark.model_copy(update={"docker": settings})
    backend = open_backend(name, settings, root.cache)
    with (
        eval_lock(place.folder),
        contextlib.closing(backend),
        Signals(backend, listener.warn, "runs scored so far are kept") as signals,
    ):
        head = manifest_head(place.name, place.stamp, name, parallel, benchmark)
        preparation = Preparation(benchmark, backend, root.cache)
        outage = Outage(backend, listener.warn)
        recorder = open_recorder(benchmark, backend, preparation, root.cache, listener.building, outage)
        manifest = EvalManifest(place.folder, head, lines_so_far(root, state.results.values()))
        work = _Evaluating(root, place, chosen, recorder, backend, listener, manifest)
        lines = work.run(parallel, options.force)
        return _outcome(place, chosen, lines, signals.exit_code, options.fail_under)


def lines_so_far(root: DataRoot, results: Iterable[RunResult]) -> list[Evaluated]:
    """What is known about each run before anything is scored."""
    found = ((result, load_evaluation(root.runs / result.run_id)) for result in results)
    return [line_of(result, known) if known else unscored(result) for result, known in found]


def _wanted(result: RunResult, only: str | None) -> bool:
    names = (result.task_id, result.model, result.run_id)
    return only is None or any(fnmatch.fnmatchcase(name, only) for name in names)


def _outcome(
    place: BatchPlace,
    chosen: Sequence[RunResult],
    lines: tuple[Evaluated, ...],
    stopped: ExitCode | None,
    fail_under: float | None,
) -> EvalOutcome:
    waiting = sum(not result.status.is_end for result in chosen)
    wanted = {result.run_id for result in chosen}
    lines = tuple(line for line in lines if line.run_id in wanted)
    verdicts = sum(line.is_settled for line in lines)
    mean, gate = mean_score(lines), None
    code = ExitCode.OK if verdicts == len(lines) else ExitCode.SOME_FAILED if verdicts else ExitCode.NONE_SUCCEEDED
    if fail_under is not None and mean is not None and mean < fail_under:
        gate = f"the mean score {mean:.4f} is below {fail_under:g}"
        code = ExitCode.GATE_FAILED
    return EvalOutcome(place.folder, lines, stopped or code, waiting, gate)


class _Evaluating:
    """A batch while it is scored."""

    def __init__(
        self,
        root: DataRoot,
        place: BatchPlace,
        chosen: Sequence[RunResult],
        recorder: Recorder,
        backend: Backend,
        listener: EvalListener,
        manifest: EvalManifest,
    ) -> None:
        self._root, self._place, self._chosen, self._recorder = root, place, chosen, recorder
        self._backend, self._listener, self._manifest = backend, listener, manifest
        self._tasks = _Tasks(root)
        self._left_alone = 0

    def run(self, parallel: int, force: bool) -> tuple[Evaluated, ...]:
        self._tasks.require_one(self._chosen)
        pending = self._pending(force)
        self._listener.planned(self._place, len(pending), self._left_alone, self._backend.name, parallel)
        finished = False
        try:
            if pending:
                self._backend.check()
            for box in self._backend.reap() if self._backend.is_answering() else ():
                self._listener.warn(f"removed what a dead process left behind: {box}")
            if pending:
                Schedule(self._score, parallel, self._backend.cancelled).run(pending)
            finished = not self._backend.cancelled.is_set()
        finally:
            lines = self._manifest.close(finished=finished)
        return lines

    def _pending(self, force: bool) -> list[RunResult]:
        """Runs to score; the others' lines go into the manifest as they are."""
        pending = []
        for trouble in self._tasks.troubles():
            self._listener.warn(f"runs of a task are not scored: {trouble}")
        for result in self._chosen:
            line = unscored(result)
            if result.status.is_end:
                task = self._tasks.get(result)
                if isinstance(task, str):
                    line = not_scored(result, self._root.runs / result.run_id, task)
                elif (known := None if force else self._known(result, task)) is None:
                    pending.append(result)
                    continue
                else:
                    line = known
                    self._left_alone += 1
            self._manifest.put(line)
        return pending

    def _known(self, result: RunResult, task: Task) -> Evaluated | None:
        with contextlib.suppress(SandboxFailed):  # the source cannot be had now: scoring will say so
            return self._recorder.known(result, task, self._root.runs / result.run_id)
        return None

    def _score(self, result: RunResult, attempt: int) -> None:
        task = self._tasks.get(result)
        assert not isinstance(task, str)
        self._listener.started(result)
        batch = f"{self._place.name}/{self._place.stamp}"
        try:
            line = self._recorder.score(
                result,
                task,
                self._root.runs / result.run_id,
                batch,
                lambda data: self._listener.output(result.run_id, data),
            )
        except JobCancelled:
            return
        except BaseException:  # nothing can be kept any more: there is no use in letting the others go on
            self._backend.cancel()
            raise
        self._manifest.put(line)
        self._listener.scored(line)


class _Tasks:
    """The batch's tasks, each read once as it is today."""

    def __init__(self, root: DataRoot) -> None:
        self._root = root
        self._known: dict[tuple[str, str | None], Task | str] = {}

    def get(self, result: RunResult) -> Task | str:
        """The run's task, or why it cannot be had."""
        key = (result.task_dir, result.overrides)
        if key not in self._known:
            self._known[key] = self._load(*key)
        return self._known[key]

    def _load(self, task_dir: str, overrides: str | None) -> Task | str:
        try:
            explicit = self._find(overrides) if overrides else None
            return load_task(self._find(task_dir), apply_overrides=overrides is not None, overrides=explicit)
        except ConfigError as exc:
            return "; ".join(exc.mistakes)

    def troubles(self) -> list[str]:
        """Why some tasks cannot be had."""
        return [task for task in self._known.values() if isinstance(task, str)]

    def _find(self, text: str) -> Path:
        """Paths in files are relative to where the command was started: here, or beside the data folder."""
        beside = self._root.path.parent / text
        return beside if not Path(text).exists() and beside.exists() else Path(text)

    def require_one(self, results: Iterable[RunResult]) -> None:
        """With no task at all there is nothing to do, and nothing to write."""
        tasks = [self.get(result) for result in results]
        if all(isinstance(task, str) for task in tasks):
            raise ConfigError(*dict.fromkeys(str(task) for task in tasks))
