"""How a task's tests are run: by its command, by pytest, or each script by itself."""

from dataclasses import dataclass
from pathlib import PurePosixPath

from rollouts.scoring.tree import expected_files, test_files
from rollouts.tasks import Task


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
    python = [path for path in dict.fromkeys((*scripts, *expected_files(task), *hidden)) if path.endswith(".py")]
    own = [path for path in python if _is_pytest(path) or path not in scripts]  # whatever its name, an id names it
    others = [path for path in scripts if path not in own]
    if not own and not others and (evaluation.fail_to_pass or evaluation.pass_to_pass):
        own = ["."]
    return TestPlan(python=tuple(own), scripts=tuple(others))


def _is_pytest(path: str) -> bool:
    name = PurePosixPath(path).name
    return name.endswith(".py") and (name.startswith("test_") or name.endswith("_test.py"))
