"""Small tasks, benchmarks, plans and results that tests are made from."""

import json
import os
import stat
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from rollouts.config import Benchmark
from rollouts.plan import RunSpec, make_plan
from rollouts.results import RunResult, Status
from rollouts.task_folder import load_task
from rollouts.tasks import Task

Content = bytes | str
GIT_FREE = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
GIT_ENV = {**GIT_FREE, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
WHO = ("-c", "user.name=someone", "-c", "user.email=someone@localhost", "-c", "protocol.file.allow=always")


def write_files(folder: Path, files: Mapping[str, Content]) -> Path:
    """Make files below a folder; text is written as UTF-8."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return folder


def write_task(
    folder: Path,
    *,
    repo: Mapping[str, Content] | None = None,
    meta: Mapping[str, Any] | None = None,
    overrides: Mapping[str, Any] | None = None,
    instructions: str | None = "Make it work.\n",
    files: Mapping[str, Content] | None = None,
) -> Path:
    """Make a task folder; its id is the folder's name."""
    write_files(folder, files or {})
    (folder / "tb_meta.json").write_text(json.dumps({"task_id": folder.name, **(meta or {})}))
    if instructions is not None:
        (folder / "LM_INSTRUCTIONS.md").write_text(instructions)
    if overrides is not None:
        (folder / "overrides.json").write_text(json.dumps(overrides))
    if repo is not None or "repo" not in (meta or {}):
        write_files(folder / "repo", {"main.py": "print('hello')\n"} if repo is None else repo)
    return folder


def make_task(folder: Path, **parts: Any) -> Task:
    """The same, read back."""
    return load_task(write_task(folder, **parts))


def make_benchmark(**keys: Any) -> Benchmark:
    """A benchmark as if read from a file; one entry with the agent nop unless told otherwise."""
    tasks = keys.pop("tasks", [{"prepared_dir": "t", "agent": "nop"}])
    return Benchmark.model_validate({"name": "bench", **keys, "tasks": tasks})


def make_spec(task: Task, **changes: Any) -> RunSpec:
    """One run of a task."""
    return replace(make_plan(make_benchmark(), [[task]])[0], **changes)


def make_result(**changes: Any) -> RunResult:
    """A run that went well."""
    result = RunResult(
        task_dir="data/tasks/prepared/t",
        run_id="20260101__00-00-00-0",
        status=Status.LAUNCHED,
        launch_rc=0,
        run_dir="data/runs/20260101__00-00-00-0",
        task_id="t",
        model="gpt-4",
        agent="codex",
        rollout=0,
        key="k",
    )
    return replace(result, **changes)


def git(*arguments: str, cwd: Path) -> str:
    """What git says, without this machine's settings."""
    done = subprocess.run(["git", *WHO, *arguments], cwd=cwd, env=GIT_ENV, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, f"git {' '.join(arguments)}: {done.stderr}"
    return done.stdout.strip()


def make_repository(folder: Path, *commits: Mapping[str, Content]) -> list[str]:
    """A git repository with a commit for each mapping of files; returns their ids."""
    folder.mkdir(parents=True)
    git("init", "-q", "-b", "main", cwd=folder)
    made = []
    for number, files in enumerate(commits):
        write_files(folder, files)
        git("add", "-A", cwd=folder)
        git("commit", "-q", "--allow-empty", "-m", f"commit {number}", cwd=folder)
        made.append(git("rev-parse", "HEAD", cwd=folder))
    return made


Tree = dict[bytes, tuple[str, bytes]]


def read_tree(folder: Path) -> Tree:
    """Every file below a folder as git sees it: kind (file, executable or link) and content. `.git` does not count."""
    found: Tree = {}
    for root, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name != ".git"]
        for path in (Path(root, name) for name in (*names, *folders) if name != ".git"):
            mode, name = path.lstat().st_mode, os.fsencode(path.relative_to(folder))
            if stat.S_ISLNK(mode):
                found[name] = ("link", os.fsencode(path.readlink()))
            elif stat.S_ISREG(mode):
                found[name] = ("executable" if mode & 0o100 else "file", path.read_bytes())
    return found
