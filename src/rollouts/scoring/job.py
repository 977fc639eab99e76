"""One scoring job: what goes into the box, and what its words mean."""

import json
import secrets
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from rollouts.backends.base import Backend, Ended, Image, Job, JobResult, LogSink, sandbox_file
from rollouts.config import Limits
from rollouts.errors import JobCancelled
from rollouts.scoring.rubric import Observed
from rollouts.scoring.tests import Reader, Results, Step, TestStatus, add, last_object, read_junit
from rollouts.scoring.tree import ScoredTree, expected_files, test_files
from rollouts.tasks import Task

_NOT_FOUND = (126, 127)
_PYTEST_OPTIONS = ("--continue-on-collection-errors", "-ra")


@dataclass(frozen=True)
class TestPlan:
    """How a task's tests are run."""

    __test__ = False  # not one of pytest's

    python: tuple[str, ...] = ()
    """Files for pytest; `.` stands for whatever pytest finds by itself."""
    command: str | None = None
    scripts: tuple[str, ...] = ()
    """Test scripts that are run one by one."""

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to run."""
        return not self.python and self.command is None and not self.scripts


def plan_tests(task: Task) -> TestPlan:
    """By the task's command; else Python files by pytest, and other scripts each by itself."""
    evaluation = task.evaluation
    scripts = [script.path for script in evaluation.test_scripts]
    if evaluation.command and "{path}" in evaluation.command:
        return TestPlan(command=evaluation.command, scripts=tuple(scripts))
    if evaluation.command:
        return TestPlan(command=evaluation.command)
    hidden = [path for path in test_files(task) if _is_pytest(path)]
    python = [path for path in dict.fromkeys((*scripts, *expected_files(task))) if path.endswith(".py")]
    own = [path for path in python if _is_pytest(path) or path not in scripts]  # whatever its name, an id names it
    others = [path for path in scripts if path not in own]
    if not own and not others:
        own = hidden or (["."] if evaluation.fail_to_pass or evaluation.pass_to_pass else [])
    return TestPlan(python=tuple(own), scripts=tuple(others))


def _is_pytest(path: str) -> bool:
    name = PurePosixPath(path).name
    return name.endswith(".py") and (name.startswith("test_") or name.endswith("_test.py"))


@dataclass(frozen=True)
class ScoringBox:
    """Everything that one scoring job is made from."""

    task: Task
    image: Image
    limits: Limits
    tree: ScoredTree
    patch: bytes
    plan: TestPlan
    job_id: str
    run_id: str
    batch: str
    outputs_dir: Path

    def run(self, backend: Backend, log: LogSink) -> "BoxResult":
        """Run it; raises as the backend does."""
        word = secrets.token_hex(16)
        reader = Reader(word, log)
        paths = backend.paths(self.job_id, self.image)
        job = Job(
            job_id=self.job_id,
            run_id=self.run_id,
            batch=self.batch,
            image=self.image,
            argv=("sh", f"{paths.inputs}/score.sh", paths.inputs, paths.repo, paths.cwd),
            env={
                **self.task.environment_variables,
                "ROLLOUTS_JUNIT": f"{paths.outputs}/results.xml",
                "ROLLOUTS_PATCH": f"{paths.inputs}/diff.patch",
            },
            limits=self.limits,
            timeout_s=self.task.evaluation.timeout_s,
            network="none",
            outputs_dir=self.outputs_dir,
            files=self._files(paths.repo, paths.inputs),
            capture=False,
            secret=word,
            stdout=reader,
        )
        ended = backend.run(job, log)
        reader.close()
        if ended.ended is Ended.CANCELLED:  # says nothing about the patch
            ended.free()
            raise JobCancelled
        return BoxResult(self.plan, self.task, tuple(reader.steps), ended)

    def _files(self, repo: str, inputs: str) -> Mapping[str, bytes]:
        files = {
            "score.sh": sandbox_file("score.sh").read_bytes(),
            "removals": self.tree.removals(),
            "folders": self.tree.folders(),
            "tree.tar": self.tree.archive(),
            "diff.patch": self.patch,
        }
        if self.plan.python:
            files |= {name: sandbox_file(name).read_bytes() for name in ("run_pytest.sh", "run_pytest.py")}
            files["pytest.json"] = self._pytest_settings(repo)
        metrics = _metrics_file(self.task)
        if metrics is not None:
            files[metrics.name] = metrics.read_bytes()
        for number, (name, command) in enumerate(self._steps(inputs)):
            files[f"{number:04}-{name}.sh"] = command.encode()
        return files

    def _steps(self, inputs: str) -> list[tuple[str, str]]:
        evaluation, plan = self.task.evaluation, self.plan
        steps = [("setup", evaluation.setup)] if evaluation.setup else []
        if plan.python:
            steps.append(("pytest", f"sh {shlex.quote(f'{inputs}/run_pytest.sh')} {shlex.quote(inputs)}\n"))
        if plan.command and not plan.scripts:
            steps.append(("tests", plan.command))
        for number, path in enumerate(plan.scripts):
            steps.append((f"script{number}", _script_command(plan.command, path, self.task)))
        metrics = _metrics_command(self.task, inputs)
        return [*steps, ("metrics", metrics)] if metrics else steps

    def _pytest_settings(self, repo: str) -> bytes:
        config = self.tree.pytest_config
        own = ["-c", f"{repo}/{config}"] if config else []
        paths = [repo if path == "." else f"{repo}/{path}" for path in self.plan.python]
        arguments = [*_PYTEST_OPTIONS, "--rootdir", repo, *own, *paths]
        folder = f"{repo}/{PurePosixPath(self.plan.python[0]).parent}"
        settings = {"arguments": arguments, "files": paths, "folder": folder, "seed": secrets.token_hex(6)}
        return json.dumps(settings).encode()


def _any_failed(results: Results) -> bool:
    return any(status in (TestStatus.FAILED, TestStatus.ERROR) for status in results.values())


def _script_command(command: str | None, path: str, task: Task) -> str:
    """How one test script is run, from the repository's top."""
    quoted = shlex.quote(f"./{path}")
    if command:
        run = command.replace("{path}", quoted)
    else:
        starter = {
            ".sh": "sh ",
            ".bash": "bash ",
            ".py": '"${ROLLOUTS_PYTHON:-python3}" ',
            ".js": "node ",
            ".mjs": "node ",
        }
        run = f"{starter.get(PurePosixPath(path).suffix, '')}{quoted}"
    up = "/".join([".."] * len(PurePosixPath(task.repo.subdir).parts)) if task.repo.subdir else ""
    return f"cd {up} || exit 1\n{run}\n" if up else f"{run}\n"


def _metrics_file(task: Task) -> Path | None:
    return task.part("evaluate.py") or task.part("evaluate.sh")


def _metrics_command(task: Task, inputs: str) -> str | None:
    if task.evaluation.metrics:
        return task.evaluation.metrics
    path = _metrics_file(task)
    if path is None:
        return None
    starter = "sh" if path.suffix == ".sh" else '"${ROLLOUTS_PYTHON:-python3}"'
    return f"{starter} {shlex.quote(f'{inputs}/{path.name}')}\n"


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
        return Observed(results=results, scripts=scripts, bent=tuple(dict.fromkeys(bent)), trouble=trouble)

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
        if step.code is None or (self._lists_ids() and step.name == "tests"):
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
