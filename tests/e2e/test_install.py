"""What `pip install .` gives: a command that works from any directory, without the checkout."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.command_line import CHECKOUT, Project


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel's content, away from the checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        str(folder),
        str(CHECKOUT),
    ]
    subprocess.run(build, check=True, timeout=200)
    (wheel,) = folder.glob("rollouts-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


def test_the_installed_package_runs_a_benchmark_from_any_directory(installed: Path, tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.task()
    config = project.config(
        'agent = "command"\ncommand = "echo x >>hello.txt"\n[[tasks]]\nprepared_dir = "tasks/greet"\n'
    )
    program = (
        "import sys, rollouts.cli; assert sys.argv.pop(1) in rollouts.__file__, rollouts.__file__; rollouts.cli.main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(installed), "run", str(config), "--backend", "local"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert b"+x" in project.patch(project.manifest()["results"][0])


def test_the_wheel_names_the_console_script_and_the_sandbox_scripts(installed: Path) -> None:
    (entry_points,) = installed.glob("rollouts-*.dist-info/entry_points.txt")
    assert "rollouts = rollouts.cli:main" in entry_points.read_text()
    shipped = {path.name for path in (installed / "rollouts/sandbox").iterdir()}
    assert shipped == {path.name for path in (CHECKOUT / "sandbox").iterdir()}
