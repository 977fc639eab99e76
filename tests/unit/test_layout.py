"""The layout: a file imports only from files above it, and nobody pays for a library they do not use."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import rollouts

SOURCE = Path(rollouts.__file__).parent
ORDER = (
    "rollouts",  # the package itself: its version
    "errors",
    "terminal",
    "digests",
    "mistakes",
    "files",
    "config",
    "tasks",
    "task_folder",
    "plan",
    "results",
    "owner",
    "image_uses",
    "locks",
    "disks",
    "store",
    "leftovers",
    "pruning",
    "archive",
    "logs",
    "schedule",
    "gate",
    "backends.disk_use",
    "backends.handout",
    "backends.base",
    "backends.bubblewrap",
    "backends.processes",
    "backends.local",
    "backends.image_tree",
    "backends.docker_images",
    "backends.docker",
    "backends",
    "cleaning",
    "outage",
    "agents.base",
    "agents.nop",
    "agents.oracle",
    "agents.replay",
    "agents.command",
    "agents",
    "repositories",
    "workspace",
    "prepare",
    "scoring",
    "scoring.chat",
    "scoring.judge",
    "scoring.bending",
    "scoring.patch",
    "scoring.tree",
    "scoring.tests",
    "scoring.verdict",
    "scoring.rubric",
    "scoring.runner",
    "scoring.box_result",
    "scoring.job",
    "scoring.score",
    "scoring.scorecard",
    "eval_manifest",
    "scoring.record",
    "signals",
    "evaluation",
    "validation",
    "planning",
    "resuming",
    "execute",
    "batch",
    "summary",
    "doctor",
    "tables",
    "console",
    "cli",
)
STARTERS = ("Popen", "run", "call", "check_call", "check_output")
OWNERS = {
    "rich": ("console", "tables"),
    "typer": ("cli",),
    "docker": ("backends.docker", "backends.docker_images"),
    "modal": ("backends.modal",),
    "git": ("repositories",),
    "tomli": ("config", "scoring.bending"),
    "httpx": ("scoring.chat",),
}
"""Who alone may import a library."""
FILES = sorted(SOURCE.rglob("*.py"))


def name_of(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__") or "rollouts"


@cache
def imports(path: Path) -> frozenset[str]:
    """Every module that a file imports, also within functions."""
    return frozenset(_imports(ast.parse(path.read_text(encoding="utf-8"))))


def _imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide the direction"
            module = node.module or ""
            known = {f"rollouts.{name}" for name in ORDER}
            inner = {f"{module}.{alias.name}" for alias in node.names} & known
            yield from inner or {module}


def test_every_file_has_its_place_in_the_order() -> None:
    assert {name_of(path) for path in FILES} == set(ORDER)


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_a_file_imports_only_from_files_above_it(path: Path) -> None:
    above = ORDER[: ORDER.index(name_of(path))]
    ours = {name.removeprefix("rollouts.") for name in imports(path) if name.split(".")[0] == "rollouts"}
    assert ours <= set(above)


def test_nobody_imports_the_command_line() -> None:
    assert [path.name for path in FILES if "rollouts.cli" in imports(path)] == []


@pytest.mark.parametrize("library", OWNERS)
def test_a_library_is_imported_by_its_owner_alone(library: str) -> None:
    users = {name_of(path) for path in FILES if any(name.split(".")[0] == library for name in imports(path))}
    assert users <= set(OWNERS[library])


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_every_file_says_what_lives_in_it(path: Path) -> None:
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    assert docstring
    assert len(docstring.splitlines()) <= 9


def loaded_by(statement: str) -> set[str]:
    """The modules that a fresh Python holds after a statement."""
    code = f"{statement}\nimport sys\nprint('\\n'.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    return set(done.stdout.split())


def test_importing_the_package_loads_nothing_and_says_nothing() -> None:
    added = loaded_by("import rollouts") - loaded_by("pass")
    assert {name for name in added if not name.startswith("_")} == {"rollouts"}


def test_the_command_line_loads_nothing_heavy() -> None:
    heavy = {
        "pydantic",
        "docker",
        "rich.live",
        "git",
        "modal",
        "tomli",
        "filelock",
        "httpx",
        "rollouts.batch",
        "asyncio",
    }
    assert loaded_by("import rollouts.cli") & heavy == set()


def test_reading_a_benchmark_loads_no_engine_and_no_screen() -> None:
    loaded = loaded_by("import rollouts.task_folder, rollouts.plan")
    assert loaded & {"docker", "rich", "typer", "git", "modal", "requests"} == set()


def test_a_judge_loads_its_client_when_it_asks() -> None:
    assert loaded_by("import rollouts.scoring.judge") & {"httpx", "anyio", "asyncio"} == set()


def test_the_local_sandbox_loads_no_engine() -> None:
    lines = (
        "from pathlib import Path",
        "from rollouts.config import DockerSettings",
        "from rollouts.backends import open_backend",
        "open_backend('local', DockerSettings(), Path('/tmp')).close()",
    )
    assert loaded_by("\n".join(lines)) & {"docker", "rich", "git", "modal"} == set()


def test_every_program_is_started_out_of_reach_of_the_terminals_signals() -> None:
    """A Ctrl-C goes to a terminal's whole process group: a copy or a capture under way must not die of it."""
    found = 0
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Call(func=ast.Attribute(value=ast.Name("subprocess"), attr=attr)) if attr in STARTERS:
                    found += 1
                    assert "start_new_session" in {word.arg for word in node.keywords}, f"{path}:{node.lineno}"
    assert found > 4
