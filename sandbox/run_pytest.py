"""Runs pytest and tells what came of each test, on a line that begins with a word which only we were given.

    run_pytest.py SETTINGS.json

The word comes on stdin. pytest and all of its parts are imported before the repository can be: a `pytest.py` in it
shadows nothing. What tests print goes to stderr; the lines go to what was stdout, which no test is told about.

Afterwards tests that must fail are run in the same process. If one of them passes, something in this process makes
tests pass, and none of the results counts. Works with Python 3.7 and pytest 6 or newer.
"""

import difflib  # noqa: F401 - pytest imports these two only when it needs them, and then the repository could come first
import json
import os
import shutil
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
    assert {0} == {1}


def test_of_texts():
    assert "{0}" in ["{1}"], "{0}"


def test_that_raises():
    raise ValueError("{0}")


def test_that_raises_nothing():
    with pytest.raises(KeyError):
        str({0})


class OfUnittest(unittest.TestCase):
    def test_equal(self):
        self.assertEqual({0}, {1})

    def test_true(self):
        self.assertTrue({0} == {1})
"""
MUST_FAIL_COUNT = 6


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

    sys.path[:1] = [os.getcwd()] + [
        path for path in os.environ.get("ROLLOUTS_PYTHONPATH", "").split(os.pathsep) if path
    ]
    if os.environ.get("ROLLOUTS_PYTHONPATH"):
        os.environ["PYTHONPATH"] = os.environ.pop("ROLLOUTS_PYTHONPATH")
    del sys.argv[1:]
    tell("runner", pytest=pytest.__version__)
    check = FailureCheck(settings["seed"], settings["folder"])
    try:
        status = int(pytest.main(settings["arguments"] + [check.path], plugins=[Teller(tell), check]))
        tell("finished", status=status, must_fail=check.failed, of=MUST_FAIL_COUNT)
    finally:
        check.remove()
    return status


class Teller:
    """Tells each test's result once it is known: setup, call and teardown count together."""

    def __init__(self, tell):
        self.tell = tell
        self.results = {}

    def pytest_collectreport(self, report):
        if report.failed:
            self.tell("test", id=report.nodeid, status="error")
        elif report.skipped:
            self.tell("test", id=report.nodeid, status="skipped")

    def pytest_runtest_logreport(self, report):
        status = self.results.get(report.nodeid)
        if report.failed:
            status = "failed" if report.when == "call" else "error"
        elif status is None or status == "passed":
            if report.skipped:
                status = "xfailed" if hasattr(report, "wasxfail") else "skipped"
            elif report.when == "call":
                status = "xpassed" if hasattr(report, "wasxfail") else "passed"
        self.results[report.nodeid] = status

    def pytest_runtest_logfinish(self, nodeid):
        self.tell("test", id=nodeid, status=self.results.pop(nodeid, None) or "error")


class FailureCheck:
    """Runs tests that must fail, in the session of the real ones but after them, and counts those that do.

    They are collected with the others and taken out of the list before anyone else sees it; nothing about them is
    reported anywhere. By their ids they lie in the task's own folder of tests, `beside`: what passes every test there
    passes them too.
    """

    def __init__(self, seed, beside):
        self.folder = tempfile.mkdtemp()
        self.name = os.path.join(beside, f"test_{seed}.py")
        self.path = os.path.join(self.folder, self.name)
        os.makedirs(os.path.dirname(self.path), exist_ok=True)
        number = int(seed, 16)
        with open(self.path, "w") as file:
            file.write(MUST_FAIL.replace("{0}", str(number)).replace("{1}", str(number + 1)))
        self.items = []
        self.failed = 0

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items):
        own = os.path.basename(self.path)
        self.items = [item for item in items if os.path.basename(str(getattr(item, "path", "") or item.fspath)) == own]
        items[:] = [item for item in items if item not in self.items]
        for item in self.items:
            item._nodeid = self.name + item.nodeid[item.nodeid.index("::") :]

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtestloop(self):
        yield
        for item in self.items:
            reports = runtestprotocol(item, log=False, nextitem=None)
            self.failed += any(report.when == "call" and report.failed for report in reports)

    def remove(self):
        shutil.rmtree(self.folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
