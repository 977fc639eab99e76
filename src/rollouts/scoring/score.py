"""One patch, scored: applied, put into a fresh box, tested there, judged. The result is the same on every backend."""

import contextlib
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from rollouts.backends.base import Backend, LogSink, Once
from rollouts.config import Benchmark
from rollouts.digests import digest_folder, digest_of
from rollouts.prepare import Preparation, image_of
from rollouts.results import RunError
from rollouts.scoring.box_result import BoxResult
from rollouts.scoring.job import ScoringBox, has_metrics, metrics_file
from rollouts.scoring.judge import Judge, Judgement
from rollouts.scoring.patch import Applied, Changes, PatchRefused, Start
from rollouts.scoring.rubric import (
    Observed,
    judged_rubrics,
    outcome_of,
    rubric_scores,
    standard_metrics,
    test_results,
    total_of,
)
from rollouts.scoring.runner import TestPlan, plan_tests
from rollouts.scoring.tests import TestStatus
from rollouts.scoring.tree import ScoredTree, scored_tree
from rollouts.scoring.verdict import Outcome, Scored
from rollouts.tasks import Task

SILENT = "the tests told of no test and exited with 0; without this patch they tell"
SCORER = 1
"""Part of every evaluation's digest: raise it when the same patch may get another verdict."""


@dataclass(frozen=True)
class Place:
    """Where one scoring job belongs: its names, its log, a folder for what comes out of the box."""

    run_id: str
    batch: str
    outputs_dir: Path
    log: LogSink


class Scorer:
    """Scores patches with one backend. Safe to ask from many threads."""

    def __init__(
        self,
        benchmark: Benchmark,
        backend: Backend,
        preparation: Preparation,
        judge: Judge | None = None,
        building: Callable[[str, bytes], None] = lambda task_id, data: None,
    ) -> None:
        """`building` is told what the build of a task's image says."""
        self._building = building
        self._benchmark, self._backend, self._preparation, self._judge = benchmark, backend, preparation, judge
        self._lock = threading.Lock()
        self._starts: dict[str, Start] = {}
        self._digests: dict[str, str] = {}
        self._solutions: dict[str, frozenset[str]] = {}
        self._jobs = 0
        self._once = Once(backend.cancelled)
        self._references: dict[str, Observed] = {}

    def digest(self, task: Task) -> str:
        """Names everything but the patch that a verdict depends on."""
        if task.digest not in self._digests:
            self._digests[task.digest] = self._digest(task)
        return self._digests[task.digest]

    def _digest(self, task: Task) -> str:
        image = image_of(task, self._preparation.source(task), None)
        program = metrics_file(task)
        metrics = program.read_bytes().hex() if program else None
        judge = self._benchmark.judge
        asked = [judge.model, judge.base_url, task.instructions] if judge else None
        return digest_of(
            SCORER, replace(image, instructions="").digest(), task.evaluation.model_dump(), metrics, asked,
            digest_folder(task.part("tests")), task.environment_variables, self._benchmark.pass_threshold,
        )[:32]  # fmt: skip

    def score(self, task: Task, patch: bytes, place: Place) -> Scored:
        """The verdict. Raises SandboxFailed for faults of the machine, which are worth another try."""
        if not patch.strip():
            return self._nothing(task, Outcome.NO_PATCH, "the patch is empty")
        return self.test(task, patch, place)

    def test(self, task: Task, patch: bytes, place: Place) -> Scored:
        """The same, also for a patch that changes nothing: what the untouched repository would get."""
        start = self._start(task)
        try:
            applied = _apply(start, patch)
        except PatchRefused as exc:
            return self._nothing(task, Outcome.APPLY_FAILED, str(exc))
        scored = self._test(task, start, applied.changes, patch, place)
        return replace(scored, applied=applied.how)

    def _start(self, task: Task) -> Start:
        source = self._preparation.source(task)
        with self._lock:
            if source.digest not in self._starts:
                self._starts[source.digest] = Start(source.base_git)
            return self._starts[source.digest]

    def _solved_by(self, task: Task, start: Start) -> frozenset[str]:
        """What the task's solution changes."""
        if task.digest not in self._solutions:
            changes: Changes = {}
            with contextlib.suppress(PatchRefused):
                changes = _apply(start, _solution(task)).changes
            self._solutions[task.digest] = frozenset(changes)
        return self._solutions[task.digest]

    def _nothing(self, task: Task, outcome: Outcome, why: str) -> Scored:
        """A verdict without a box: nothing was earned."""
        tested = not plan_tests(task).is_empty
        earned = Judgement(0.0, "there is nothing to judge", (), None)
        judged = judged_rubrics(task.evaluation, tested=tested) if self._judge else ()
        judgements = {rubric.id: earned for rubric in judged}
        rubrics = rubric_scores(task.evaluation, (), judgements, tested=tested, zero=True)
        total, coverage = total_of(rubrics)
        note = () if outcome is Outcome.NO_PATCH else (f"the patch does not apply: {why}",)
        return Scored(outcome, total if total is not None else 0.0, coverage, rubrics, notes=note)

    def _test(self, task: Task, start: Start, changes: Changes, patch: bytes, place: Place) -> Scored:
        plan = plan_tests(task)
        tree = scored_tree(task, start, changes, plan.python, self._solved_by(task, start))
        notes: list[str] = []
        observed, seconds = Observed(), 0.0
        metrics: Mapping[str, object] = {}
        if not plan.is_empty or has_metrics(task):
            ended = self._box(task, tree, patch, plan, place)
            observed, seconds = ended.observed(), ended.ended.duration_s
            metrics = _metrics(ended, notes)
        if observed.trouble is not None:
            blame = observed.trouble if observed.ours else self._blame(task, start, plan, observed.trouble, place)
            if blame is not None:
                return _error(blame, tree, seconds)
            notes.append(f"{observed.trouble}; without this patch it is not so")
        elif self._fell_silent(task, start, plan, place, observed):
            observed = replace(observed, bent=(*observed.bent, SILENT))
        return self._judged(task, plan, observed, tree, patch, metrics, notes, seconds)

    def _box(self, task: Task, tree: ScoredTree, patch: bytes, plan: TestPlan, place: Place) -> BoxResult:
        image = self._preparation.scoring_image(task, lambda data: self._built(task, data, place))
        with self._lock:
            self._jobs += 1
            job_id = f"{place.run_id}.eval{self._jobs}"
        box = ScoringBox(
            task=task,
            image=image,
            limits=self._benchmark.limits,
            tree=tree,
            patch=patch,
            plan=plan,
            job_id=job_id,
            run_id=place.run_id,
            batch=place.batch,
            outputs_dir=place.outputs_dir,
        )
        result = box.run(self._backend, place.log)
        result.ended.free()
        for note in result.ended.notes:
            place.log(f"[sandbox] {note}\n".encode())
        return result

    def _built(self, task: Task, data: bytes, place: Place) -> None:
        place.log(data)
        self._building(task.task_id, data)

    def _blame(self, task: Task, start: Start, plan: TestPlan, trouble: str, place: Place) -> str | None:
        """Whether tests that cannot be run are the task's fault: they are when the reference cannot be tested either.

        None: it is the patch's doing. The reference is the task's solution, else the untouched start.
        """
        known = self._reference(task, start, plan, place).trouble
        return None if known is None else f"{trouble}; the same with {_reference_name(task)}: {known}"

    def _fell_silent(self, task: Task, start: Start, plan: TestPlan, place: Place, observed: Observed) -> bool:
        """Whether tests passed by an exit code alone that tell of tests one by one where the reference is tested."""
        if not observed.by_exit_code or set(observed.results.values()) != {TestStatus.PASSED}:
            return False
        known = self._reference(task, start, plan, place)
        tells = task.solution is not None or TestStatus.PASSED in known.results.values()
        usable = tells and known.trouble is None and not known.timed_out
        return usable and bool(observed.by_exit_code - known.by_exit_code)

    def _reference(self, task: Task, start: Start, plan: TestPlan, place: Place) -> Observed:
        """What the reference gives; tried once for each task."""
        self._once(task.digest, lambda: self._try_reference(task, start, plan, place))
        return self._references[task.digest]

    def _try_reference(self, task: Task, start: Start, plan: TestPlan, place: Place) -> None:
        patch = _solution(task)
        try:
            changes = _apply(start, patch).changes
        except PatchRefused as exc:
            self._references[task.digest] = Observed(trouble=f"solution.patch does not apply: {exc}")
            return
        tree = scored_tree(task, start, changes, plan.python, changes)
        quiet = replace(place, run_id=f"{place.run_id}.reference", log=lambda data: None)
        self._references[task.digest] = self._box(task, tree, patch, plan, quiet).observed()

    def _judged(
        self,
        task: Task,
        plan: TestPlan,
        observed: Observed,
        tree: ScoredTree,
        patch: bytes,
        metrics: Mapping[str, object],
        notes: list[str],
        seconds: float,
    ) -> Scored:
        tests = test_results(task.evaluation, observed) if not plan.is_empty else ()
        zero = bool(observed.bent) or observed.timed_out or observed.trouble is not None
        judgements = {}
        if self._judge is not None:
            for rubric in judged_rubrics(task.evaluation, tested=not plan.is_empty):
                judgements[rubric.id] = self._judge.judge(task.instructions, rubric, patch)
        rubrics = rubric_scores(task.evaluation, tests, judgements, tested=not plan.is_empty, zero=zero)
        total, coverage = total_of(rubrics)
        if total is None:
            reasons = dict.fromkeys(rubric.reason for rubric in rubrics if rubric.reason)
            return _error(f"nothing could be judged: {'; '.join(reasons)}", tree, seconds, rubrics=rubrics)
        if plan.is_empty:
            outcome = Outcome.RESOLVED if total >= self._benchmark.pass_threshold else Outcome.TESTS_FAILED
        else:
            outcome = outcome_of(observed, tests)
        if observed.timed_out:
            notes.append(f"the tests were ended at their time limit of {task.evaluation.timeout_s:g} s")
        return Scored(
            outcome=outcome,
            total_score=total,
            coverage=coverage,
            rubrics=rubrics,
            tests=tests,
            standard_metrics=standard_metrics(tests),
            custom_metrics=metrics,
            flags=tree.flags,
            notes=(*(f"the results do not count: {reason}" for reason in observed.bent), *notes),
            duration_s=round(seconds, 3),
        )


def _apply(start: Start, patch: bytes) -> Applied:
    return start.apply(patch) if patch.strip() else Applied({}, "nothing to apply")


def _solution(task: Task) -> bytes:
    return task.solution.read_bytes() if task.solution else b""


def _reference_name(task: Task) -> str:
    return "the task's own solution" if task.solution else "the untouched repository"


def _metrics(ended: BoxResult, notes: list[str]) -> Mapping[str, object]:
    """The task's own measures; what is wrong with them is told and harms nothing."""
    try:
        metrics = ended.metrics()
    except ValueError as exc:
        metrics = {}
        notes.append(f"custom metrics: {exc}")
    notes += ended.notes
    return metrics


def _error(message: str, tree: ScoredTree, seconds: float, **parts: object) -> Scored:
    error = RunError("scoring", "EvaluationError", message)
    scored = Scored(Outcome.ERROR, None, 0.0, flags=tree.flags, error=error, duration_s=round(seconds, 3))
    return replace(scored, **parts)  # type: ignore[arg-type] # fields of Scored
