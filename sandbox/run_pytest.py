"""Runs pytest and tells what came of each test, on a line that begins with a word which only we were given.

    run_pytest.py SETTINGS.json

The word comes on stdin. pytest and all of its parts are imported before the repository can be: a `pytest.py` in it
shadows nothing. What tests print goes to stderr; the lines go to what was stdout, which no test is told about.

Afterwards tests that must fail are run in the same process. If one of them passes, something in this process makes
tests pass, and none of the results counts. Works with Python 3.7 and pytest 6 or newer.
"""

import json
import os
import sys

NO_PYTEST = 97
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
    try:
        import pytest
    except ImportError:
        return NO_PYTEST
    preload()

    def tell(kind, **fields):
        line = f"\n{word} {kind} {json.dumps(fields)}\n"
        os.write(stream, line.encode("utf-8", "backslashreplace"))

    sys.path[:0] = [os.getcwd()] + [
        path for path in os.environ.get("ROLLOUTS_PYTHONPATH", "").split(os.pathsep) if path
    ]
    if os.environ.get("ROLLOUTS_PYTHONPATH"):
        os.environ["PYTHONPATH"] = os.environ.pop("ROLLOUTS_PYTHONPATH")
    del sys.argv[1:]
    tell("runner", pytest=pytest.__version__)
    teller = Teller(tell)
    status = int(pytest.main(settings["arguments"], plugins=[teller]))
    teller.tell_the_rest()
    tell("finished", status=status, must_fail=check_failures(pytest, settings["seed"]), of=MUST_FAIL_COUNT)
    return status


def preload():
    """Import what pytest would import later, when the repository's own modules could come first."""
    import importlib
    import pkgutil

    import _pytest

    for module in pkgutil.iter_modules(_pytest.__path__):
        try:
            importlib.import_module("_pytest." + module.name)
        except ImportError:  # a part for another system
            continue
    for name in (
        "unittest.mock",
        "unittest.case",
        "doctest",
        "difflib",
        "pdb",
        "traceback",
        "tempfile",
        "shutil",
        "xml.sax",
    ):
        importlib.import_module(name)


class Teller:
    """Tells each test's result once it is known: setup, call and teardown count together."""

    def __init__(self, tell):
        self.tell = tell
        self.results = {}
        self.waiting = {}

    def pytest_collection_finish(self, session):
        self.waiting = {item.nodeid: None for item in session.items}

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
        self.waiting.pop(nodeid, None)
        self.tell("test", id=nodeid, status=self.results.pop(nodeid, None) or "error")

    def tell_the_rest(self):
        """Tests that something ended before they did: `pytest.exit` may even say that all is well."""
        for nodeid in self.waiting:
            self.tell("test", id=nodeid, status="error")


class Counter:
    """Counts tests that fail."""

    def __init__(self):
        self.failed = 0

    def pytest_runtest_logreport(self, report):
        self.failed += report.failed and report.when == "call"


def check_failures(pytest, seed):
    """How many of the tests that must fail do."""
    import shutil
    import tempfile

    folder = tempfile.mkdtemp()
    path = os.path.join(folder, f"test_{seed}.py")
    with open(path, "w") as file:
        file.write(MUST_FAIL.replace("{0}", str(int(seed, 16))).replace("{1}", str(int(seed, 16) + 1)))
    settings = os.path.join(folder, "own.ini")
    with open(settings, "w") as file:
        file.write("[pytest]\n")
    counter = Counter()
    quiet = ["-p", "no:terminal", "-p", "no:cacheprovider", "--noconftest", "-c", settings, "--rootdir", folder, path]
    pytest.main(quiet, plugins=[counter])
    shutil.rmtree(folder, ignore_errors=True)
    return counter.failed


if __name__ == "__main__":
    sys.exit(main())
