"""The script that runs pytest in a box: each test's result is told, and nothing else gets a word in."""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from rollouts.backends.base import sandbox_file
from rollouts.scoring.tests import MUST_FAIL, Reader, Step
from rollouts.scoring.tests import TestStatus as Status
from tests.samples import GIT_FREE, write_files

WORD = "c0ffee"
ENVIRON = {name: value for name, value in GIT_FREE.items() if not name.startswith(("PYTEST", "PYTHON", "COV"))}
P, F, E, S = Status.PASSED, Status.FAILED, Status.ERROR, Status.SKIPPED


class Ran:
    """What came of one start of the script."""

    def __init__(self, folder: Path, files: Mapping[str, str], *paths: str, environ: Mapping[str, str] | None = None):
        repo = write_files(folder / "repo", {".rollouts-pytest.ini": "[pytest]\n", **files})
        paths = paths or tuple(name for name in files if name.startswith("test_"))
        options = ["-p", "no:cacheprovider", "--continue-on-collection-errors", "--rootdir", str(repo)]
        options += ["-c", str(repo / ".rollouts-pytest.ini")]
        settings = folder / "pytest.json"
        own = {"files": [str(repo / path) for path in paths], "folder": str(repo), "seed": "00c0ffee0123"}
        settings.write_text(json.dumps({"options": options, **own}))
        done = subprocess.run(
            [sys.executable, str(sandbox_file("run_pytest.py")), str(settings)],
            input=f"{WORD}\n".encode(),
            cwd=repo,
            env={**ENVIRON, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONDONTWRITEBYTECODE": "1", **(environ or {})},
            capture_output=True,
            timeout=60,
        )
        self.code, self.errors = done.returncode, done.stderr.decode(errors="replace")
        stray: list[bytes] = []
        reader = Reader(WORD, stray.append)
        reader(f"{WORD} begin pytest\n".encode() + done.stdout)
        reader.close()
        self.stray = b"".join(stray).strip()
        self.step: Step = reader.steps[0]
        self.results = self.step.results


STATUSES = """
import unittest
import pytest

@pytest.fixture
def broken(): raise ValueError
@pytest.fixture
def leaking():
    yield
    raise ValueError

def test_passes(): print("hello from a test")
def test_fails(): assert False
def test_setup(broken): pass
def test_teardown(leaking): pass
def test_both(leaking): assert False
def test_skips(): pytest.skip("x")
@pytest.mark.skip
def test_marked(): pass
@pytest.mark.xfail
def test_xfails(): assert False
@pytest.mark.xfail
def test_xpasses(): pass
@pytest.mark.xfail(strict=True)
def test_strict(): pass
@pytest.mark.parametrize("x", ["a", "é", "c d"])
def test_param(x): assert x != "c d"
class TestClass:
    def test_method(self): pass
class Case(unittest.TestCase):
    def test_case(self): self.fail()
    @unittest.skip("x")
    def test_left_out(self): pass
    @unittest.expectedFailure
    def test_expected(self): self.fail()
    def test_parts(self):
        for number in range(3):
            with self.subTest(number=number): self.assertNotEqual(number, 1)
    def test_part_left_out(self):
        with self.subTest(): self.skipTest("x")
"""


def test_each_tests_result_is_told(tmp_path: Path) -> None:
    ran = Ran(tmp_path, {"test_a.py": STATUSES})
    assert ran.results == {
        f"test_a.py::{name}": status
        for name, status in {
            "test_passes": P, "test_fails": F, "test_setup": E, "test_teardown": E, "test_both": E, "test_skips": S,
            "test_marked": S, "test_xfails": Status.XFAILED, "test_xpasses": Status.XPASSED, "test_strict": F,
            "test_param[a]": P, "test_param[\\xe9]": P, "test_param[c d]": F, "TestClass::test_method": P,
            "Case::test_case": F, "Case::test_left_out": S, "Case::test_expected": Status.XFAILED,
            "Case::test_parts": F, "Case::test_part_left_out": S,
        }.items()
    }  # fmt: skip
    assert (ran.code, ran.step.status, ran.step.runner, ran.step.bent) == (1, 1, True, None)


def test_prints_do_not_reach_the_stream(tmp_path: Path) -> None:
    code = (
        "import os, subprocess, sys\nprint('at import')\n"
        "def test_x(capfd):\n    with capfd.disabled():\n        print('text'); os.write(1, b'bytes')\n"
        "        sys.__stdout__.write('dunder'); subprocess.run(['echo', 'child'])\n"
    )
    ran = Ran(tmp_path, {"test_a.py": code})
    assert ran.results == {"test_a.py::test_x": P}
    assert ran.stray == b""
    assert all(word in ran.errors for word in ("text", "bytes", "dunder", "child"))


def test_the_word_is_not_where_a_test_would_look(tmp_path: Path) -> None:
    code = (
        "import os, sys\ndef test_x():\n"
        "    seen = repr((sys.argv, dict(os.environ), sys.__stdin__.read())) + open('/proc/self/cmdline').read()\n"
        "    assert 'c0f' + 'fee' not in seen\n"
    )
    assert Ran(tmp_path, {"test_a.py": code}).results == {"test_a.py::test_x": P}


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("import nothing_of_this_name\n", E),
        ("def broken(\n", E),
        ("import pytest\npytest.skip('x', allow_module_level=True)\n", S),
    ],
)
def test_a_file_that_cannot_be_collected_is_told(text: str, status: Status, tmp_path: Path) -> None:
    ran = Ran(tmp_path, {"test_a.py": text, "test_b.py": "def test_x(): pass\n"})
    assert ran.results == {"test_a.py": status, "test_b.py::test_x": P}
    assert ran.step.status == ran.code == (1 if status is E else 0)


def test_no_tests_are_no_results(tmp_path: Path) -> None:
    ran = Ran(tmp_path, {"test_a.py": "x = 1\n"})
    assert (ran.results, ran.code, ran.step.status) == ({}, 5, 5)


def test_a_file_that_is_not_there_is_no_result(tmp_path: Path) -> None:
    ran = Ran(tmp_path, {}, "test_gone.py")
    assert (ran.results, ran.code, ran.step.status) == ({}, 4, 4)


HIDING = ("pytest", "_pytest", "pluggy", "unittest", "traceback", "tempfile", "json", "difflib", "shutil", "iniconfig")


def test_modules_of_the_repository_do_not_hide_those_of_pytest(tmp_path: Path) -> None:
    files = {f"{name}.py": "import os\nos._exit(0)\n" for name in HIDING}
    ran = Ran(
        tmp_path,
        {**files, "test_a.py": "def test_x(): assert 0\n"},
        environ={"ROLLOUTS_PYTHONPATH": str(tmp_path / "repo")},
    )
    assert ran.results == {"test_a.py::test_x": F}
    assert (ran.code, ran.step.status, ran.step.bent) == (1, 1, None)


def test_modules_of_the_repository_are_found(tmp_path: Path) -> None:
    files = {
        "mine.py": "x = 1\n",
        "lib/theirs.py": "y = 2\n",
        "tests/test_a.py": "import os, mine, theirs\ndef test_x(): assert os.environ['PYTHONPATH'].endswith('lib')\n",
    }
    ran = Ran(tmp_path, files, "tests/test_a.py", environ={"ROLLOUTS_PYTHONPATH": str(tmp_path / "repo/lib")})
    assert ran.results == {"tests/test_a.py::test_x": P}


@pytest.mark.parametrize("where", ["", "def test_y():\n    "])
def test_a_process_that_ends_itself_is_noticed(where: str, tmp_path: Path) -> None:
    ran = Ran(tmp_path, {"test_a.py": f"import os\ndef test_x(): pass\n{where}os._exit(0)\n"})
    assert ran.code == 0
    assert ran.step.status is None
    assert ran.step.runner


@pytest.mark.parametrize(
    "code",
    [
        "from _pytest.python import Function\nFunction.runtest = lambda self: None",
        "from _pytest.reports import TestReport\nTestReport.failed = property(lambda self: False)",
        "import unittest\nunittest.TestCase.assertEqual = lambda *a: None",
        "import _pytest.raises\n_pytest.raises.RaisesExc.__exit__ = lambda *a: True",
    ],
)
def test_what_makes_tests_pass_makes_those_pass_that_must_fail(code: str, tmp_path: Path) -> None:
    ran = Ran(tmp_path, {"test_a.py": f"{code}\ndef test_x(): assert 0\n"})
    assert ran.step.bent == MUST_FAIL


def test_the_check_leaves_nothing_behind_and_is_quiet(tmp_path: Path) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    ran = Ran(tmp_path, {"test_a.py": "def test_x(): pass\n"}, environ={"TMPDIR": str(temporary)})
    assert ran.results == {"test_a.py::test_x": P}
    assert not [path for path in temporary.iterdir() if not path.name.startswith("pytest-of-")]
    assert "c0ffee0123" not in ran.errors


@pytest.mark.parametrize("code", [0, 2])
def test_tests_that_were_left_out_by_an_exit_are_not_forgotten(code: int, tmp_path: Path) -> None:
    leaving = f"def test_y(): pytest.exit('enough', returncode={code})\n"
    ran = Ran(tmp_path, {"test_a.py": f"import pytest\ndef test_x(): pass\n{leaving}def test_z(): pass\n"})
    assert ran.results == {"test_a.py::test_x": P, "test_a.py::test_y": E, "test_a.py::test_z": E}
    assert ran.code == ran.step.status == code


def test_a_python_without_pytest_says_so(tmp_path: Path) -> None:
    settings = tmp_path / "pytest.json"
    settings.write_text(json.dumps({"arguments": [], "seed": "1"}))
    command = [sys.executable, "-I", "-S", str(sandbox_file("run_pytest.py")), str(settings)]
    done = subprocess.run(command, input=b"word\n", cwd=tmp_path, capture_output=True, timeout=60)
    assert (done.returncode, done.stdout) == (97, b"")


def test_names_that_are_not_utf_8_are_told(tmp_path: Path) -> None:
    ran = Ran(tmp_path, {"test_\udcff.py": "def test_x(): pass\n"})
    assert list(ran.results.values()) == [P]
