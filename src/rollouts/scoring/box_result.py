"""What a scoring box said, and how far it can be believed."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rollouts.backends.base import Ended, JobResult
from rollouts.scoring.rubric import Observed
from rollouts.scoring.runner import TestPlan
from rollouts.scoring.tests import Results, Step, TestStatus, add, last_object, read_junit
from rollouts.tasks import Task

_NOT_FOUND = (126, 127)


@dataclass(frozen=True)
class BoxResult:
    """What a scoring job left: the steps it told of, and how its box ended."""

    plan: TestPlan
    task: Task
    steps: tuple[Step, ...]
    ended: JobResult
    notes: list[str] = field(default_factory=list)

    def observed(self) -> Observed:
        """The tests' results, and how far they can be believed."""
        setup = self._step("setup")
        tests = [step for step in self.steps if step.name == "pytest" or step.name.startswith(("tests", "script"))]
        planned = bool(self.plan.python) + (len(self.plan.scripts) or bool(self.plan.command))
        tree = self._step("tree")
        if tree is None or tree.code != 0:
            return Observed(trouble="the patched files could not be put into the box", ours=True)
        if self.ended.ended is Ended.TIMEOUT and (len(tests) < planned or any(step.code is None for step in tests)):
            slow = "evaluation.setup did not end within the time limit" if setup and setup.code is None else None
            return Observed(results=self._merged(tests)[0], timed_out=True, trouble=slow)
        if setup is not None and setup.code != 0:
            return Observed(trouble=f"evaluation.setup exited with {setup.code}")
        results, scripts = self._merged(tests)
        bent = [reason for step in tests if (reason := self._doubt(step))]
        if len(tests) < planned:
            bent.append("the box ended before all tests were run")
        if self.ended.ended is Ended.OUT_OF_MEMORY:
            bent.append("the tests ran out of memory")
        trouble = next((reason for step in tests if (reason := self._trouble(step))), None)
        silent = frozenset(step.name for step in tests if self._results(step) and not self._tells(step))
        return Observed(results, scripts, tuple(dict.fromkeys(bent)), trouble, by_exit_code=silent)

    def metrics(self) -> Mapping[str, Any]:
        """What the task's own measures say; raises ValueError when they say nothing of use."""
        step = self._step("metrics")
        if step is None:
            return {}
        if step.code is None:
            raise ValueError("did not come to its end")
        if step.code != 0:
            raise ValueError(f"exited with {step.code}")
        told = last_object(bytes(step.text))
        inner = told.get("custom_metrics")
        return inner if isinstance(inner, dict) else told

    def _step(self, name: str) -> Step | None:
        return next((step for step in self.steps if step.name == name), None)

    def _merged(self, tests: list[Step]) -> tuple[Results, dict[str, str]]:
        results: Results = {}
        scripts: dict[str, str] = {}
        for step in tests:
            path = self._path_of(step)
            for test_id, status in self._results(step).items():
                known = f"{path}::{test_id}" if path and test_id != path else test_id
                add(results, known, status)
                if path:
                    scripts[known] = path
        return results, scripts

    def _path_of(self, step: Step) -> str | None:
        number = step.name.removeprefix("script")
        known = step.name.startswith("script") and number.isdecimal() and int(number) < len(self.plan.scripts)
        return self.plan.scripts[int(number)] if known else None

    def _results(self, step: Step) -> Results:
        """What pytest told of; else JUnit, else TAP, else the exit code."""
        if step.name == "pytest":
            return step.results
        junit = self._junit() if step.name == "tests" else None
        if junit is not None:
            return junit
        if step.tap.seen:
            return step.tap.results
        name = self._path_of(step) or "exit code"
        if step.code is None or (step.name == "tests" and (self._lists_ids() or self._wants_junit())):
            return {}
        return {name: TestStatus.PASSED if step.code == 0 else TestStatus.FAILED}

    def _junit(self) -> Results | None:
        path = self.ended.outputs.get("results.xml")
        if path is None:
            return None
        try:
            return read_junit(path.read_bytes())
        except ValueError as exc:
            note = f"results.xml is no JUnit XML: {exc}"
            if note not in self.notes:
                self.notes.append(note)
            return None

    def _tells(self, step: Step) -> bool:
        """Whether a step told of tests one by one."""
        return step.name == "pytest" or step.tap.seen or (step.name == "tests" and self._junit() is not None)

    def _wants_junit(self) -> bool:
        return "ROLLOUTS_JUNIT" in (self.plan.command or "")

    def _lists_ids(self) -> bool:
        return bool(self.task.evaluation.fail_to_pass or self.task.evaluation.pass_to_pass)

    def _doubt(self, step: Step) -> str | None:
        """Why a step's results cannot be believed."""
        if step.code is None:
            return "the tests did not come to their end"
        if step.name == "pytest":
            return self._doubt_pytest(step)
        if step.tap.seen and (reason := step.tap.trouble()):
            return reason
        results = self._results(step)
        if step.code != 0 and results and not _any_failed(results):
            return f"exit code {step.code} although no test failed"
        if _any_failed(step.tap.results) and not _any_failed(results):
            return "tests that failed by what they printed did not by results.xml"
        return None

    @staticmethod
    def _doubt_pytest(step: Step) -> str | None:
        if step.bent:
            return step.bent
        if not step.runner:
            return None
        if step.status is None:
            return f"the tests ended their own process, with exit code {step.code}"
        if step.status != step.code:
            return f"pytest ended with {step.status}, its process with {step.code}"
        if step.status not in (0, 1) and step.results:
            return f"pytest did not come to its end (status {step.status})"
        return (
            "pytest counts failures, but told of none" if step.status == 1 and not _any_failed(step.results) else None
        )

    def _trouble(self, step: Step) -> str | None:
        """Why a step ran no tests."""
        if step.name == "pytest":
            if not step.runner:
                return "there is no Python with pytest in the box"
            return f"pytest ran no test (status {step.status})" if not step.results else None
        if step.code in _NOT_FOUND and not step.tap.seen and self._junit() is None:
            return f"the test command could not be run (exit code {step.code})"
        if not self._results(step):
            return f"the test command told of no test (exit code {step.code})"
        return None


def _any_failed(results: Results) -> bool:
    return any(status in (TestStatus.FAILED, TestStatus.ERROR) for status in results.values())
