"""Edits that could bend a verdict without a fix: which they are, and what is done about each.

Only names and texts are looked at here; `tree.py` acts on it. What no name gives away, like an object that says it is
equal to everything, cannot be found this way: docs/scoring.md says so.
"""

import json
import re
import sys
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

import tomli

TEST_FOLDERS = ("tests", "test", "__tests__", "spec", "specs")
_TEST_FILE = re.compile(
    r"test_.*\.py|.*_test\.(py|go|rb|exs?|dart)|.*\.(test|spec)\.[cm]?[jt]sx?|.*_spec\.rb|.*Tests?\.(java|kt|cs)"
)
_RUNNER_CONFIG = re.compile(
    r"conftest\.py|\.?pytest\.(ini|toml)|(jest|vitest|karma|playwright)\.(config|conf)\.\w+|\.mocharc(\.\w+)?|\.rspec"
    r"|phpunit\.xml(\.dist)?|unittest\.cfg|\.nycrc(\.\w+)?|\.npmrc|\.yarnrc(\.yml)?|bunfig\.toml"
)
_RUNNER_FOLDER = re.compile(r"(.*/)?(\.cargo/config(\.toml)?|\.mvn/[^/]+)")
_BUILD_CONFIG = re.compile(r"vite\.config\.\w+|babel\.config\.\w+|\.babelrc(\.\w+)?|tsconfig.*\.json")
_PLUGIN = re.compile(r"(.*/)?[^/]+\.(dist|egg)-info/entry_points\.txt", re.IGNORECASE)
"""By this a package that lies where imports begin brings a plugin, and pytest loads it."""
_FILE_OF_MODULE = r"\.(pyc?|([\w-]+\.)?so)"
_STARTUP = re.compile(rf"(.*/)?((site|user)customize(/__init__)?{_FILE_OF_MODULE}|[^/]+\.pth)", re.DOTALL)
_MODULE = re.compile(rf"(\w+)(/__init__)?{_FILE_OF_MODULE}")
_RUNNERS = ("pytest", "_pytest", "pluggy", "unittest", "doctest", "nose")
_PROGRAM_FOLDERS = ("node_modules/.bin/", ".venv/bin/", "venv/bin/")
_SHARED_CONFIG = ("pyproject.toml", "setup.cfg", "tox.ini", "package.json")
_PYTEST_SECTION = re.compile(r"^\[[^\n]*pytest.*?(?=^\[|\Z)", re.MULTILINE | re.DOTALL)
"""As text: what one reader of such files takes for a section, another does not."""
_PACKAGE_SETTINGS = ("scripts", "jest", "mocha")
_TOOLS = ("sh", "bash", "env", "python", "python3", "pytest", "node", "npm", "npx", "make", "cc", "gcc", "go", "cargo")
_WORDS = (
    b"_pytest",
    b"pytest_runtest",
    b"PYTEST_CURRENT_TEST",
    b"os._exit",
    b"/proc/self",
    b"gc.get_objects",
    b"ROLLOUTS_",
    b"import __main__",
)
"""What a fix hardly ever needs, and a program that reaches for its tests does."""


@dataclass(frozen=True)
class Flag:
    """An edit that could bend the verdict, and what was done about it."""

    kind: str
    path: str
    action: str
    """`put back`, `removed` or `kept`."""
    detail: str = ""


def names_tests(folder: str) -> bool:
    """Whether a folder that holds a task's tests is named as one for tests."""
    return folder in TEST_FOLDERS or folder.endswith(("_tests", "-tests"))


def looks_like_test(path: str) -> bool:
    """Whether a file is named as test runners name tests."""
    return _TEST_FILE.fullmatch(PurePosixPath(path).name) is not None


def always_undone(path: str, is_new: bool) -> str | None:
    """The kind of an edit that no fix needs and that tests would see: it is undone wherever it is."""
    name = PurePosixPath(path).name
    if _RUNNER_CONFIG.fullmatch(name) or _PLUGIN.fullmatch(path) or _RUNNER_FOLDER.fullmatch(path):
        return "runner_config"
    if _STARTUP.fullmatch(path):
        return "startup_hook"
    if any(f"/{folder}" in f"/{path}" for folder in _PROGRAM_FOLDERS):
        return "path_shim"
    return "shadowed_runner" if is_new and _module(path) in _RUNNERS else None


def worth_telling(
    path: str, mode_is_executable: bool, before: bytes | None, after: bytes, command: str
) -> list[tuple[str, str]]:
    """Kind and detail of what stays in place and may still bend the verdict of tests that `command` runs."""
    name = PurePosixPath(path).name
    found = []
    if before is None and _module(path) in sys.stdlib_module_names:
        found.append(("shadowed_module", _module(path) or ""))
    if before is None and mode_is_executable and name in _TOOLS:
        found.append(("path_shim", name))
    if settings_changed(path, before, after):
        found.append(("runner_config", "its settings of the test runner are not used"))
    if _BUILD_CONFIG.fullmatch(name):
        found.append(("runner_config", "a test runner may read it"))
    if name in ("Makefile", "GNUmakefile", "makefile") and "make" in command:
        found.append(("runner_config", "a make target may be how the tests are run"))
    words = [word.decode() for word in _WORDS if word in after and word not in (before or b"")]
    found += [("suspicious_code", ", ".join(words))] if words else []
    return found


def settings_changed(path: str, before: bytes | None, after: bytes | None) -> bool:
    """Whether a file that is not the test runner's alone has other settings for it now. `after`: None for a link."""
    name = PurePosixPath(path).name
    if name not in _SHARED_CONFIG:
        return False
    return after is None or _test_settings(name, before or b"") != _test_settings(name, after)


def with_settings_of(path: str, before: bytes | None, after: bytes) -> bytes | None:
    """The file as it is now, its settings of the test runner as they were; None where these cannot be told apart."""
    if PurePosixPath(path).name != "package.json":
        return None
    try:
        old, new = json.loads(before or b"{}"), json.loads(after)
        kept = {key: value for key, value in new.items() if key not in _PACKAGE_SETTINGS}
        return json.dumps(kept | {key: old[key] for key in _PACKAGE_SETTINGS if key in old}, indent=2).encode()
    except (ValueError, AttributeError, TypeError, RecursionError):
        return None


def _module(path: str) -> str | None:
    """The name under which Python would import the file, when it lies where imports begin."""
    parts = PurePosixPath(path).parts
    parts = parts[1:] if parts[0] in ("src", "lib", *TEST_FOLDERS) and len(parts) > 1 else parts
    found = _MODULE.fullmatch("/".join(parts))
    return found.group(1) if found else None


def _test_settings(name: str, data: bytes) -> Any:
    """The part of a shared settings file that a test runner reads; None when there is none."""
    text = data.decode("utf-8", "replace")
    try:
        if name == "pyproject.toml":
            return tomli.loads(text).get("tool", {}).get("pytest")
        if name == "package.json":
            package = json.loads(text)
            return {key: package.get(key) for key in _PACKAGE_SETTINGS}
        return _PYTEST_SECTION.findall(text)
    except (tomli.TOMLDecodeError, ValueError, AttributeError, RecursionError):
        return None


def has_pytest_settings(name: str, data: bytes) -> bool:
    """Whether pytest would take that file for its settings."""
    if name in ("pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml"):
        return True
    settings = _test_settings(name, data) or ()
    section = {"tox.ini": "[pytest]", "setup.cfg": "[tool:pytest]"}.get(name)
    if section:
        return any(text.startswith(section) for text in settings)
    return name == "pyproject.toml" and bool(settings)
