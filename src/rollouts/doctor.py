"""Looks over this machine: what is there, what is missing, and what to do about it. Starts and changes nothing."""

import os
import platform
import shutil
import subprocess
from pathlib import Path

from rollouts import __version__
from rollouts.backends import BACKENDS, open_backend
from rollouts.backends.base import Finding
from rollouts.config import DockerSettings, choose_docker_settings
from rollouts.errors import ExitCode
from rollouts.store import DataRoot

KEY_NAMES = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY")
FREE_DISK_GB = 5.0


def examine(root: DataRoot) -> list[Finding]:
    """Everything worth knowing before a first run."""
    settings = choose_docker_settings(os.environ, DockerSettings())
    findings = [Finding("rollouts", True, f"{__version__}, Python {platform.python_version()}"), _git(), _disk(root)]
    for name in BACKENDS:
        backend = open_backend(name, settings, root.cache)
        findings += backend.findings()
        backend.close()
    return findings + [_key(name) for name in KEY_NAMES]


def exit_code_of(findings: list[Finding]) -> ExitCode:
    """0 as long as tasks can be prepared and some sandbox works."""
    fine = {finding.name for finding in findings if finding.ok}
    return ExitCode.OK if "git" in fine and fine & {"docker engine", "local sandbox"} else ExitCode.BACKEND_UNAVAILABLE


def _git() -> Finding:
    path = shutil.which("git")
    if path is None:
        return Finding("git", False, "not found", "install git: tasks are prepared and patches made with it")
    command = [path, "--version"]
    version = subprocess.run(command, capture_output=True, text=True, timeout=30, start_new_session=True).stdout.strip()
    return Finding("git", True, version.removeprefix("git version "))


def _disk(root: DataRoot) -> Finding:
    folder = Path(os.path.abspath(root.path))
    while not folder.exists():
        folder = folder.parent
    free_gb = shutil.disk_usage(folder).free / 1e9
    writable = os.access(folder, os.W_OK)
    detail = f"{free_gb:.0f} GB free at {root.path}" if writable else f"{root.path} cannot be written"
    advice = "" if writable else "choose another place with --data-dir or $ROLLOUTS_DATA"
    if free_gb < FREE_DISK_GB:
        advice = f"free some space: less than {FREE_DISK_GB:.0f} GB is left"
    return Finding("disk", writable and free_gb >= FREE_DISK_GB, detail, advice)


def _key(name: str) -> Finding:
    """Only whether it is there; a value is never shown."""
    there = bool(os.environ.get(name))
    return Finding(
        name, there, "set" if there else "not set", "" if there else f"export {name} to use its models", True
    )
