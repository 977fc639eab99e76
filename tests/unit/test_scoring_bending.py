"""Which edits bend a verdict: what is undone wherever it is, what is only told, what is left alone."""

import pytest

from rollouts.scoring.bending import always_undone, has_pytest_settings, worth_telling


@pytest.mark.parametrize("folder", ["", "pkg/", "src/deep/er/"])
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("conftest.py", "runner_config"),
        ("pytest.ini", "runner_config"),
        (".pytest.ini", "runner_config"),
        ("pytest.toml", "runner_config"),
        (".pytest.toml", "runner_config"),
        ("jest.config.js", "runner_config"),
        ("jest.config.mjs", "runner_config"),
        ("vitest.config.ts", "runner_config"),
        ("karma.conf.js", "runner_config"),
        ("playwright.config.ts", "runner_config"),
        (".mocharc", "runner_config"),
        (".mocharc.json", "runner_config"),
        (".rspec", "runner_config"),
        ("phpunit.xml", "runner_config"),
        ("phpunit.xml.dist", "runner_config"),
        ("sitecustomize.py", "startup_hook"),
        ("usercustomize.py", "startup_hook"),
        ("sitecustomize.pyc", "startup_hook"),
        ("sitecustomize/__init__.py", "startup_hook"),
        ("new\nline/sitecustomize.so", "startup_hook"),
        ("evil.pth", "startup_hook"),
        ("node_modules/.bin/jest", "path_shim"),
        (".venv/bin/python", "path_shim"),
        ("venv/bin/pytest", "path_shim"),
    ],
)
@pytest.mark.parametrize("is_new", [True, False])
def test_what_no_fix_needs_is_undone_wherever_it_is(folder: str, name: str, kind: str, is_new: bool) -> None:
    assert always_undone(folder + name, is_new) == kind


@pytest.mark.parametrize(
    "path",
    ["pytest.py", "pytest/__init__.py", "src/pytest.py", "lib/_pytest/__init__.py", "tests/pluggy.py", "unittest.py",
     "unittest/__init__.py", "nose.py", "src/doctest.py", "pytest.pyc", "pytest.so",
     "pytest.cpython-311-x86_64-linux-gnu.so", "pytest/__init__.pyc"],
)  # fmt: skip
def test_a_new_module_that_hides_the_runner_is_undone(path: str) -> None:
    assert always_undone(path, True) == "shadowed_runner"
    assert always_undone(path, False) is None


@pytest.mark.parametrize(
    "path",
    ["django/test/client.py", "src/_pytest/python.py", "src/pytest_plugin.py", "pkg/pytest.py",
     "pkg/unittest/__init__.py", "pytest.md", "pytest", "docs/conftest.py.txt", "myconftest.py", "conftest.pyi",
     "setup.py", "pyproject.toml", "tox.ini", "setup.cfg", "package.json", "bin/python", "model.pt", "config.js",
     "jest.config", "my.jest.config.js", "spec/a.rb", "src/main.py", "weird/.py", ".py", "é.py"],
)  # fmt: skip
@pytest.mark.parametrize("is_new", [True, False])
def test_product_code_is_left_alone(path: str, is_new: bool) -> None:
    assert always_undone(path, is_new) is None


def told(path: str, after: bytes, before: bytes | None = None, executable: bool = False) -> list[tuple[str, str]]:
    return worth_telling(path, executable, before, after, "make test")


@pytest.mark.parametrize("path", ["json.py", "src/json.py", "lib/json/__init__.py", "tests/json.py", "json.so"])
def test_a_new_module_that_hides_one_of_python_is_told(path: str) -> None:
    assert told(path, b"") == [("shadowed_module", "json")]
    assert told(path, b"", before=b"") == []


@pytest.mark.parametrize("path", ["pkg/json.py", "json/other.py", "json.txt", "src/pkg/json/__init__.py", "jsonx.py"])
def test_a_module_inside_a_package_hides_nothing(path: str) -> None:
    assert told(path, b"") == []


def test_a_new_program_named_like_a_tool_is_told() -> None:
    assert told("bin/python3", b"", executable=True) == [("path_shim", "python3")]
    assert told("make", b"", executable=True) == [("path_shim", "make")]
    assert told("bin/python3", b"", before=b"", executable=True) == []
    assert told("bin/python3", b"") == []
    assert told("bin/mytool", b"", executable=True) == []


@pytest.mark.parametrize(
    ("name", "before", "after", "expected"),
    [
        ("pyproject.toml", b"", b"[tool.pytest.ini_options]\na = 1\n", True),
        ("pyproject.toml", b"[tool.pytest.ini_options]\na = 1\n", b"", True),
        ("pyproject.toml", b"[tool.pytest.ini_options]\na = 1\n", b"[tool.pytest.ini_options]\na = 2\n", True),
        ("pyproject.toml", b"[tool.pytest.ini_options]\na = 1\n", b"[x]\n[tool.pytest.ini_options]\na = 1\n", False),
        ("pyproject.toml", b"", b"[project]\n", False),
        ("pyproject.toml", b"", b"tool = 3\n", False),
        ("pyproject.toml", b"", b"not [ TOML", False),
        ("pyproject.toml", b"", b"a = " + b"[" * 5000, False),
        ("pkg/setup.cfg", b"", b"[tool:pytest]\naddopts = -q\n", True),
        ("setup.cfg", b"", b"[metadata]\nname = x\n", False),
        ("tox.ini", b"[pytest]\n", b"[pytest]\naddopts = %s\n", True),
        ("package.json", b"{}", b'{"scripts": {"test": "true"}}', True),
        ("package.json", b"{}", b'{"version": "2"}', False),
        ("package.json", b"{}", b'{"jest": {}}', True),
        ("package.json", b"[]", b"3", False),
        ("other.toml", b"", b"[tool.pytest.ini_options]\na = 1\n", False),
    ],
)  # fmt: skip
def test_settings_of_the_runner_in_shared_files_are_told(
    name: str, before: bytes, after: bytes, expected: bool
) -> None:
    kinds = [kind for kind, _ in told(name, after, before)]
    assert kinds == ["runner_config"] * expected


def test_a_makefile_is_told() -> None:
    assert [kind for kind, _ in told("sub/Makefile", b"all:\n", b"")] == ["runner_config"]
    assert told("Makefile.py", b"") == []


def test_words_that_reach_for_the_tests_are_told_once_when_they_are_new() -> None:
    assert told("a.py", b"import _pytest\nos._exit(0); os._exit(1)") == [("suspicious_code", "_pytest, os._exit")]
    assert told("a.py", b"os._exit(0)\nos._exit(1)", before=b"os._exit(0)") == []
    assert told("a.py", b"\xff\xfe\0PYTEST_CURRENT_TEST") == [("suspicious_code", "PYTEST_CURRENT_TEST")]
    assert told("a.py", b"pytest is fine, exit too") == []


@pytest.mark.parametrize(
    ("name", "data", "expected"),
    [
        ("pytest.ini", b"", True),
        (".pytest.ini", b"anything", True),
        ("pytest.toml", b"", True),
        ("pyproject.toml", b"[tool.pytest.ini_options]\n", True),
        ("pyproject.toml", b"[tool.pytest]\n", False),
        ("pyproject.toml", b"[tool.black]\n", False),
        ("pyproject.toml", b"\xff", False),
        ("tox.ini", b"[pytest]\n", True),
        ("tox.ini", b"[tool:pytest]\n", False),
        ("setup.cfg", b"[tool:pytest]\n", True),
        ("setup.cfg", b"[pytest]\n", False),
        ("setup.cfg", b"no section\n", False),
        ("package.json", b'{"jest": {}}', False),
        ("other.ini", b"[pytest]\n", False),
    ],
)
def test_pytest_settings_are_known_by_file_and_section(name: str, data: bytes, expected: bool) -> None:
    assert has_pytest_settings(name, data) is expected
