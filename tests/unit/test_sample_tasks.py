"""The committed sample tasks are sound: their tests tell the untouched source and the reference solution apart.

Real tests run here, in copies of each source. Every test that runs must stand in `fail_to_pass` or `pass_to_pass`.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

PREPARED = Path(__file__).resolve().parents[2] / "data" / "tasks" / "prepared"
NEEDED_PROGRAMS = {"js_slugify": "node", "c_ring_buffer": "cc"}
TAP_LINE = re.compile(r"^(not )?ok \d+ - (.*)$", re.MULTILINE)
OVERRIDE_KEYS = {
    "remove_repo_paths",
    "inject_files",
    "repo",
    "lm_instructions",
    "environment_variables",
    "evaluation",
}


@dataclass(frozen=True)
class Sample:
    """A task folder, read without the program's own reader."""

    folder: Path
    meta: Mapping[str, Any]
    overrides: Mapping[str, Any]

    @property
    def evaluation(self) -> Mapping[str, Any]:
        return self.meta["evaluation"]  # type: ignore[no-any-return]  # JSON

    def ids(self, key: str) -> list[str]:
        return list(self.evaluation[key])


@dataclass(frozen=True)
class Outcome:
    """What a task's tests said. A test that is missing from `passed` did not run."""

    passed: Mapping[str, bool]
    exit_code: int
    output: str


def read_sample(folder: Path) -> Sample:
    overrides = folder / "overrides.json"
    return Sample(
        folder=folder,
        meta=json.loads((folder / "tb_meta.json").read_text(encoding="utf-8")),
        overrides=json.loads(overrides.read_text(encoding="utf-8")) if overrides.exists() else {},
    )


SAMPLES = [read_sample(path.parent) for path in sorted(PREPARED.glob("*/tb_meta.json"))]


def each(samples: list[Sample]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    return pytest.mark.parametrize("sample", samples, ids=lambda sample: sample.folder.name)


def with_part(name: str) -> list[Sample]:
    return [sample for sample in SAMPLES if (sample.folder / name).exists()]


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's variables without those that bend a pytest or a compiler."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "GIT_"))}
    for name in ("CC", "CFLAGS", "TEST_SHELL"):
        kept.pop(name, None)
    return {**kept, "PYTHONDONTWRITEBYTECODE": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **(extra or {})}


def git(*arguments: str, repo: Path) -> str:
    ended = subprocess.run(
        ["git", *arguments], cwd=repo, env=environment(), capture_output=True, text=True, encoding="utf-8", check=False
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def prepare_repo(sample: Sample, tmp_path: Path) -> Path:
    """The source as an agent gets it."""
    repo = tmp_path / "repo"
    shutil.copytree(sample.folder / "repo", repo)
    if (sample.folder / "overlay_repo_files").is_dir():
        shutil.copytree(sample.folder / "overlay_repo_files", repo, dirs_exist_ok=True)
    for injected in sample.overrides.get("inject_files", ()):
        target = repo / injected["path"]
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(injected["content"], encoding="utf-8")
    git("init", "--quiet", repo=repo)  # else `git apply` would look at a repository further up
    return repo


def solve(sample: Sample, repo: Path) -> None:
    git("apply", str(sample.folder / "solution.patch"), repo=repo)


def run_tests(sample: Sample, repo: Path, extra_env: Mapping[str, str] | None = None) -> Outcome:
    """Put the hidden tests in place and run all tests."""
    program = NEEDED_PROGRAMS.get(sample.folder.name)
    if program is not None and shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")
    shutil.copytree(sample.folder / "tests", repo / "tests", dirs_exist_ok=True)
    for script in sample.evaluation["test_scripts"]:
        if "content" in script:
            (repo / script["path"]).write_text(script["content"], encoding="utf-8")
    junit = repo.parent / "junit.xml"
    command = sample.evaluation.get("command")
    pytest_arguments = [sys.executable, "-m", "pytest", "tests", "-p", "no:cacheprovider", f"--junitxml={junit}"]
    ended = subprocess.run(
        ["sh", "-c", command] if command else pytest_arguments,
        cwd=repo,
        env=environment({**sample.overrides.get("environment_variables", {}), **(extra_env or {})}),
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=sample.evaluation["timeout_s"],
        check=False,
    )
    passed = read_tap(ended.stdout) if command else read_junit(junit)
    return Outcome(passed, ended.returncode, ended.stdout + ended.stderr)


def read_tap(text: str) -> dict[str, bool]:
    return {name: not failed for failed, name in TAP_LINE.findall(text)}


def read_junit(path: Path) -> dict[str, bool]:
    passed = {}
    for case in ElementTree.parse(path).iter("testcase"):
        file = case.attrib["classname"].replace(".", "/") + ".py"
        passed[f"{file}::{case.attrib['name']}"] = not list(case)
    return passed


def test_there_are_samples_in_several_languages() -> None:
    tags = {tag for sample in SAMPLES for tag in sample.meta["metadata"]["tags"]}
    assert {"python", "shell", "javascript", "c"} <= tags


@each(SAMPLES)
def test_the_description_is_complete(sample: Sample) -> None:
    metadata = sample.meta["metadata"]
    assert sample.meta["task_id"] == sample.folder.name
    assert metadata["title"]
    assert {"easy", "medium", "hard"} & set(metadata["tags"])
    assert sample.evaluation["timeout_s"] > 0


@each(SAMPLES)
def test_instructions_stand_in_one_place(sample: Sample) -> None:
    file = sample.folder / "LM_INSTRUCTIONS.md"
    texts = [file.read_text(encoding="utf-8")] if file.exists() else []
    if "lm" in sample.meta:
        texts.append(sample.meta["lm"]["instructions"])
    assert len(texts) == 1
    assert texts[0].strip()


@each(SAMPLES)
def test_rubrics_and_test_scripts_fit_together(sample: Sample) -> None:
    rubrics = {rubric["id"]: rubric for rubric in sample.evaluation["rubrics"]}
    scripts = sample.evaluation["test_scripts"]
    assert len(rubrics) == len(sample.evaluation["rubrics"])
    assert all(rubric["criterion"] for rubric in rubrics.values())
    assert sum(rubric["weight"] for rubric in rubrics.values()) == pytest.approx(1.0)
    assert {script["rubric_id"] for script in scripts} <= rubrics.keys()


@each(SAMPLES)
def test_a_script_given_twice_is_the_same_twice(sample: Sample) -> None:
    for script in sample.evaluation["test_scripts"]:
        file = sample.folder / script["path"]
        assert "content" in script or file.is_file()
        if "content" in script and file.is_file():
            assert script["content"] == file.read_text(encoding="utf-8"), script["path"]


@each(SAMPLES)
def test_every_test_id_stands_in_one_list(sample: Sample) -> None:
    ids = sample.ids("fail_to_pass") + sample.ids("pass_to_pass")
    assert sample.ids("fail_to_pass")
    assert len(ids) == len(set(ids))


@each(SAMPLES)
def test_the_source_is_small_and_plain(sample: Sample) -> None:
    entries = list((sample.folder / "repo").rglob("*"))
    files = [entry for entry in entries if entry.is_file()]
    assert 4 <= len(files) <= 15
    assert (sample.folder / "repo" / "README.md").is_file()
    assert not any(entry.is_symlink() or entry.name == ".git" for entry in entries)


@each(SAMPLES)
def test_the_solution_leaves_protected_paths_alone(sample: Sample, tmp_path: Path) -> None:
    repo = prepare_repo(sample, tmp_path)
    numstat = git("apply", "--numstat", str(sample.folder / "solution.patch"), repo=repo)
    changed = [line.split("\t")[2] for line in numstat.splitlines()]
    protected = tuple(sample.evaluation["protected_paths"])
    assert "tests/" in protected
    assert changed
    assert not [path for path in changed if path.startswith(protected)]


@each(SAMPLES)
def test_the_untouched_source_fails_exactly_what_it_should(sample: Sample, tmp_path: Path) -> None:
    outcome = run_tests(sample, prepare_repo(sample, tmp_path))
    assert outcome.exit_code == 1, outcome.output
    assert [name for name in sample.ids("fail_to_pass") if outcome.passed.get(name)] == []
    assert [name for name in sample.ids("pass_to_pass") if not outcome.passed.get(name)] == [], outcome.output


@each(SAMPLES)
def test_the_solution_passes_every_test(sample: Sample, tmp_path: Path) -> None:
    repo = prepare_repo(sample, tmp_path)
    solve(sample, repo)
    outcome = run_tests(sample, repo)
    expected = sample.ids("fail_to_pass") + sample.ids("pass_to_pass")
    assert outcome.exit_code == 0, outcome.output
    assert outcome.passed == dict.fromkeys(expected, True)


@each([sample for sample in SAMPLES if "shell" in sample.meta["metadata"]["tags"]])
@pytest.mark.parametrize("shell", ["dash", "bash"])
def test_shell_solutions_work_in_every_common_shell(sample: Sample, shell: str, tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    repo = prepare_repo(sample, tmp_path)
    solve(sample, repo)
    outcome = run_tests(sample, repo, {"TEST_SHELL": shell})
    assert outcome.exit_code == 0, outcome.output


@each(with_part("overrides.json"))
def test_overrides_have_known_keys_and_add_new_files(sample: Sample) -> None:
    assert sample.overrides.keys() <= OVERRIDE_KEYS
    for injected in sample.overrides.get("inject_files", ()):
        assert not (sample.folder / "repo" / injected["path"]).exists()


@each(with_part("Dockerfile"))
def test_an_image_starts_from_the_base_it_is_given(sample: Sample) -> None:
    lines = (sample.folder / "Dockerfile").read_text(encoding="utf-8").splitlines()
    assert lines[:2] == ["ARG BASE_IMAGE", "FROM ${BASE_IMAGE}"]


@each(with_part("evaluate.py"))
def test_custom_metrics_are_one_json_object_of_numbers(sample: Sample, tmp_path: Path) -> None:
    repo = prepare_repo(sample, tmp_path)
    solve(sample, repo)
    printed = subprocess.run(
        [sys.executable, str(sample.folder / "evaluate.py")],
        cwd=repo,
        env=environment(),
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=True,
    ).stdout
    metrics = json.loads(printed)
    assert metrics
    assert all(isinstance(value, int | float) for value in metrics.values())
