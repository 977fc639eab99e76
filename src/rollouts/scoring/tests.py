"""What a scoring box says, read as the hostile input it is: steps, and the result of each test.

A box's stdout is append-only once it is here, so nothing in the box can rewrite what it said. Lines that begin with the
word are ours; all others are what the tests themselves print, and TAP is read out of those.
"""

import json
import math
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from rollouts.backends.handout import OwnLines
from rollouts.mistakes import deeper_than

MAX_TESTS = 100_000
MAX_ID_CHARACTERS = 2000
MAX_METRICS_BYTES = 1024 * 1024
MAX_METRICS_DEPTH = 32
MAX_LINE_BYTES = 1024 * 1024
MAX_JUNIT_BYTES = 64 * 1024 * 1024
CHANGED = "a test file was rewritten before all tests were read"
UNCHECKED = "tests that must fail were not run, though nothing else went wrong"
MUST_FAIL = "tests that must fail did not: something makes tests pass"


class TestStatus(StrEnum):
    """How a test ended. Only `passed` is a pass."""

    __test__ = False  # not one of pytest's

    PASSED = "passed"
    FAILED = "failed"
    ERROR = "error"
    SKIPPED = "skipped"
    XFAILED = "xfailed"
    XPASSED = "xpassed"
    MISSING = "missing"
    """Expected, and never heard of."""


_WORST = (
    TestStatus.PASSED,
    TestStatus.XPASSED,
    TestStatus.XFAILED,
    TestStatus.SKIPPED,
    TestStatus.ERROR,
    TestStatus.FAILED,
    TestStatus.MISSING,
)
Results = dict[str, TestStatus]


def add(results: Results, test_id: str, status: TestStatus) -> None:
    """Of two results of one test the worse counts."""
    test_id = test_id[:MAX_ID_CHARACTERS].encode("utf-8", "replace").decode()  # half a character cannot be written
    known = results.get(test_id)
    if known is None and len(results) >= MAX_TESTS:
        return
    results[test_id] = status if known is None else max(known, status, key=_WORST.index)


@dataclass
class Step:
    """One step of a scoring box: what it said, and how it ended."""

    name: str
    code: int | None = None
    """None: it did not come to its end."""
    results: Results = field(default_factory=dict)
    tap: "TapReader" = field(default_factory=lambda: TapReader())
    text: bytearray = field(default_factory=bytearray)
    """What the step `metrics` printed."""
    runner: bool = False
    """pytest was there."""
    status: int | None = None
    """What pytest said at its end."""
    bent: str | None = None
    """Why none of its results can be believed."""


class Reader:
    """Takes a box's stdout as it comes."""

    def __init__(self, word: str, log: Callable[[bytes], None]) -> None:
        self._lines, self._log = OwnLines(word, MAX_LINE_BYTES), log
        self.steps: list[Step] = []

    def __call__(self, data: bytes) -> None:
        """Take the next bytes; never raises for what is in them."""
        self._lines.add(data)
        while (found := self._lines.next()) is not None:
            between, own = found
            if between:
                self._take_output(between)
            if own is not None:
                self._take_own(own)

    def close(self) -> None:
        """Nothing more comes."""
        if rest := self._lines.rest():
            self._take_output(rest)

    def _take_output(self, data: bytes) -> None:
        self._log(data)
        if self.steps and self.steps[-1].code is None:
            step = self.steps[-1]
            if step.name != "metrics":
                step.tap.take(data)
            else:
                step.text += data[: MAX_METRICS_BYTES - len(step.text)]

    def _take_own(self, line: str) -> None:
        kind, _, rest = line.partition(" ")
        if kind == "begin":
            self.steps.append(Step(rest))
            return
        if not self.steps:
            return
        step = self.steps[-1]
        if step.code is not None:
            return  # it has ended, and nothing that comes now can change how
        if kind == "end":
            code = rest.rpartition(" ")[2]
            step.code = int(code) if re.fullmatch("[0-9]{1,3}", code) else -1
            return
        try:
            fields = json.loads(rest)
            self._take_record(step, kind, fields)
        except (ValueError, KeyError, TypeError, RecursionError):
            step.bent = "the test runner's own lines were damaged"

    def _take_record(self, step: Step, kind: str, fields: dict[str, object]) -> None:
        if kind == "runner":
            step.runner = True
        elif kind == "test":
            add(step.results, str(fields["id"]), TestStatus(str(fields["status"])))
        elif kind == "finished":
            step.status = int(str(fields["status"]))
            if fields["changed"]:
                step.bent = CHANGED
            elif fields["passed"]:
                step.bent = MUST_FAIL
            elif fields["ran"] != (fields["must_fail"] or -1) and set(step.results.values()) <= {TestStatus.PASSED}:
                step.bent = UNCHECKED


class TapReader:
    """Test Anything Protocol, of its line format what counts: results, plan, bail-out."""

    _LINE = re.compile(rb"^(?:(?:not )?ok(?![^ \t\r\n])|1\.\.\d|Bail out!).*$", re.MULTILINE)
    _RESULT = re.compile(r"(not )?ok(?![^ \t])[ \t]*(\d{1,9})?[ \t]*(?:-[ \t]+|-$)?(.*)")
    _PLAN = re.compile(r"1\.\.(\d{1,9})\b")
    _TIME = re.compile(r"[ \t]# time=.*|\t([\d.]+s|\(cached\))$")
    """How long it took is no part of a test's name."""
    _DIRECTIVE = re.compile(r"(?:^|[ \t])#[ \t]*(skip|todo\b)", re.IGNORECASE)

    def __init__(self) -> None:
        self.results: Results = {}
        self._count = 0
        self._plan: int | None = None
        self._bailed = False
        self._inside = False

    def take(self, data: bytes) -> None:
        """The next lines. What is indented belongs to a subtest and is counted by its parent."""
        if self._inside:  # the end of a line whose start was here already
            _, newline, data = data.partition(b"\n")
            self._inside = not newline
        if data:
            self._inside = not data.endswith(b"\n")
        for found in self._LINE.finditer(data):
            self._take_line(found.group().decode("utf-8", "replace").rstrip())

    def _take_line(self, line: str) -> None:
        if found := self._RESULT.fullmatch(line):
            self._count += 1
            bad, number, text = found.groups()
            directive = self._DIRECTIVE.search(text)
            name = self._TIME.sub("", text[: directive.start()] if directive else text).strip().replace("\\#", "#")
            add(self.results, name or (number or str(self._count)), self._status(bool(bad), directive))
        elif found := self._PLAN.match(line):
            self._plan = int(found.group(1))
        elif line.startswith("Bail out!"):
            self._bailed = True

    @staticmethod
    def _status(bad: bool, directive: re.Match[str] | None) -> TestStatus:
        if directive is None:
            return TestStatus.FAILED if bad else TestStatus.PASSED
        if directive.group(1).lower() == "skip":
            return TestStatus.SKIPPED
        return TestStatus.XFAILED if bad else TestStatus.XPASSED

    @property
    def seen(self) -> bool:
        """Whether this was TAP at all."""
        return bool(self.results) or self._plan is not None

    def trouble(self) -> str | None:
        """Why the results are not all there should be."""
        if self._bailed:
            return "the tests bailed out"
        if self._plan is not None and self._plan != self._count:
            return f"{self._plan} tests planned, {self._count} told of"
        return None


def read_junit(data: bytes) -> Results:
    """Test cases of a JUnit XML file; raises ValueError for what is none. Ids: `file::name`, else `classname::name`."""
    if len(data) > MAX_JUNIT_BYTES:
        raise ValueError(f"more than {MAX_JUNIT_BYTES} bytes")
    if b"<!DOCTYPE" in data or b"<!ENTITY" in data or b"\0" in data:  # zeros: in UTF-16 the words look different
        raise ValueError("it declares entities")  # which could be made to fill the memory
    cases = _Cases()
    parser = ElementTree.XMLParser(target=cases)
    try:
        parser.feed(data)
        parser.close()
    except (ElementTree.ParseError, LookupError) as exc:  # the latter for an encoding that nobody knows
        raise ValueError(str(exc)) from None
    return cases.results


class _Cases:
    """Takes the test cases while they are parsed: the tree of a hostile file could fill the memory."""

    def __init__(self) -> None:
        self.results: Results = {}
        self._path: list[str] = []
        self._open: list[tuple[Mapping[str, str], set[str]]] = []

    def start(self, tag: str, attributes: Mapping[str, str]) -> None:
        if self._path and self._path[-1] == "testcase" and tag in _CASE_TAGS:
            self._open[-1][1].add(tag)
        if tag == "testcase":
            self._open.append((attributes, set()))
        self._path.append(tag)

    def end(self, tag: str) -> None:
        self._path.pop()
        if tag == "testcase":
            attributes, found = self._open.pop()
            place, name = attributes.get("file") or attributes.get("classname"), attributes.get("name", "")
            status = next((status for tag, status in _CASE_TAGS.items() if tag in found), TestStatus.PASSED)
            add(self.results, f"{place}::{name}" if place else name, status)


_CASE_TAGS = {"failure": TestStatus.FAILED, "error": TestStatus.ERROR, "skipped": TestStatus.SKIPPED}


def last_object(text: bytes) -> dict[str, object]:
    """The JSON object that a program printed, alone or as the last thing it said; raises ValueError."""
    said = text.decode("utf-8", "replace").strip()
    for candidate in _candidates(said):
        try:
            value = json.loads(candidate, parse_constant=_refuse, parse_float=_finite)
            json.dumps(value, ensure_ascii=False).encode()  # no half characters
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict) and not deeper_than(value, MAX_METRICS_DEPTH):
            return value
    raise ValueError(f"expected a JSON object, got {said[:80]!r}" if said else "it printed nothing")


def _candidates(said: str) -> Iterator[str]:
    yield said
    lines = said.splitlines()
    starts = [number for number, line in enumerate(lines) if line.startswith("{")]
    for number in starts[-1:-20:-1]:
        yield "\n".join(lines[number:])


def _finite(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else _refuse(text)


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is no JSON")
