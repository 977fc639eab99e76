"""Runs pytest and tells what came of each test, on a line that begins with a word which only we were given.

    run_pytest.py SETTINGS.json

The word comes on stdin. pytest and all of its parts are imported before the repository can be: a `pytest.py` in it
shadows nothing. What tests print goes to stderr; the lines go to what was stdout, which no test is told about.

Beside the task's tests, tests that must fail are run in the same session. If one of them passes, something in this
process makes tests pass, and none of the results counts. Tried with pytest 7.2 and 9.2; written for older ones too.
"""

import difflib  # noqa: F401 - pytest imports these two only when it needs them, and then the repository could come first
import glob
import importlib.util
import json
import os
import pathlib
import sys
import tempfile
import unittest  # noqa: F401

NO_PYTEST = 97
try:
    import pytest
    from _pytest.runner import runtestprotocol
except ImportError:
    sys.exit(NO_PYTEST)

MUST_FAIL = """
import unittest

import pytest


def test_of_numbers():
    assert {0} == {1}, "{0}"


def test_that_raises_nothing():
    with pytest.raises(KeyError):
        str({0})


class OfUnittest(unittest.TestCase):
    def test_equal(self):
        self.assertEqual({0}, {1})
"""


def main():
    word = sys.stdin.readline().strip()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    stream = os.dup(1)
    os.dup2(2, 1)
    with open(sys.argv[1]) as file:
        settings = json.load(file)

    def tell(kind, **fields):
        line = f"\n{word} {kind} {json.dumps(fields)}\n"
        os.write(stream, line.encode("utf-8", "backslashreplace"))

    has_xdist = "PYTEST_DISABLE_PLUGIN_AUTOLOAD" not in os.environ and importlib.util.find_spec("xdist")
    sys.path[:1] = [os.getcwd()] + [
        path for path in os.environ.get("ROLLOUTS_PYTHONPATH", "").split(os.pathsep) if path
    ]
    if os.environ.get("ROLLOUTS_PYTHONPATH"):
        os.environ["PYTHONPATH"] = os.environ.pop("ROLLOUTS_PYTHONPATH")
    del sys.argv[1:]
    tell("runner", pytest=pytest.__version__)
    options = settings["options"]
    if has_xdist:
        options.append("-n0")  # one process, whatever the task's settings say: only there can failures be checked
    files, check = FileCheck(settings["files"]), FailureCheck(settings["folder"], settings["seed"])
    teller = Teller(tell, check.name)
    status = int(pytest.main([*options, *settings["files"]], plugins=[teller, files, check]))
    teller.tell_the_rest()
    counts = {"must_fail": len(check.items), "ran": check.ran, "passed": check.passed}
    tell("finished", status=status, changed=files.changed, **counts)
    return status


def combined(status, report):
    """A test's status so far, with one more of its reports: setup, call and teardown."""
    if report.failed:
        return "failed" if report.when == "call" else "error"
    if status is None or status == "passed":
        if report.skipped:
            return "xfailed" if hasattr(report, "wasxfail") else "skipped"
        if report.when == "call":
            return "xpassed" if hasattr(report, "wasxfail") else "passed"
    return status


class Teller:
    """Tells each test's result once it is known: setup, call and teardown count together."""

    def __init__(self, tell, unknown):
        """`unknown` is the name of a file that nothing is told about."""
        self.tell, self.unknown = tell, unknown
        self.results = {}
        self.waiting = {}

    def pytest_collection_finish(self, session):
        self.waiting = {item.nodeid: None for item in session.items}

    def pytest_collectreport(self, report):
        if self.unknown in report.nodeid:
            return
        if report.failed:
            self.tell("test", id=report.nodeid, status="error")
        elif report.skipped:
            self.tell("test", id=report.nodeid, status="skipped")

    def pytest_runtest_logreport(self, report):
        self.results[report.nodeid] = combined(self.results.get(report.nodeid), report)

    def pytest_runtest_logfinish(self, nodeid):
        self.waiting.pop(nodeid, None)
        self.tell("test", id=nodeid, status=self.results.pop(nodeid, None) or "error")

    def tell_the_rest(self):
        """Tests that something ended before they did: `pytest.exit` may even say that all is well."""
        for nodeid in self.waiting:
            self.tell("test", id=nodeid, status="error")


class FileCheck:
    """Sees whether test files are still what they were when all of them are collected: one may rewrite the next."""

    def __init__(self, paths):
        self.before = {path: content_of(path) for path in paths}
        self.changed = 0

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self):
        self.changed = sum(content_of(path) != before for path, before in self.before.items())


def content_of(path):
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return None


class FailureCheck:
    """Runs tests that must fail, in the session of the real ones, and counts those that pass.

    By their ids they lie in the task's own folder of tests, so that what passes every test there passes them too. They
    are read when all others are, with whatever those imported at work, and run before the last of them, so that it is
    that one which tears down what all share. Nobody else is told of them.
    """

    def __init__(self, folder, seed):
        self.folder, self.name, self.number = folder, f"test_{seed}.py", int(seed, 16)
        self.items = []
        self.ran = self.passed = 0

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, session):
        text = MUST_FAIL.replace("{0}", str(self.number)).replace("{1}", str(self.number + 1))
        try:
            path = self.write(self.folder, text)
        except OSError:  # a folder that may not be written
            path = self.write(tempfile.mkdtemp(), text)
        try:
            self.items = list(session.genitems(self.module(session, path)))
        finally:
            self.remove(path)

    def write(self, folder, text):
        path = os.path.join(folder, self.name)
        with open(path, "w") as file:
            file.write(text)
        return path

    @staticmethod
    def module(session, path):
        try:
            return pytest.Module.from_parent(session, path=pathlib.Path(path))
        except TypeError:  # pytest 6
            import py

            return pytest.Module.from_parent(session, fspath=py.path.local(path))

    def remove(self, path):
        compiled = os.path.join(glob.escape(os.path.dirname(path)), "__pycache__", f"{self.name[:-3]}.*")
        for each in (path, *glob.glob(compiled)):
            os.remove(each)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session):
        session.items[-1:-1] = self.items

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item, nextitem):
        if item not in self.items:
            return None
        status = None
        for report in runtestprotocol(item, log=False, nextitem=nextitem):
            status = combined(status, report)
        self.ran += 1
        self.passed += status in ("passed", "xpassed")
        return True

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session):
        if getattr(session, "items", None):
            session.items[:] = [item for item in session.items if item not in self.items]


if __name__ == "__main__":
    sys.exit(main())
