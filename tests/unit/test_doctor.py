"""Looking a machine over: what is found, what is advised, and what the exit code makes of it."""

import shutil
from pathlib import Path
from typing import NamedTuple

import pytest

from rollouts import doctor
from rollouts.backends.base import Finding
from rollouts.doctor import examine, exit_code_of
from rollouts.errors import ExitCode
from rollouts.store import DataRoot

GIT, LOCAL, DOCKER = (Finding(name, True, "") for name in ("git", "local sandbox", "docker engine"))


class Usage(NamedTuple):
    free: int


@pytest.fixture
def found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Finding]:
    monkeypatch.setattr(doctor, "BACKENDS", {"local": "rollouts.backends.local:LocalBackend"})
    monkeypatch.setenv("OPENAI_API_KEY", "sk-canary-0123456789")
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: Usage(free=50_000_000_000))
    return {finding.name: finding for finding in examine(DataRoot(tmp_path / "not/there/yet"))}


def test_everything_worth_knowing_is_looked_at(found: dict[str, Finding]) -> None:
    assert set(found) >= {"rollouts", "git", "disk", "local sandbox", "bubblewrap", "OPENAI_API_KEY"}
    assert found["git"].ok
    assert found["git"].detail[0].isdigit()


def test_looking_makes_nothing(found: dict[str, Finding], tmp_path: Path) -> None:
    assert not (tmp_path / "not").exists()


def test_keys_are_told_by_name_and_never_shown(found: dict[str, Finding]) -> None:
    assert (found["OPENAI_API_KEY"].ok, found["OPENAI_API_KEY"].detail) == (True, "set")
    missing = found["ANTHROPIC_API_KEY"]
    assert (missing.ok, missing.advice) == (False, "export ANTHROPIC_API_KEY to use its models")
    assert "canary" not in str(found)


def test_everything_missing_comes_with_advice(found: dict[str, Finding]) -> None:
    assert [finding.name for finding in found.values() if not finding.ok and not finding.advice] == []


def test_git_that_is_missing_is_advised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert doctor._git() == Finding(
        "git", False, "not found", "install git: tasks are prepared and patches made with it"
    )


def test_a_disk_that_is_nearly_full_is_advised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: Usage(free=1_000_000_000))
    finding = doctor._disk(DataRoot(tmp_path / "data"))
    assert (finding.ok, finding.advice) == (False, "free some space: less than 5 GB is left")


@pytest.mark.parametrize(
    ("findings", "code"),
    [
        ([GIT, LOCAL], ExitCode.OK),
        ([GIT, DOCKER], ExitCode.OK),
        ([GIT, LOCAL, Finding("disk", False, "")], ExitCode.OK),
        ([LOCAL, DOCKER], ExitCode.BACKEND_UNAVAILABLE),
        ([GIT, Finding("docker engine", False, "")], ExitCode.BACKEND_UNAVAILABLE),
    ],
)
def test_the_exit_code_says_whether_anything_can_run(findings: list[Finding], code: ExitCode) -> None:
    assert exit_code_of(findings) is code
