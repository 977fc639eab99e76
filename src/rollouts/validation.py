"""Checks tasks by running them: the untouched repository must fail, the solution must pass, each time the same."""

import contextlib
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rollouts.backends import open_backend
from rollouts.config import Benchmark, choose_backend, choose_docker_settings
from rollouts.errors import ExitCode, Interrupted, JobCancelled, SandboxFailed
from rollouts.owner import owned_folder
from rollouts.prepare import Preparation
from rollouts.schedule import Schedule
from rollouts.scoring.record import failed
from rollouts.scoring.runner import plan_tests
from rollouts.scoring.score import Place, Scorer
from rollouts.scoring.verdict import Outcome, Scored, TestResult
from rollouts.signals import Signals
from rollouts.store import DataRoot
from rollouts.tasks import Task

REPEATS = 3
EMPTY, SOLUTION = "empty", "solution"


@dataclass(frozen=True)
class Try:
    """One of a task's patches, scored once."""

    task: Task
    patch: str
    number: int


@dataclass(frozen=True)
class TaskCheck:
    """What is wrong with a task, if anything."""

    task_id: str
    task_dir: str
    problems: tuple[str, ...]
    flaky: tuple[str, ...]
    """Tests that ended differently on the same patch."""
    warnings: tuple[str, ...]
    scores: Mapping[str, list[float | None]] = field(default_factory=dict)

    @property
    def is_fine(self) -> bool:
        """Whether the task can be used as it is."""
        return not self.problems and not self.flaky


def check_tasks(
    tasks: Sequence[Task],
    benchmark: Benchmark,
    root: DataRoot,
    *,
    backend: str | None,
    parallel: int | None,
    checked: Callable[[TaskCheck], None],
    warn: Callable[[str], None],
) -> list[TaskCheck]:
    """Try every task; `checked` is told of each as soon as all of its tries are over."""
    settings = choose_docker_settings(os.environ, benchmark.docker)
    benchmark = benchmark.model_copy(update={"docker": settings, "judge": None})
    name = choose_backend(backend, os.environ, benchmark)
    opened = open_backend(name, settings, root.cache)
    with contextlib.closing(opened), Signals(opened, warn, "nothing is kept") as signals:
        opened.check()
        root.make()
        scorer = Scorer(benchmark, opened, Preparation(benchmark, opened, root.cache))
        with owned_folder("rollouts-validate-") as scratch:
            trying = _Trying(tasks, scorer, scratch, checked)
            Schedule(trying.work, parallel or os.cpu_count() or 1, opened.cancelled).run(trying.tries)
        if signals.exit_code is not None:
            raise Interrupted(signals.exit_code, "stopped before all tasks were tried")
        return trying.checks


def exit_code_of(checks: Iterable[TaskCheck]) -> ExitCode:
    """0 when every task is fine, 1 when none is, 3 when some are not."""
    fine = [check.is_fine for check in checks]
    return ExitCode.OK if all(fine) else ExitCode.SOME_FAILED if any(fine) else ExitCode.NONE_SUCCEEDED


class _Trying:
    """Tasks while they are tried."""

    def __init__(
        self, tasks: Sequence[Task], scorer: Scorer, scratch: Path, checked: Callable[[TaskCheck], None]
    ) -> None:
        self._scorer, self._scratch, self._checked = scorer, scratch, checked
        self.tries = [
            Try(task, patch, number)
            for task in tasks
            for number in range(REPEATS)
            for patch in ((EMPTY, SOLUTION) if task.solution else (EMPTY,))
            if not plan_tests(task).is_empty
        ]
        self.checks = [_untested(task) for task in tasks if plan_tests(task).is_empty]
        for check in self.checks:
            checked(check)
        self._lock = threading.Lock()
        self._found: dict[str, dict[tuple[str, int], Scored]] = {task.digest: {} for task in tasks}

    def work(self, one: Try, attempt: int) -> None:
        """One try; never wants another: a box that fails is told as such."""
        label = f"validate-{one.task.task_id}-{one.task.digest[:8]}-{one.patch}{one.number}"
        place = Place(label, "validate", self._scratch / label, lambda data: None)
        patch = one.task.solution.read_bytes() if one.patch == SOLUTION and one.task.solution else b""
        try:
            scored = self._scorer.test(one.task, patch, place)
        except JobCancelled:
            return
        except SandboxFailed as exc:
            scored = failed(type(exc).__name__, str(exc))
        with self._lock:
            found = self._found[one.task.digest]
            found[one.patch, one.number] = scored
            if len(found) < REPEATS * (2 if one.task.solution else 1):
                return
            check = _judge(one.task, found)
            self.checks.append(check)
        self._checked(check)


def _untested(task: Task) -> TaskCheck:
    return TaskCheck(task.task_id, str(task.folder), (), (), ("there are no tests to try, only rubrics for a judge",))


def _judge(task: Task, found: Mapping[tuple[str, int], Scored]) -> TaskCheck:
    by_patch = {
        patch: [found[patch, number] for number in range(REPEATS)] for patch in (EMPTY, SOLUTION) if (patch, 0) in found
    }
    problems: dict[str, None] = {}
    for patch, results in by_patch.items():
        for scored in results:
            for problem in _problems(patch, scored):
                problems.setdefault(problem)
    flaky = sorted({test for results in by_patch.values() for test in _changing(results)})
    warnings = [] if task.solution else ["there is no solution.patch: only the untouched repository was tried"]
    flags = {
        f"{flag.path}: {flag.kind}, {flag.action}" for scored in by_patch.get(SOLUTION, ()) for flag in scored.flags
    }
    warnings += [f"the solution itself raises a flag: {flag}" for flag in sorted(flags)]
    scores = {patch: [scored.total_score for scored in results] for patch, results in by_patch.items()}
    return TaskCheck(task.task_id, str(task.folder), tuple(problems), tuple(flaky), tuple(warnings), scores)


def _problems(patch: str, scored: Scored) -> list[str]:
    who = "the untouched repository" if patch == EMPTY else "the solution"
    if scored.outcome is Outcome.ERROR:
        return [f"{who} cannot be scored: {scored.error.message if scored.error else 'unknown'}"]
    wrong = []
    if patch == EMPTY:
        if scored.outcome is Outcome.RESOLVED:
            wrong.append("the untouched repository is resolved: the tests do not see the task")
        wrong += [f"{who} passes {t.id}, which fail_to_pass names" for t in _listed(scored, "fail_to_pass", True)]
        wrong += [
            f"{who} does not pass {t.id}, which pass_to_pass names" for t in _listed(scored, "pass_to_pass", False)
        ]
        return wrong
    if scored.outcome is not Outcome.RESOLVED:
        wrong.append(f"the solution is not resolved but {scored.outcome}")
    for kind in ("fail_to_pass", "pass_to_pass", None):
        wrong += [f"{who} does not pass {test.id} ({test.status})" for test in _listed(scored, kind, False)]
    return [*wrong, *(f"{who}: {note}" for note in scored.notes)]


def _listed(scored: Scored, kind: str | None, passes: bool) -> list[TestResult]:
    lists = any(test.expected for test in scored.tests)
    tests = [test for test in scored.tests if test.expected == kind and (kind or not lists)]
    return [test for test in tests if (test.status == "passed") is passes]


def _changing(results: Sequence[Scored]) -> set[str]:
    seen: dict[str, set[str]] = {}
    for scored in results:
        if scored.outcome is not Outcome.ERROR:
            for test in scored.tests:
                seen.setdefault(test.id, set()).add(test.status)
    return {test for test, statuses in seen.items() if len(statuses) > 1}
