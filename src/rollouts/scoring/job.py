"""One scoring job: everything that goes into its box."""

import json
import secrets
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from rollouts.backends.base import Backend, Ended, Image, Job, LogSink, sandbox_file
from rollouts.config import Limits
from rollouts.errors import JobCancelled
from rollouts.scoring.box_result import BoxResult
from rollouts.scoring.runner import TestPlan
from rollouts.scoring.tests import Reader
from rollouts.scoring.tree import ScoredTree
from rollouts.tasks import Task

_PYTEST_OPTIONS = ("--continue-on-collection-errors", "-ra")


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

    def run(self, backend: Backend, log: LogSink) -> BoxResult:
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
            files |= {"pytest.json": self._pytest_settings(repo, inputs), "pytest.ini": b"[pytest]\n"}
        metrics = metrics_file(self.task)
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

    def _pytest_settings(self, repo: str, inputs: str) -> bytes:
        config = self.tree.pytest_config
        own = ["-c", f"{repo}/{config}" if config else f"{inputs}/pytest.ini"]
        paths = [repo if path == "." else f"{repo}/{path}" for path in self.plan.python]
        options = [*_PYTEST_OPTIONS, "--rootdir", repo, *own]
        folder = f"{repo}/{PurePosixPath(self.plan.python[0]).parent}"
        settings = {"options": options, "files": paths, "folder": folder, "seed": secrets.token_hex(6)}
        return json.dumps(settings).encode()


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


def has_metrics(task: Task) -> bool:
    """Whether the task has measures of its own."""
    return bool(task.evaluation.metrics or metrics_file(task))


def metrics_file(task: Task) -> Path | None:
    """The program in the task's folder that measures."""
    return task.part("evaluate.py") or task.part("evaluate.sh")


def _metrics_command(task: Task, inputs: str) -> str | None:
    if task.evaluation.metrics:
        return task.evaluation.metrics
    path = metrics_file(task)
    if path is None:
        return None
    starter = "sh" if path.suffix == ".sh" else '"${ROLLOUTS_PYTHON:-python3}"'
    return f"{starter} {shlex.quote(f'{inputs}/{path.name}')}\n"
