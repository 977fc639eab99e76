"""What a task is, whatever format it was read from: instructions, a source, an environment, an evaluation.

The folder format is read in `task_folder.py`; other formats get readers of their own and end in the same `Task`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from rollouts.config import NAME_EXPECTED, Environment, Seconds, Text, is_name, safe_relative

RELATIVE_EXPECTED = 'a path inside the repository, without "..", leading "/" or ".git"'
HIDDEN_FROM_AGENTS = ("tests", "solution.patch", "evaluate.py", "evaluate.sh", "tb_meta.json", "overrides.json")
"""What a task folder holds for scoring. Never in an agent's sandbox, nor in the build of its image."""


def _checked_relative(text: str) -> str:
    if safe_relative(text) is None:
        raise ValueError
    return text


def _checked_pattern(text: str) -> str:
    bare = text.removeprefix("!").lstrip("/")
    if not bare or "\0" in text or "\n" in text or ".." in PurePosixPath(bare).parts:
        raise ValueError
    return text


def _checked_task_id(text: str) -> str:
    if not is_name(text):
        raise ValueError
    return text


def _checked_git_url(text: str) -> str:
    if not text.strip() or text.startswith("-") or "\0" in text or re.match(r"[A-Za-z0-9]+::", text):
        raise ValueError
    return text


def _checked_revision(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,199}", text) or ".." in text:
        raise ValueError
    return text


def _checked_workdir(text: str) -> str:
    path = PurePosixPath(text)
    if (
        not text.isprintable()
        or not path.is_absolute()
        or ".." in path.parts
        or len(path.parts) < 2
        or path.parts[1] in ("rollouts", "proc", "dev")
    ):
        raise ValueError
    return text


def _checked_user(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(:[A-Za-z0-9_][A-Za-z0-9_.-]*)?", text):
        raise ValueError
    return text


RelativePath = Annotated[str, Field(description=RELATIVE_EXPECTED), AfterValidator(_checked_relative)]
SparsePattern = Annotated[
    str, Field(description='a path or pattern inside the repository, without ".."'), AfterValidator(_checked_pattern)
]
PathPattern = Annotated[
    str,
    Field(description='a path or glob inside the repository, without ".." or a leading "/"'),
    AfterValidator(_checked_relative),
]
Revision = Annotated[str, Field(description="a commit, branch or tag"), AfterValidator(_checked_revision)]


class Part(BaseModel):
    """A part of a task's description. Foreign keys are let through: such files also serve other programs."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)


class Metadata(Part):
    """For people and for grouping."""

    title: Annotated[str, Field(description="a text")] = ""
    tags: Annotated[tuple[str, ...], Field(description="a list of texts", strict=False)] = ()


class Repo(Part):
    """Where the source comes from when the task folder has no `repo/`."""

    git_url: (
        Annotated[str, Field(description="an address or path of a git repository"), AfterValidator(_checked_git_url)]
        | None
    ) = None
    branch: Revision | None = None
    start_commit_sha: Revision | None = None
    """The commit that the agent starts from."""
    end_commit_sha: Revision | None = None
    """Where the real history went on; for people, never fetched into a sandbox."""
    subdir: RelativePath | None = None
    """The folder of the repository in which the agent starts."""
    sparse_checkout: Annotated[
        tuple[SparsePattern, ...], Field(description="a list of paths or patterns in the repository", strict=False)
    ] = ()
    """Only these paths go into the sandbox; git's own pattern rules."""


class Lm(Part):
    """What the agent is told, unless there is an LM_INSTRUCTIONS.md."""

    instructions: Text | None = None


class Rubric(Part):
    """One thing that is judged, and how much it counts."""

    id: Annotated[str, Field(description=NAME_EXPECTED), AfterValidator(_checked_task_id)]
    criterion: Annotated[str, Field(description="a text")] = ""
    weight: Annotated[float, Field(description="a number above 0", gt=0, allow_inf_nan=False)] = 1.0


class TestScript(Part):
    """A hidden test that a rubric is judged by."""

    __test__ = False  # a task's test, not one of pytest's

    path: RelativePath
    rubric_id: Annotated[str, Field(description="the id of a rubric")]
    content: Annotated[str, Field(description="the script's text")]


class Evaluation(Part):
    """How patches are scored."""

    rubrics: Annotated[tuple[Rubric, ...], Field(description="a list of rubrics", strict=False)] = ()
    test_scripts: Annotated[tuple[TestScript, ...], Field(description="a list of test scripts", strict=False)] = ()
    setup: Text | None = None
    command: Text | None = None
    fail_to_pass: Annotated[tuple[str, ...], Field(description="a list of test ids", strict=False)] = ()
    pass_to_pass: Annotated[tuple[str, ...], Field(description="a list of test ids", strict=False)] = ()
    protected_paths: Annotated[
        tuple[PathPattern, ...], Field(description="a list of paths in the repository", strict=False)
    ] = ()
    timeout_s: Seconds = 600.0
    """Wall clock of setup, tests and metrics together."""
    metrics: Text | None = None
    """A command that prints a JSON object, in place of `evaluate.py` or `evaluate.sh`."""

    @property
    def expected_ids(self) -> tuple[str, ...]:
        """Every test that a list names."""
        return (*self.fail_to_pass, *self.pass_to_pass)


class EnvironmentSpec(Part):
    """The box that the task wants."""

    image: Text | None = None
    dockerfile: RelativePath | None = None
    user: Annotated[str, Field(description="a user as name, uid or uid:gid"), AfterValidator(_checked_user)] | None = (
        None
    )
    workdir: (
        Annotated[str, Field(description="an absolute path, like /app/repo"), AfterValidator(_checked_workdir)] | None
    ) = None


class InjectedFile(Part):
    """A file that overrides put into the repository."""

    path: RelativePath
    content: Annotated[str, Field(description="the file's text")]


@dataclass(frozen=True)
class Task:
    """A task, ready to be planned. Overrides are applied: what their files change is still to be done to the source."""

    folder: Path
    task_id: str
    title: str
    tags: tuple[str, ...]
    instructions: str
    repo: Repo
    evaluation: Evaluation
    environment: EnvironmentSpec
    remove_repo_paths: tuple[str, ...] = ()
    inject_files: tuple[InjectedFile, ...] = ()
    environment_variables: Environment = field(default_factory=dict)
    overrides: Path | None = None
    """Which overrides were used."""
    digest: str = ""
    """Names the content of all this: the folder's files and the overrides."""
    parts: Mapping[str, str] = field(default_factory=dict)
    """The digest of each part of the folder."""

    def part(self, name: str) -> Path | None:
        """The file or folder of that name in the task's folder, when it is there."""
        path = self.folder / name
        return path if path.exists() else None

    @property
    def solution(self) -> Path | None:
        """The reference patch."""
        path = self.folder / "solution.patch"
        return path if path.is_file() else None

    @property
    def dockerfile(self) -> Path | None:
        """What the task's image is built from, when the task brings that."""
        path = self.folder / (self.environment.dockerfile or "Dockerfile")
        return path if path.is_file() else None
