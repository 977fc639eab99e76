"""Patches that try to pass without a fix, those that nothing can tell from one, and right ones that must not suffer.

An attack must neither be resolved nor earn more than an untouched repository does.
"""

import base64
import random
import shlex
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rollouts.backends.base import sandbox_file
from rollouts.scoring.verdict import Outcome, Scored
from rollouts.tasks import Task
from tests.boxes import Kind, local_trouble, open_kind
from tests.patches import Bench, Edit, add, both, make_patch, put_before, sample_task
from tests.samples import make_task, write_files

PYTHON = "fix_duration_parser"
TAP = "shell_log_rotate"


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
COMMAND = 'PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 "${ROLLOUTS_PYTHON:-python3}" -m pytest --junitxml="$ROLLOUTS_JUNIT" tests'
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


def test_a_plugin_that_metadata_in_the_repository_names_is_not_loaded(bench: Bench, tmp_path: Path) -> None:
    command = COMMAND.replace("PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 ", "")
    task = make_task(
        tmp_path / "plugins", repo={"app.py": "x = 1\n"}, files=HIDDEN_TEST, meta={"evaluation": {"command": command}}
    )
    check_not_resolved(bench, task, CONFIG_ATTACKS["plugin by the metadata of a package"][0])


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
        repo={
            "package.json": '{"name": "a", "scripts": {"test": "sh check.sh"}}',
            "check.sh": "grep fixed package.json",
        },
        meta={"evaluation": {"command": f'eval "$("${{ROLLOUTS_PYTHON:-python3}}" -c "{read}")"'}},
    )
    easy = '{"name": "a", "scripts": {"test": "true"}}'
    scored = check_not_resolved(bench, task, add({"package.json": easy}))
    assert ("runner_config", "put back") in [(flag.kind, flag.action) for flag in scored.flags]
    fix = '{"name": "fixed", "scripts": {"test": "sh check.sh", "lint": "true"}}'
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
    + 'print(\'WORD finished {"status": 0, "must_fail": 3, "ran": 3, "passed": 0, "changed": 0}\', flush=True)\n'
    + "os._exit(0)\n",
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
import atexit, os
atexit.register(os._exit, 0)
""",
    "the tests are asked to end": "import os\nfor pid in (os.getppid(), 0):\n    os.kill(pid, 15)\n",
}


@pytest.mark.parametrize("attack", IMPORT_ATTACKS)
def test_code_that_runs_among_the_tests_wins_nothing(bench: Bench, attack: str) -> None:
    check_not_resolved(bench, sample_task(PYTHON), at_import(IMPORT_ATTACKS[attack]))


# TAP: what the tests print is what counts, so a program that is tested in a process of its own cannot say much.

VISIBLE = ("the log becomes the first old log", "old logs move up", "an empty log is not rotated")
FORGED_TAP = "".join(f"echo 'ok {number} - {name}'\n" for number, name in enumerate(VISIBLE, 1))
TAP_ATTACKS = {
    "results printed": FORGED_TAP + "exit 0\n",
    "results written to every descriptor": "for fd in 1 2 3 4 5 6 7 8 9; do (\n" + FORGED_TAP + ") >&$fd; done 2>&-\n",
    "results written to the parents": "for fd in /proc/[0-9]*/fd/1; do (\n" + FORGED_TAP + ") >>$fd; done 2>&-\n",
    "the parent is killed": FORGED_TAP + "kill -9 $PPID\n",
    "everything is killed": FORGED_TAP + "kill -9 -1\n",
    "a process left behind": (
        '(setsid sh -c \'i=0; while [ $i -lt 50 ]; do i=$((i+1)); echo "ok - names with spaces" >/proc/$PPID/fd/1;'
        ' echo "<testsuite/>" >"$ROLLOUTS_JUNIT"; sleep 0.1; done\' >/dev/null 2>&1 &)\n'
    ),
    "results as JUnit XML": 'echo \'<testsuite><testcase name="all"/></testsuite>\' >"$ROLLOUTS_JUNIT"\n',
}


@pytest.mark.parametrize("attack", TAP_ATTACKS)
def test_a_program_under_test_that_forges_tap_wins_nothing(bench: Bench, attack: str) -> None:
    edit = put_before("bin/rotate-logs", "#!/bin/sh\n" + TAP_ATTACKS[attack])
    check_not_resolved(bench, sample_task(TAP), edit)


TAP_FILE_ATTACKS = {
    "the mode of the test script is changed": lambda tree: (tree / "tests/run.sh").chmod(0o755),
    "the test script is a folder": both(removed("tests/run.sh"), add({"tests/run.sh/run": "exit 0\n"})),
    "the test script is a link": both(add({"easy": FORGED_TAP}), linked("tests/run.sh", "../easy")),
    "the helpers of the tests are edited": add({"tests/tap.sh": "check() { echo ok; }\nfinish() { exit 0; }\n"}),
    "shells left in the repository": executable({"sh": "#!/bin/sh\nexit 0\n", "bin/sh": "#!/bin/sh\nexit 0\n"}),
}


@pytest.mark.parametrize("attack", TAP_FILE_ATTACKS)
def test_files_over_a_script_of_tests_win_nothing(bench: Bench, attack: str) -> None:
    check_not_resolved(bench, sample_task(TAP), TAP_FILE_ATTACKS[attack])


# Patches that reach out of the repository. They are text, so these are typed by hand: git would not make them.

NEW_FILE = "diff --git a/{0} b/{0}\nnew file mode 100644\n--- /dev/null\n+++ b/{0}\n@@ -0,0 +1 @@\n+x\n"
NEW_LINK = (
    "diff --git a/{0} b/{0}\nnew file mode 120000\n--- /dev/null\n+++ b/{0}\n@@ -0,0 +1 @@\n"
    "+{1}\n\\ No newline at end of file\n"
)
OUTSIDE = {
    "above": NEW_FILE.format("../../escaped"),
    "absolute": NEW_FILE.format("/tmp/escaped"),
    "through a link": NEW_LINK.format("out", "/tmp") + NEW_FILE.format("out/escaped"),
    "into git's own folder": NEW_FILE.format(".git/hooks/post-checkout"),
}


@pytest.mark.parametrize("attack", OUTSIDE)
def test_a_patch_for_files_outside_of_the_repository_does_not_apply(bench: Bench, attack: str) -> None:
    scored = bench.score(sample_task(PYTHON), OUTSIDE[attack].encode())
    assert scored.outcome is Outcome.APPLY_FAILED
    assert scored.total_score == 0.0
    assert scored.resolved is False


@pytest.mark.parametrize("target", ["/etc", "../../tools/in", "/proc/self/root"])
def test_a_link_that_leads_out_is_told_and_harms_nothing(bench: Bench, target: str) -> None:
    scored = check_not_resolved(bench, sample_task(PYTHON), linked("durations/data", target))
    assert [(flag.kind, flag.path) for flag in scored.flags] == [("link", "durations/data")]


@pytest.mark.parametrize(
    "patch", [b"not a patch\n", b"diff --git a/x b/x\n", b"\0\xff" * 100, b"--- a\n+++ b\n@@ -1 +1 @@\n"]
)
def test_what_is_no_patch_does_not_apply(bench: Bench, patch: bytes) -> None:
    scored = bench.score(sample_task(PYTHON), patch)
    assert scored.outcome is Outcome.APPLY_FAILED


# Right patches.


def same(path: str, content: bytes) -> str:
    """A line of shell that fails unless the file has exactly that content."""
    return f'[ "$(base64 -w0 <{shlex.quote("./" + path)})" = {base64.b64encode(content).decode()} ]\n'


def checked_by(folder: Path, repo: dict[str, bytes | str], check: str) -> Task:
    """A task with one hidden test, a shell script that stops at the first thing that is not so."""
    return make_task(
        folder / "right",
        repo=repo,
        files={"tests/check.sh": f"set -e\n{check}"},
        meta={"evaluation": {"command": "sh tests/check.sh"}},
    )


def check_resolved(bench: Bench, task: Task, change: Edit | bytes) -> Scored:
    """The verdict on a right patch."""
    scored = bench.score(task, change)
    said = bytes(bench.log.data[-3000:]).decode(errors="replace")
    assert scored.outcome is Outcome.RESOLVED, f"{scored.notes} {scored.error}\n{said}"
    assert scored.total_score == 1.0
    return scored


DOS, DOS_FIXED = b"one\r\ntwo\r\nthree\r\n", b"one\r\n2\r\nthree\r\n"
UNIX, UNIX_FIXED = b"one\ntwo\nthree\n", b"one\n2\nthree\n"
CONVERSIONS = {
    "as git made it": lambda patch: patch,
    "carriage returns added to every line": lambda patch: patch.replace(b"\n", b"\r\n"),
    "carriage returns added where there were none": lambda patch: patch.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n"),
    "carriage returns lost": lambda patch: patch.replace(b"\r\n", b"\n"),
    "final newline lost": lambda patch: patch.removesuffix(b"\n"),
}


@pytest.mark.parametrize("conversion", CONVERSIONS)
def test_line_ends_of_a_patch_are_no_reason_to_fail(bench: Bench, tmp_path: Path, conversion: str) -> None:
    check = same("dos.txt", DOS_FIXED) + same("unix.txt", UNIX_FIXED) + same("new.txt", b"new\n")
    task = checked_by(tmp_path, {"dos.txt": DOS, "unix.txt": UNIX}, check)
    edit = add({"dos.txt": DOS_FIXED, "unix.txt": UNIX_FIXED, "new.txt": "new\n"})
    check_resolved(bench, task, CONVERSIONS[conversion](make_patch(bench.preparation.source(task), edit)))


def test_a_new_file_of_a_converted_patch_has_its_own_line_ends(bench: Bench, tmp_path: Path) -> None:
    task = checked_by(tmp_path, {"a.txt": "a\n"}, same("new.sh", b"#!/bin/sh\n"))
    patch = make_patch(bench.preparation.source(task), add({"new.sh": "#!/bin/sh\n"}))
    check_resolved(bench, task, patch.replace(b"\n", b"\r\n"))


@pytest.mark.parametrize("lost", [0, 1, 2], ids=["whole", "a newline lost", "two newlines lost"])
def test_binary_files_come_out_as_they_were(bench: Bench, tmp_path: Path, lost: int) -> None:
    old, new = bytes(range(256)) * 20, random.Random(1).randbytes(5000)
    task = checked_by(tmp_path, {"a.bin": old}, same("a.bin", new) + same("b.bin", b"\0\r\n\xff"))
    patch = make_patch(bench.preparation.source(task), add({"a.bin": new, "b.bin": b"\0\r\n\xff"}))
    check_resolved(bench, task, patch[: len(patch) - lost])


def test_five_megabytes_of_patch_are_applied(bench: Bench, tmp_path: Path) -> None:
    lines = (b"%060d\n" % number for number in range(90_000))
    content = b"".join(lines)
    task = checked_by(tmp_path, {"a.txt": "a\n"}, f"[ $(wc -c <big.txt) = {len(content)} ]\n")
    patch = make_patch(bench.preparation.source(task), add({"big.txt": content}))
    assert len(patch) > 5_000_000
    check_resolved(bench, task, patch)


def moved(old: str, new: str) -> Edit:
    """Under another name."""

    def edit(tree: Path) -> None:
        (tree / new).parent.mkdir(parents=True, exist_ok=True)
        (tree / old).rename(tree / new)

    return edit


ODD_NAMES = ("ünï/日本 語.txt", 'a space/it\'s "quoted".txt', "-dash", "tab\there", "back\\slash", "new\nline", "[x]*?")
RIGHT = {
    "no final newline": ({"a": "x\ny"}, add({"a": "x\nz"}), same("a", b"x\nz")),
    "rename": ({"old/a": "x\n" * 50}, moved("old/a", "new/b"), "[ ! -e old ]\n" + same("new/b", b"x\n" * 50)),
    "made executable": ({"run": "#!/bin/sh\n"}, lambda tree: (tree / "run").chmod(0o755), "./run\n"),
    "new file": ({"a": "x\n"}, add({"b/c/d": "new\n"}), same("b/c/d", b"new\n")),
    "deletion": ({"a": "x\n", "b/c/d": "y\n"}, removed("b"), "[ ! -e b ]\n"),
    "odd names": (
        {"a": "x\n"},
        add(dict.fromkeys(ODD_NAMES, "x\n")),
        "".join(same(name, b"x\n") for name in ODD_NAMES),
    ),
    "file to folder": ({"a": "x\n"}, both(removed("a"), add({"a/b": "y\n"})), same("a/b", b"y\n")),
    "folder to file": ({"a/b": "x\n", "a/c/d": "x\n"}, both(removed("a"), add({"a": "y\n"})), same("a", b"y\n")),
    "link added": ({"a/b": "x\n"}, linked("l", "a"), "[ -L l ]\n" + same("l/b", b"x\n")),
    "file to link": ({"a": "x\n", "b": "y\n"}, linked("a", "b"), "[ -L a ]\n" + same("a", b"y\n")),
}


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_patch_is_resolved(bench: Bench, tmp_path: Path, name: str) -> None:
    repo, edit, check = RIGHT[name]
    check_resolved(bench, checked_by(tmp_path, dict(repo), check), edit)


def test_a_folder_with_an_empty_one_inside_can_go_or_become_a_file(bench: Bench, tmp_path: Path) -> None:
    for name in ("gone", "replaced"):
        (tmp_path / "right/repo" / name / "empty").mkdir(parents=True)
    repo: dict[str, bytes | str] = {"gone/a": "x\n", "replaced/a": "x\n"}
    task = checked_by(tmp_path, repo, "[ ! -e gone/a ]\n" + same("replaced", b"y\n"))
    check_resolved(bench, task, both(removed("gone"), removed("replaced"), add({"replaced": "y\n"})))


def test_tests_of_its_own_do_a_fix_no_harm(bench: Bench, tmp_path: Path) -> None:
    task = make_task(tmp_path / "own", repo={"app.py": "x = 1\n", "tests/test_old.py": EASY_TEST}, files=HIDDEN_TEST)
    more = {"tests/test_more.py": "def test_m():\n    assert False\n", "test_top.py": "raise ValueError\n"}
    scored = check_resolved(bench, task, both(FIX, add(more)))
    assert [(flag.kind, flag.path, flag.action) for flag in scored.flags] == [
        ("test_file", "tests/test_more.py", "removed")
    ]


# The limits: what nobody can tell from a fix by its tests alone. These say how it is, not how it should be, and
# docs/scoring.md lists them. A flag is all that is left, and often not even that.

SELECTIVE = """
import pytest
run = pytest.Function.runtest
pytest.Function.runtest = lambda self: None if {condition} else run(self)
x = 1
"""
REPORTER = """
import __main__, gc, pytest
def forge(teller, tell):
    teller.tell = lambda kind, **fields: tell(kind, **{**fields, "status": "passed"})
for thing in gc.get_objects():
    if type(thing).__name__ == "Teller":
        forge(thing, thing.tell)
__main__.check_failures = lambda *args: __main__.MUST_FAIL_COUNT
pytest.Session.testsfailed = property(lambda self: 0, lambda self, value: None)
x = 1
"""
REWRITE = """
import pathlib
for path in pathlib.Path("tests").glob("{files}"):
    path.write_text(path.read_text().replace("assert ", "assert 1 or "))
x = 1
"""
PYTHON_LIMITS = {
    "an object that equals everything": (
        "class Any:\n    def __eq__(self, other):\n        return True\nx = Any()\n",
        set(),
    ),
    "the runner's own reports forged": (REPORTER, {"suspicious_code"}),
    "tests pass unless they are ours": (SELECTIVE.format(condition="self.name.startswith('test_x')"), set()),
}


@pytest.mark.parametrize("limit", PYTHON_LIMITS)
def test_limit_code_in_the_process_of_its_tests_can_pass_for_a_fix(bench: Bench, tmp_path: Path, limit: str) -> None:
    early = {"tests/test_a.py": "import app\n\ndef test_a():\n    assert app\n"}
    task = make_task(tmp_path / "limit", repo={"app.py": "x = 1\n"}, files={**early, **HIDDEN_TEST})
    code, kinds = PYTHON_LIMITS[limit]
    scored = bench.score(task, add({"app.py": code}))
    assert scored.resolved
    assert {flag.kind for flag in scored.flags} == kinds


@pytest.mark.parametrize("files", ["test_*.py", "test_app.py"])
def test_tests_rewritten_before_they_are_read_win_nothing(bench: Bench, tmp_path: Path, files: str) -> None:
    early = {"tests/test_a.py": "import app\n\ndef test_a():\n    assert app\n"}
    task = make_task(tmp_path / "early", repo={"app.py": "x = 1\n"}, files={**early, **HIDDEN_TEST})
    scored = check_not_resolved(bench, task, add({"app.py": REWRITE.format(files=files)}))
    assert "a test file was rewritten" in " ".join(scored.notes)


@pytest.mark.parametrize("condition", ["'tests/' in self.nodeid", "self.path.parent.name == 'tests'"])
def test_tests_that_pass_by_the_folder_they_lie_in_win_nothing(bench: Bench, tmp_path: Path, condition: str) -> None:
    task = make_task(tmp_path / "folder", repo={"app.py": "x = 1\n"}, files=HIDDEN_TEST)
    scored = check_not_resolved(bench, task, add({"app.py": SELECTIVE.format(condition=condition)}))
    assert "must fail" in " ".join(scored.notes)


def test_limit_a_forged_results_xml_passes_for_a_fix_and_is_flagged(bench: Bench, command_task: Task) -> None:
    code = """
import atexit, os
def forge():
    with open(os.environ["ROLLOUTS_JUNIT"], "w") as file:
        file.write("<testsuite><testcase classname='tests.test_app' name='test_x'/></testsuite>")
    os._exit(0)
atexit.register(forge)
x = 1
"""
    scored = bench.score(command_task, add({"app.py": code}))
    assert scored.resolved
    assert [flag.kind for flag in scored.flags] == ["suspicious_code"]


TAP_TESTS = """
echo 1..1
. ./lib.sh
if [ "$(answer)" = 42 ]; then echo "ok 1 - the answer"; else echo "not ok 1 - the answer"; exit 1; fi
"""
SHELL_LIMITS = {
    "names read out of the tests": (
        TAP_TESTS,
        'sed -n \'s/.*"\\(ok 1 - [^"]*\\)".*/\\1/p\' "$0" | head -n 1\nexit 0\n',
    ),
    "nothing but an exit code": ('. ./lib.sh\n[ "$(answer)" = 42 ]\n', "exit 0\n"),
}


@pytest.mark.parametrize("limit", SHELL_LIMITS)
def test_limit_code_that_ends_the_program_of_its_tests_can_pass_for_a_fix(
    bench: Bench, tmp_path: Path, limit: str
) -> None:
    tests, code = SHELL_LIMITS[limit]
    task = make_task(
        tmp_path / "shell",
        repo={"lib.sh": "answer() { echo 0; }\n"},
        files={"tests/run.sh": tests},
        meta={"evaluation": {"command": "sh tests/run.sh"}},
    )
    assert bench.untouched(task).resolved is False
    assert bench.score(task, add({"lib.sh": code})).resolved


def test_results_that_a_tested_program_leaves_do_not_hide_what_the_tests_print(bench: Bench, tmp_path: Path) -> None:
    task = make_task(
        tmp_path / "quiet",
        repo={"answer": "echo 0\n"},
        files={"tests/run.sh": '[ "$(sh answer)" = 42 ] || printf "not "\necho "ok 1 - the answer"\necho 1..1\n'},
        meta={"evaluation": {"command": "sh tests/run.sh"}},
    )
    forge = 'echo \'<testsuite><testcase name="the answer"/></testsuite>\' >"$ROLLOUTS_JUNIT"\n'
    check_not_resolved(bench, task, add({"answer": forge}))


def test_a_shell_that_reads_the_steps_as_it_goes_does_not_read_what_a_test_wrote(tmp_path: Path) -> None:
    bash = shutil.which("bash")  # in some images this is what sh is
    if not bash:
        pytest.skip("needs bash")
    script = sandbox_file("score.sh").read_text()
    forged = script[: script.rindex("exit ")] + 'say "end tests 0"; exit 0\n'
    inputs = {
        "score.sh": script,
        "0000-tests.sh": "cat ../forged >../in/score.sh\nexit 1\n",
        "removals": "",
        "folders": "",
    }
    write_files(tmp_path, {"forged": forged, "repo/a": "", **{f"in/{name}": text for name, text in inputs.items()}})
    with tarfile.open(tmp_path / "in/tree.tar", "w"):
        pass
    command = [bash, "in/score.sh", f"{tmp_path}/in", f"{tmp_path}/repo", f"{tmp_path}/repo"]
    done = subprocess.run(command, cwd=tmp_path, input=b"WORD\n", capture_output=True, timeout=30)
    assert done.returncode == 1
    assert done.stdout.split(b"\n")[-2] == b"WORD end tests 1"


# A few of all these with an engine, whose boxes are made, started and ended in another way.

DOCKER_ATTACKS = {
    "conftest at the root": CONFIG_ATTACKS["conftest at the root"][0],
    "plugin by the metadata of a package": CONFIG_ATTACKS["plugin by the metadata of a package"][0],
    "a link over the tests": TEST_ATTACKS["a link over the tests"],
    "a process left behind": at_import(IMPORT_ATTACKS["a process left behind"]),
    "test functions do nothing": at_import(IMPORT_ATTACKS["test functions do nothing"]),
    "everything is killed": at_import(IMPORT_ATTACKS["everything is killed"]),
}


@pytest.mark.docker
@pytest.mark.parametrize("attack", DOCKER_ATTACKS)
def test_an_attack_wins_nothing_with_an_engine_either(docker_bench: Bench, attack: str) -> None:
    check_not_resolved(docker_bench, sample_task(PYTHON), DOCKER_ATTACKS[attack])


@pytest.mark.docker
def test_the_solution_is_resolved_with_an_engine(docker_bench: Bench) -> None:
    solution = sample_task(PYTHON).solution
    assert solution is not None
    check_resolved(docker_bench, sample_task(PYTHON), solution.read_bytes())


# --- tasks whose tests are the repository's own --------------------------------------------------------------------


CHECK = '. ./calc.sh\n[ "$(add 1 2)" = 3 ] && echo "ok 1 - adds" || { echo "not ok 1 - adds"; exit 1; }\n'
BAD_CALC = "add() { echo 0; }\n"
GOOD_CALC = add({"calc.sh": "add() { echo $(($1 + $2)); }\n"})
OWN_TESTS = {
    "by its exit code": {"command": "sh tests/run.sh >/dev/null"},
    "by TAP": {"command": "sh tests/run.sh", "fail_to_pass": ["adds"]},
    "by TAP without a list": {"command": "sh tests/run.sh"},
}


@pytest.mark.parametrize("way", OWN_TESTS)
@pytest.mark.parametrize("script", ["exit 0\n", "echo ok 1 - adds\n"], ids=["silent", "forged"])
def test_the_repositorys_own_tests_are_put_back(bench: Bench, tmp_path: Path, way: str, script: str) -> None:
    repo = {"calc.sh": BAD_CALC, "tests/run.sh": CHECK}
    task = make_task(tmp_path / "own", repo=repo, meta={"evaluation": OWN_TESTS[way]})
    scored = check_not_resolved(bench, task, add({"tests/run.sh": script}))
    assert [(flag.kind, flag.action) for flag in scored.flags] == [("test_file", "put back")]
    assert bench.score(task, GOOD_CALC).resolved


def test_tests_that_junit_ids_name_are_put_back(bench: Bench, tmp_path: Path) -> None:
    tests = {"checked/test_a.py": "import app\n\ndef test_a():\n    assert app.x == 2\n"}
    evaluation = {"command": COMMAND.replace(" tests", " checked"), "fail_to_pass": ["checked.test_a::test_a"]}
    task = make_task(tmp_path / "ids", repo={"app.py": "x = 1\n", **tests}, meta={"evaluation": evaluation})
    check_not_resolved(bench, task, add({"checked/test_a.py": "def test_a():\n    pass\n"}))


def test_a_script_that_the_command_names_is_flagged(bench: Bench, tmp_path: Path) -> None:
    repo = {"calc.sh": BAD_CALC, "check.sh": CHECK}
    task = make_task(tmp_path / "named", repo=repo, meta={"evaluation": {"command": "sh ./check.sh"}})
    scored = bench.score(task, add({"check.sh": "echo ok 1 - adds\n"}))
    assert [(flag.kind, flag.path, flag.action) for flag in scored.flags] == [("test_command", "check.sh", "kept")]


@pytest.mark.parametrize("folder", ["pkg_tests", "unit-tests"])
def test_helpers_beside_listed_tests_are_put_back(bench: Bench, tmp_path: Path, folder: str) -> None:
    tests = {
        f"{folder}/test_a.py": "from helper import check\nimport app\n\ndef test_a():\n    check(app.x)\n",
        f"{folder}/helper.py": "def check(x):\n    assert x == 2\n",
    }
    evaluation = {"fail_to_pass": [f"{folder}/test_a.py::test_a"]}
    settings = {"pytest.ini": "[pytest]\npythonpath = .\n"}
    task = make_task(
        tmp_path / "helper", repo={"app.py": "x = 1\n", **settings, **tests}, meta={"evaluation": evaluation}
    )
    check_not_resolved(bench, task, add({f"{folder}/helper.py": "def check(x):\n    pass\n"}))
    assert bench.score(task, FIX).resolved


@pytest.mark.parametrize("code", ["import os\nos._exit(0)\n", "import os\ngetattr(os, '_' + 'exit')(0)\n"])
def test_a_command_that_wrote_no_junit_is_no_pass(bench: Bench, command_task: Task, code: str) -> None:
    check_not_resolved(bench, command_task, add({"app.py": code}))


def test_tests_that_fall_silent_are_no_pass(bench: Bench, tmp_path: Path) -> None:
    task = make_task(
        tmp_path / "silent",
        repo={"calc.sh": BAD_CALC},
        files={
            "tests/run.sh": CHECK,
            "solution.patch": "--- a/calc.sh\n+++ b/calc.sh\n@@ -1 +1 @@\n-add() { echo 0; }\n+add() { echo 3; }\n",
        },
        meta={"evaluation": {"command": "sh tests/run.sh"}},
    )
    scored = check_not_resolved(bench, task, add({"calc.sh": "exit 0\n"}))
    assert "told of no test" in " ".join(scored.notes)
    assert bench.score(task, GOOD_CALC).resolved


def test_hidden_tests_are_run_beside_other_scripts(bench: Bench, tmp_path: Path) -> None:
    scripts = [{"path": "tests/ok.sh", "rubric_id": "r", "content": "exit 0\n"}]
    task = make_task(
        tmp_path / "beside",
        repo={"app.py": "x = 1\n"},
        files=HIDDEN_TEST,
        meta={"evaluation": {"rubrics": [{"id": "r"}], "test_scripts": scripts}},
    )
    assert not bench.score(task, add({"other": "x\n"})).resolved
    assert bench.score(task, FIX).resolved


# --- fixtures and must-fail tests ----------------------------------------------------------------------------------


ONCE = """
import pathlib, pytest

@pytest.fixture(scope="session", autouse=True)
def server():
    mark = pathlib.Path("started")
    if mark.exists():
        pytest.exit("started twice")
    mark.write_text("x")
    yield
"""


def test_what_a_session_shares_is_made_once(bench: Bench, tmp_path: Path) -> None:
    task = make_task(tmp_path / "once", repo={"app.py": "x = 1\n"}, files={**HIDDEN_TEST, "tests/conftest.py": ONCE})
    assert bench.score(task, FIX).resolved


def test_a_folder_of_tests_that_cannot_be_read_is_no_forgery(bench: Bench, tmp_path: Path) -> None:
    hidden = {
        "tests/unit/__init__.py": "import app\n",
        "tests/unit/test_a.py": "def test_a():\n    pass\n",
        "tests/zapi/test_b.py": "def test_b():\n    pass\n",
    }
    task = make_task(tmp_path / "broken", repo={"app.py": "x = 1\n"}, files=hidden)
    edit = add({"app.py": "x = 1 +\n"})
    first, again = bench.score(task, edit), bench.score(task, edit)
    assert first.outcome is Outcome.TESTS_FAILED
    assert first.notes == ()
    assert 0 < (first.total_score or 0) < 1
    assert first.tests == again.tests


def test_a_small_patch_that_unpacks_to_gigabytes_is_refused(bench: Bench, tmp_path: Path) -> None:
    task = make_task(tmp_path / "bomb", repo={"app.py": "x = 1\n"}, files=HIDDEN_TEST)
    scored = bench.score(task, add({f"big{number}.bin": bytes(45_000_000) for number in range(7)}))
    assert scored.outcome is Outcome.APPLY_FAILED
    assert "more than 268,435,456 bytes" in scored.notes[0]


# --- right patches of products that are named like tests -----------------------------------------------------------


CALC_TEST = "from calc import x\n\ndef test_x():\n    assert x == 2\n"
ODD_PRODUCTS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "a folder like tests above the tests": ("spec-parser/calc.py", "spec-parser/tests/test_a.py", {}),
    "a folder that ends in checks": ("health_checks/calc.py", "health_checks/tests/test_a.py", {}),
    "tests beside the product in a folder like tests": ("load-test/calc.py", "load-test/test_a.py", {}),
    "a folder t": ("t/calc.py", "t/test_a.py", {}),
    "a folder spec that the solution changes": ("spec/calc.py", "spec/test_a.py", {"solution": True}),
    "a subdir named spec": ("spec/calc.py", "spec/test_a.py", {"subdir": "spec"}),
}


@pytest.mark.parametrize("odd", ODD_PRODUCTS)
def test_a_product_that_is_named_like_tests_may_be_mended(bench: Bench, tmp_path: Path, odd: str) -> None:
    product, test, parts = ODD_PRODUCTS[odd]
    settings = f"[pytest]\npythonpath = {Path(product).parent}\n"
    patch = f"--- a/{product}\n+++ b/{product}\n@@ -1 +1 @@\n-x = 1\n+x = 2\n"
    meta: dict[str, Any] = {"evaluation": {"fail_to_pass": [f"{test}::test_x"]}}
    if "subdir" in parts:
        meta["repo"] = {"subdir": parts["subdir"]}
    task = make_task(
        tmp_path / "odd",
        repo={product: "x = 1\n", test: CALC_TEST, "pytest.ini": settings},
        files={"solution.patch": patch} if "solution" in parts else {},
        meta=meta,
    )
    scored = bench.score(task, add({product: "x = 2\n"}))
    assert scored.resolved, (scored.flags, scored.notes)


def test_a_product_file_named_like_a_test_may_be_mended(bench: Bench, tmp_path: Path) -> None:
    task = make_task(
        tmp_path / "ab",
        repo={"ab_test.py": "x = 1\n"},
        files={"tests/test_a.py": "from ab_test import x\n\ndef test_x():\n    assert x == 2\n"},
    )
    assert bench.score(task, add({"ab_test.py": "x = 2\n"})).resolved


def test_doctests_of_the_product_itself_can_be_mended(bench: Bench, tmp_path: Path) -> None:
    text = '''def x():\n    """\n    >>> x()\n    2\n    """\n    return {}\n'''
    task = make_task(
        tmp_path / "doctest",
        repo={"calc.py": text.format(1), "pytest.ini": "[pytest]\naddopts = --doctest-modules\n"},
        meta={"evaluation": {"fail_to_pass": ["calc.py::calc.x"]}},
    )
    assert bench.score(task, add({"calc.py": text.format(2)})).resolved


LEAK = """
import pytest, app

@pytest.fixture(scope="{scope}", autouse=True)
def tidy():
    yield
    assert not getattr(app, "LEAKED", False)
"""


@pytest.mark.parametrize("scope", ["session", "package", "module"])
def test_what_fails_when_shared_fixtures_end_is_a_failure(bench: Bench, tmp_path: Path, scope: str) -> None:
    hidden = {**HIDDEN_TEST, "tests/conftest.py": LEAK.format(scope=scope)}
    task = make_task(tmp_path / "leak", repo={"app.py": "x = 1\n"}, files=hidden)
    assert bench.score(task, FIX).resolved
    assert not bench.score(task, add({"app.py": "x = 2\nLEAKED = True\n"})).resolved


def test_ending_the_session_before_tests_that_must_fail_wins_nothing(bench: Bench, tmp_path: Path) -> None:
    code = """
import pytest
def runtest(self):
    runtest.calls += 1
    if runtest.calls == 1:
        pytest.exit("", returncode=0)
runtest.calls = 0
pytest.Function.runtest = runtest
x = 1
"""
    task = make_task(tmp_path / "exit", repo={"app.py": "x = 1\n"}, files=HIDDEN_TEST)
    check_not_resolved(bench, task, add({"app.py": code}))


def test_tests_that_may_not_be_written_are_run(bench: Bench, tmp_path: Path) -> None:
    meta = {"evaluation": {"setup": "chmod -R a-w tests"}}
    task = make_task(tmp_path / "readonly", repo={"app.py": "x = 1\n"}, files=HIDDEN_TEST, meta=meta)
    assert bench.score(task, FIX).resolved


def test_a_command_that_only_tells_of_failures_is_believed(bench: Bench, tmp_path: Path) -> None:
    command = "grep -q 2 app.py || { echo 'not ok 1 - x'; exit 1; }"
    task = make_task(tmp_path / "quiet", repo={"app.py": "x = 1\n"}, meta={"evaluation": {"command": command}})
    assert bench.score(task, FIX).resolved
