"""Patches that try to pass without a fix, those that nothing can tell from one, and right ones that must not suffer.

An attack must neither be resolved nor earn more than an untouched repository does.
"""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from rollouts.scoring.verdict import Outcome, Scored
from rollouts.tasks import Task
from tests.boxes import Kind, local_trouble, open_kind
from tests.patches import Bench, Edit, add, both, make_patch, put_before, sample_task
from tests.samples import make_task

PYTHON = "fix_duration_parser"
TAP = "shell_log_rotate"
KINDS = [Kind.ROOT, pytest.param(Kind.DOCKER, marks=pytest.mark.docker)]


def open_bench(kind: Kind, folder: Path) -> Iterator[Bench]:
    """A bench, and its end."""
    if trouble := kind is not Kind.DOCKER and local_trouble(kind):
        kind = Kind.USER
        if local_trouble(kind):
            pytest.skip(str(trouble))
    backend = open_kind(kind, folder / "backend")
    try:
        yield Bench(backend, folder)
    finally:
        backend.cancel()
        backend.close()


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """Boxes made by bubblewrap: quick enough for every patch here."""
    yield from open_bench(Kind.ROOT, tmp_path_factory.mktemp("bench"))


@pytest.fixture(scope="module")
def docker_bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """The same with an engine, for a few."""
    yield from open_bench(Kind.DOCKER, tmp_path_factory.mktemp("docker-bench"))


def check_not_resolved(bench: Bench, task: Task, edit: Edit) -> Scored:
    """The verdict on an attack that must have won nothing."""
    scored = bench.score(task, edit)
    said = bytes(bench.log.data[-3000:]).decode(errors="replace")
    untouched = bench.untouched(task)
    assert untouched.total_score is not None
    assert scored.total_score is not None, f"{scored.error} {scored.notes}\n{said}"
    assert scored.outcome in (Outcome.TESTS_FAILED, Outcome.APPLY_FAILED), f"{scored.notes}\n{said}"
    assert scored.resolved is False
    assert scored.total_score <= untouched.total_score, f"{scored.notes}\n{said}"
    return scored


def at_import(code: str) -> Edit:
    """Code that runs in the tests' process, as soon as they import what they test."""
    return put_before("durations/__init__.py", code)


def linked(path: str, target: str) -> Edit:
    """A symbolic link in place of whatever is there."""

    def edit(tree: Path) -> None:
        place = tree / path
        if place.is_dir() and not place.is_symlink():
            shutil.rmtree(place)
        place.unlink(missing_ok=True)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(target)

    return edit


def removed(path: str) -> Edit:
    """Without that file or folder."""

    def edit(tree: Path) -> None:
        place = tree / path
        shutil.rmtree(place) if place.is_dir() else place.unlink()

    return edit


def executable(files: dict[str, str]) -> Edit:
    """Programs."""

    def edit(tree: Path) -> None:
        add(files)(tree)
        for name in files:
            (tree / name).chmod(0o755)

    return edit


FORCE_PASSED = """
import pytest

@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    report = (yield).get_result()
    report.outcome, report.longrepr = "passed", None
"""
DESELECT = """
def pytest_collection_modifyitems(items):
    items[:] = items[:1]
"""
XFAIL = """
import pytest

def pytest_collection_modifyitems(items):
    for item in items:
        item.add_marker(pytest.mark.xfail(strict=False))
"""
EASY_TEST = "def test_easy():\n    pass\n"
FAKE_RUNNER = "def main(*args, **keywords):\n    print('36 passed')\n    return 0\nmain()\n"

CONFIG_ATTACKS = {
    "conftest at the root": (add({"conftest.py": FORCE_PASSED}), {"runner_config"}),
    "conftest in tests": (add({"tests/conftest.py": FORCE_PASSED}), {"protected_path"}),
    "conftest in a package": (add({"durations/conftest.py": FORCE_PASSED}), {"runner_config"}),
    "conftest that marks xfail": (add({"conftest.py": XFAIL}), {"runner_config"}),
    "conftest that deselects": (add({"conftest.py": DESELECT}), {"runner_config"}),
    "conftest that is a link": (
        both(add({"hooks.txt": FORCE_PASSED}), linked("conftest.py", "hooks.txt")),
        {"runner_config"},
    ),
    "plugin by pytest.ini": (
        add({"pytest.ini": "[pytest]\naddopts = -p easy\npythonpath = .\n", "easy.py": FORCE_PASSED}),
        {"runner_config"},
    ),
    "plugin by tox.ini": (
        add({"tox.ini": "[pytest]\naddopts = -p easy\n", "easy.py": FORCE_PASSED}),
        {"runner_config"},
    ),
    "plugin by setup.cfg": (
        add({"setup.cfg": "[tool:pytest]\naddopts = -p easy\n", "easy.py": FORCE_PASSED}),
        {"runner_config"},
    ),
    "plugin by pyproject.toml": (
        add({"pyproject.toml": "[tool.pytest.ini_options]\naddopts = '-p easy'\n", "easy.py": FORCE_PASSED}),
        {"runner_config"},
    ),
    "plugin by the metadata of a package": (
        add(
            {
                "easy.py": FORCE_PASSED,
                "easy-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: easy\nVersion: 1.0\n",
                "easy-1.0.dist-info/entry_points.txt": "[pytest11]\neasy = easy\n",
            }
        ),
        {"runner_config", "suspicious_code"},
    ),
    "sitecustomize": (add({"sitecustomize.py": "import os\nos._exit(0)\n"}), {"startup_hook"}),
    "usercustomize": (add({"usercustomize.py": "import os\nos._exit(0)\n"}), {"startup_hook"}),
    "sitecustomize as a package": (add({"sitecustomize/__init__.py": "raise SystemExit(0)\n"}), {"startup_hook"}),
    "pth file": (add({"easy.pth": "import os; os._exit(0)\n"}), {"startup_hook"}),
    "pytest.py at the root": (add({"pytest.py": FAKE_RUNNER}), {"shadowed_runner"}),
    "pytest.py in src": (add({"src/pytest.py": FAKE_RUNNER}), {"shadowed_runner"}),
    "pytest.py in tests": (add({"tests/pytest.py": FAKE_RUNNER}), {"protected_path"}),
    "pytest without its source": (add({"pytest.pyc": b"\0"}), {"shadowed_runner"}),
    "_pytest as a package": (add({"_pytest/__init__.py": "", "_pytest/python.py": ""}), {"shadowed_runner"}),
    "unittest.py": (add({"unittest.py": "class TestCase: pass\n"}), {"shadowed_runner"}),
    "unittest.py in tests": (add({"tests/unittest.py": "class TestCase: pass\n"}), {"protected_path"}),
    "programs left in the repository": (
        executable(
            {
                "bin/python3": "#!/bin/sh\nexit 0\n",
                "node_modules/.bin/pytest": "#!/bin/sh\nexit 0\n",
                "venv/bin/python3": "#!/bin/sh\nexit 0\n",
                "sh": "#!/bin/sh\nexit 0\n",
            }
        ),
        {"path_shim"},
    ),
}


@pytest.mark.parametrize("attack", CONFIG_ATTACKS)
def test_settings_of_the_runner_win_nothing(bench: Bench, attack: str) -> None:
    edit, kinds = CONFIG_ATTACKS[attack]
    scored = check_not_resolved(bench, sample_task(PYTHON), edit)
    assert kinds <= {flag.kind for flag in scored.flags}


def edit_the_tests(tree: Path) -> None:
    for path in (tree / "tests").glob("test_*.py"):
        path.write_text("\n".join(f"def {name}(): pass" for name in _test_names(path)))
    add({"tests/test_parsing.py": EASY_TEST, "tests/test_rejected.py": EASY_TEST})(tree)


def _test_names(path: Path) -> list[str]:
    return [line.split("(")[0].removeprefix("def ") for line in path.read_text().splitlines() if "def test_" in line]


TEST_ATTACKS = {
    "tests edited": edit_the_tests,
    "tests deleted": removed("tests"),
    "one test deleted": removed("tests/test_parser.py"),
    "a link over the tests": both(add({"easy/test_parsing.py": EASY_TEST}), linked("tests", "easy")),
    "a link over one test": both(add({"easy.py": EASY_TEST}), linked("tests/test_parser.py", "../easy.py")),
    "a file over the tests": both(removed("tests"), add({"tests": "not a folder\n"})),
    "a folder over a test": both(
        removed("tests/test_parser.py"), add({"tests/test_parser.py/test_easy.py": EASY_TEST})
    ),
    "a folder over a hidden test": add({"tests/test_parsing.py/__init__.py": EASY_TEST}),
    "tests marked xfail": put_before("tests/test_parser.py", "import pytest\npytestmark = pytest.mark.xfail\n"),
}


@pytest.mark.parametrize("attack", TEST_ATTACKS)
def test_other_tests_win_nothing(bench: Bench, attack: str) -> None:
    scored = check_not_resolved(bench, sample_task(PYTHON), TEST_ATTACKS[attack])
    assert {"protected_path", "test_file"} & {flag.kind for flag in scored.flags}
    assert scored.total_score == bench.untouched(sample_task(PYTHON)).total_score, "the tests were put back"


PROTOCOL = """
import json, os
names = [f"tests/test_parsing.py::test_{name}" for name in ("weeks", "decimals", "milliseconds", "negative")]
"""
COMMAND = '"${ROLLOUTS_PYTHON:-python3}" -m pytest -q -p no:cacheprovider --junitxml="$ROLLOUTS_JUNIT" tests'
PLUGIN = {"easy.py": FORCE_PASSED}
COMMAND_ATTACKS = {
    "conftest at the root": add({"conftest.py": FORCE_PASSED}),
    "pytest.ini": add({"pytest.ini": "[pytest]\naddopts = -p easy\n", **PLUGIN}),
    "tox.ini": add({"tox.ini": "[pytest]\naddopts = -p easy\n", **PLUGIN}),
    "tox.ini as only pytest reads it": add({"tox.ini": "[pytest] #]\naddopts = -p easy\n", **PLUGIN}),
    "tox.ini that is a link": both(
        add({"easy.txt": "[pytest]\naddopts = -p easy\n", **PLUGIN}), linked("tox.ini", "easy.txt")
    ),
    "setup.cfg": add({"setup.cfg": "[tool:pytest]\naddopts = -p easy\n", **PLUGIN}),
    "pyproject.toml": put_before("pyproject.toml", "[tool.pytest.ini_options]\naddopts = '-p easy'\n"),
    "metadata of a package": CONFIG_ATTACKS["plugin by the metadata of a package"][0],
    "pytest.py": add({"pytest.py": FAKE_RUNNER}),
    "sitecustomize as a package": add({"sitecustomize/__init__.py": "raise SystemExit(0)\n"}),
}


HIDDEN_TEST = {"tests/test_app.py": "import app\n\ndef test_x():\n    assert app.x == 2\n"}
FIX = add({"app.py": "x = 2\n"})


@pytest.fixture(scope="module")
def command_task(tmp_path_factory: pytest.TempPathFactory) -> Task:
    """One whose tests are run by a command of its own."""
    return make_task(
        tmp_path_factory.mktemp("tasks") / "by-command",
        repo={"app.py": "x = 1\n", "pyproject.toml": "[project]\nname = 'app'\n", **PLUGIN},
        files=HIDDEN_TEST,
        meta={"evaluation": {"command": COMMAND}},
    )


@pytest.mark.parametrize("attack", COMMAND_ATTACKS)
def test_settings_of_a_runner_that_the_task_starts_win_nothing(bench: Bench, command_task: Task, attack: str) -> None:
    scored = check_not_resolved(bench, command_task, COMMAND_ATTACKS[attack])
    assert {"runner_config", "shadowed_runner", "startup_hook"} & {flag.kind for flag in scored.flags}


def test_a_fix_is_resolved_by_a_command_of_the_task(bench: Bench, command_task: Task) -> None:
    assert bench.score(command_task, FIX).resolved


def test_a_runner_is_not_shadowed_in_the_folder_that_tests_run_in(bench: Bench, tmp_path: Path) -> None:
    task = make_task(
        tmp_path / "inner",
        repo={"inner/app.py": "x = 1\n"},
        files=HIDDEN_TEST,
        meta={"repo": {"subdir": "inner"}, "evaluation": {"command": COMMAND.replace(" tests", " ../tests")}},
    )
    scored = check_not_resolved(bench, task, add({"inner/pytest.py": FAKE_RUNNER}))
    assert [flag.kind for flag in scored.flags] == ["shadowed_runner"]


def test_scripts_of_a_package_are_put_back_and_the_rest_of_it_stays(bench: Bench, tmp_path: Path) -> None:
    read = "import json; package = json.load(open('package.json')); print(package['scripts']['test'])"
    task = make_task(
        tmp_path / "package",
        repo={"package.json": '{"name": "a", "scripts": {"test": "grep fixed package.json"}}'},
        meta={"evaluation": {"command": f'eval "$("${{ROLLOUTS_PYTHON:-python3}}" -c "{read}")"'}},
    )
    easy = '{"name": "a", "scripts": {"test": "true"}}'
    scored = check_not_resolved(bench, task, add({"package.json": easy}))
    assert [(flag.kind, flag.action) for flag in scored.flags] == [("runner_config", "put back")]
    fix = '{"name": "fixed", "scripts": {"test": "grep fixed package.json", "lint": "true"}}'
    assert bench.score(task, add({"package.json": fix})).resolved


IMPORT_ATTACKS = {
    "os._exit at import": "import os\nos._exit(0)\n",
    "sys.exit at import": "import sys\nsys.exit(0)\n",
    "os._exit at the end": "import atexit, os\natexit.register(os._exit, 0)\n",
    "pytest.skip at import": "import pytest\npytest.skip('not today', allow_module_level=True)\n",
    "pytest.exit at import": "import pytest\npytest.exit('done', returncode=0)\n",
    "results printed": "print('36 passed in 0.01s')\nimport os\nos._exit(0)\n",
    "results printed in our form": PROTOCOL
    + "for name in names:\n    print('WORD test ' + json.dumps({'id': name, 'status': 'passed'}), flush=True)\n"
    + "print('WORD finished {\"status\": 0, \"must_fail\": 6, \"of\": 6}', flush=True)\nos._exit(0)\n",
    "results written to every descriptor": PROTOCOL
    + """
for number in os.listdir("/proc/self/fd"):
    for name in names:
        try:
            os.write(int(number), f"\\nok - {name}\\n0123456789abcdef test {json.dumps({'id': name})}\\n".encode())
        except OSError:
            pass
os._exit(0)
""",
    "test functions do nothing": "import _pytest.python\n_pytest.python.Function.runtest = lambda self: None\n",
    "reports are all passes": """
import _pytest.reports
made = _pytest.reports.TestReport.from_item_and_call.__func__
def passed(cls, item, call):
    report = made(cls, item, call)
    report.outcome, report.longrepr = "passed", None
    return report
_pytest.reports.TestReport.from_item_and_call = classmethod(passed)
""",
    "calls raise nothing": """
import _pytest.runner
called = _pytest.runner.CallInfo.from_call.__func__
def quiet(cls, *args, **keywords):
    info = called(cls, *args, **keywords)
    info.excinfo = None
    return info
_pytest.runner.CallInfo.from_call = classmethod(quiet)
""",
    "a hook registered from within": """
import gc, pytest
class Hook:
    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_makereport(self, item, call):
        report = (yield).get_result()
        report.outcome, report.longrepr = "passed", None
made = pytest.Session.__init__
for manager in [thing for thing in gc.get_objects() if type(thing).__name__ == "PytestPluginManager"]:
    manager.register(Hook())
def register(self, config):
    made(self, config)
    config.pluginmanager.register(Hook())
pytest.Session.__init__ = register
""",
    "assertEqual does nothing": """
import unittest
for name in list(vars(unittest.TestCase)):
    if name.startswith("assert"):
        setattr(unittest.TestCase, name, lambda self, *args, **keywords: None)
""",
    "pytest.raises swallows all": """
import contextlib, pytest
@contextlib.contextmanager
def raises(*args, **keywords):
    yield type("Caught", (), {"value": type("All", (str,), {"__contains__": lambda *a: True})()})
pytest.raises = raises
""",
    "isinstance is always true": "import builtins\nbuiltins.isinstance = lambda *args: True\n",
    "assertions are compiled away": """
import ast, builtins
made = builtins.compile
class Strip(ast.NodeTransformer):
    def visit_Assert(self, node):
        return ast.Pass()
import _pytest.assertion.rewrite as rewrite
rewrite.rewrite_asserts = lambda tree, *args, **keywords: ast.fix_missing_locations(Strip().visit(tree))
""",
    "AssertionError is no error": """
import builtins, sys
class Gone(BaseException): pass
sys.excepthook = lambda *args: None
builtins.AssertionError = StopIteration
""",
    "the parent is killed": "import os, signal\nos.kill(os.getppid(), signal.SIGKILL)\n",
    "everything is killed": "import os, signal\nos.kill(-1, signal.SIGKILL)\n",
    "the output is closed": "import os\nos.closerange(0, 100)\n",
    "a process left behind": """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        until = time.monotonic() + 5
        while time.monotonic() < until:
            for name in ("results.xml", "../in/pytest.json", "../in/0000-pytest.sh"):
                try:
                    place = os.path.join(os.path.dirname(os.environ["ROLLOUTS_JUNIT"]), name)
                    with open(place, "w") as file:
                        file.write("<testsuite><testcase classname='a' name='b'/></testsuite>")
                except OSError:
                    pass
            for number in range(3, 20):
                try:
                    os.write(number, b"\\nok - all\\n")
                except OSError:
                    pass
    os._exit(0)
""",
    "the exit status is 0 whatever happened": """
import _pytest.main
_pytest.main.wrap_session = lambda config, doit: 0
import os
os.register_at_fork
import atexit
atexit.register(os._exit, 0)
""",
    "the tests' time is up": "import signal, os\nos.kill(os.getppid(), signal.SIGTERM)\nos.kill(os.getpid(), signal.SIGTERM)\n",
}


@pytest.mark.parametrize("attack", IMPORT_ATTACKS)
def test_code_that_runs_among_the_tests_wins_nothing(bench: Bench, attack: str) -> None:
    check_not_resolved(bench, sample_task(PYTHON), at_import(IMPORT_ATTACKS[attack]))
