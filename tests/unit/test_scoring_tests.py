"""What a scoring box says is hostile: nothing in it raises, and nothing without the word counts.

In these tests `@` stands for the word.
"""

import json
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollouts.scoring import tests as tests_module
from rollouts.scoring.tests import (
    CHANGED,
    MUST_FAIL,
    UNCHECKED,
    Reader,
    Results,
    Step,
    TapReader,
    add,
    last_object,
    read_junit,
)
from rollouts.scoring.tests import TestStatus as Status

WORD = "c0ffee"
P, F, E, S = Status.PASSED, Status.FAILED, Status.ERROR, Status.SKIPPED
WHOLE = (
    b"\n@ begin tree\n\n@ end tree 0\n\n@ begin pytest\nhello\n\n@ runner {}\n"
    b'\n@ test {"id": "t.py::a", "status": "passed"}\n\n@ test {"id": "t.py::\xc3\xa9", "status": "failed"}\n'
    b'\n@ finished {"status": 1, "must_fail": 6, "ran": 6, "passed": 0, "changed": 0}\n\n@ end pytest 1\nbetween\n'
    b'\n@ begin metrics\n{"a": 1}\n\n@ end metrics 0\n'
)


def read(data: bytes, cut: Callable[[bytes], list[bytes]] = lambda data: [data]) -> tuple[list[Step], bytes]:
    """The steps, and what went to the log."""
    log: list[bytes] = []
    reader = Reader(WORD, log.append)
    for piece in cut(data.replace(b"@", WORD.encode())):
        reader(piece)
    reader.close()
    return reader.steps, b"".join(log)


def step_of(lines: bytes) -> Step:
    (step,), _ = read(b"@ begin pytest\n" + lines)
    return step


def check_whole(steps: list[Step]) -> None:
    assert [(step.name, step.code) for step in steps] == [("tree", 0), ("pytest", 1), ("metrics", 0)]
    tested = steps[1]
    assert tested.results == {"t.py::a": P, "t.py::é": F}
    assert (tested.runner, tested.status, tested.bent) == (True, 1, None)
    assert last_object(bytes(steps[2].text)) == {"a": 1}


def test_a_box_is_read_however_its_words_are_cut() -> None:
    size = len(WHOLE.replace(b"@", WORD.encode()))
    for position in range(size):
        steps, log = read(WHOLE, lambda data, at=position: [data[:at], data[at:]])  # type: ignore[misc]
        check_whole(steps)
        assert log.split() == [b"hello", b"between", b'{"a":', b"1}"]


@pytest.mark.parametrize("step", [1, 2, 7, 100])
def test_a_box_is_read_in_pieces_of_any_size(step: int) -> None:
    steps, _ = read(WHOLE, lambda data: [data[at : at + step] for at in range(0, len(data), step)])
    check_whole(steps)


@pytest.mark.parametrize(
    "line",
    [b"begin x", b"end pytest 0", b'test {"id": "x", "status": "passed"}', b" @ begin x", b"@begin x", b"@\tbegin x",
     b"x@ begin x", b"C0FFEE begin x", b"c0ffee0 begin x", b"c0ffe begin x", b"\xff\xfe", b"\0"],
)  # fmt: skip
def test_lines_without_the_word_never_count(line: bytes) -> None:
    steps, log = read(WHOLE.replace(b"hello", line))
    check_whole(steps)
    assert line.replace(b"@", WORD.encode()) in log


def test_the_word_is_never_in_the_log() -> None:
    assert WORD.encode() not in read(WHOLE)[1]


def test_own_lines_before_any_step_are_passed_over() -> None:
    assert read(b'@ end tree 0\n@ test {"id": "x", "status": "passed"}\n@ \n@ x\n')[0] == []


@pytest.mark.parametrize(
    "line",
    [
        b"@ test",
        b"@ test {",
        b"@ test []",
        b"@ test 3",
        b'@ test {"id": "x"}',
        b'@ test {"status": "passed"}',
        b'@ test {"id": "x", "status": "great"}',
        b'@ test {"id": "x", "status": null}',
        b"@ test " + b"[" * 100_000,
        b'@ test {"id": ' + b"1" * 5000 + b"}",
        b"@ finished {}",
        b'@ finished {"status": "x", "must_fail": 1, "ran": 1, "passed": 0, "changed": 0}',
        b'@ finished {"status": 1}',
        b"@ finished []",
        b"@ hello",
        b"@ runner",
        b"@ \xff\xff",
    ],
)
def test_a_damaged_line_of_our_own_makes_the_results_count_for_nothing(line: bytes) -> None:
    step = step_of(b'@ test {"id": "a", "status": "passed"}\n' + line + b'\n@ test {"id": "b", "status": "passed"}\n')
    assert step.bent == "the test runner's own lines were damaged"
    assert step.results.keys() >= {"a", "b"}


@pytest.mark.parametrize("code", [b"", b"x", b"-1", b"1e1", "²".encode(), "٣".encode(), b"9" * 5000, b"0 x", b"1000"])
def test_an_exit_code_that_is_none_is_no_success(code: bytes) -> None:
    assert step_of(b"@ end pytest " + code + b"\n").code == -1


def test_test_files_that_were_rewritten_are_told() -> None:
    assert step_of(b'@ finished {"status": 0, "must_fail": 6, "ran": 6, "passed": 0, "changed": 1}\n').bent == CHANGED


def test_tests_that_must_fail_and_do_not_are_told() -> None:
    assert step_of(b'@ finished {"status": 0, "must_fail": 6, "ran": 6, "passed": 1, "changed": 0}\n').bent == MUST_FAIL
    assert step_of(b'@ finished {"status": 0, "must_fail": 0, "ran": 0, "passed": 0, "changed": 0}\n').bent == UNCHECKED
    assert step_of(b'@ finished {"status": 0, "must_fail": 3, "ran": 1, "passed": 0, "changed": 0}\n').bent == UNCHECKED
    broken = b'@ test {"id": "tests", "status": "error"}\n@ finished '
    assert step_of(broken + b'{"status": 1, "must_fail": 0, "ran": 0, "passed": 0, "changed": 0}\n').bent is None
    assert step_of(b'@ finished {"status": 0, "must_fail": 6, "ran": 6, "passed": 0, "changed": 0}\n').bent is None


def test_a_status_that_only_we_give_does_not_raise() -> None:
    step = step_of(b'@ test {"id": "x", "status": "missing"}\n' * 2)
    assert step.results == {"x": Status.MISSING}


def test_a_giant_line_is_not_kept() -> None:
    sizes: list[int] = []
    reader = Reader(WORD, lambda data: sizes.append(len(data)))
    for _ in range(50):
        reader(b"x" * 100_000)
        assert len(reader._lines._buffer) <= tests_module.MAX_LINE_BYTES + 100_000
    reader(b"\n" + WHOLE.replace(b"@", WORD.encode()))
    reader.close()
    assert max(sizes) <= tests_module.MAX_LINE_BYTES + 100_000
    check_whole(reader.steps)


def test_endless_metrics_are_not_kept() -> None:
    steps, _ = read(b"@ begin metrics\n" + (b"x" * 1000 + b"\n") * 3000)
    assert len(steps[0].text) <= tests_module.MAX_METRICS_BYTES + 1001


def test_what_is_printed_after_a_step_counts_for_none() -> None:
    steps, _ = read(b"@ begin tests\nok 1 - a\n@ end tests 0\nnot ok 2 - b\n@ begin metrics\n")
    assert steps[0].tap.results == {"a": P}
    assert steps[1].text == b""


def test_a_last_line_without_an_end_counts() -> None:
    assert read(b"@ begin tests\nnot ok 1 - a")[0][0].tap.results == {"a": F}


@given(
    st.lists(st.one_of(st.binary(max_size=30), st.sampled_from([b"\n@ ", b"begin x\n", b"end x 0\n", b"test {}\n"])))
)
@settings(max_examples=200, deadline=None)
def test_no_input_raises(pieces: list[bytes]) -> None:
    read(b"".join(pieces), lambda data: [data[at : at + 5] for at in range(0, len(data), 5)])


# --- two results of one test --------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", list(Status))
@pytest.mark.parametrize("second", list(Status))
def test_of_two_results_the_worse_counts(first: Status, second: Status) -> None:
    one: Results = {}
    other: Results = {}
    for status in (first, second):
        add(one, "x", status)
    for status in (second, first):
        add(other, "x", status)
    assert one == other
    assert (one["x"] is P) == (first is P and second is P)


def test_there_is_an_end_to_tests_and_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tests_module, "MAX_TESTS", 2)
    results: Results = {}
    for name in ("a", "b" * 5000, "c", "a"):
        add(results, name, F if name == "a" and results else P)
    assert results == {"a": F, "b" * tests_module.MAX_ID_CHARACTERS: P}


def test_half_a_character_does_not_reach_the_results() -> None:
    step = step_of(b'@ test {"id": "a\\ud800b", "status": "passed"}\n')
    json.dumps(list(step.results), ensure_ascii=False).encode()
    assert list(step.results.values()) == [P]


# --- TAP ----------------------------------------------------------------------------------------------------------


def tap(*lines: str) -> TapReader:
    reader = TapReader()
    for line in lines:
        reader.take(line.encode(errors="surrogateescape") + b"\n")
    return reader


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("ok 1 - adds", {"adds": P}),
        ("ok 1 adds", {"adds": P}),
        ("ok adds", {"adds": P}),
        ("ok - adds", {"adds": P}),
        ("ok 1", {"1": P}),
        ("ok", {"1": P}),
        ("ok 1 -", {"1": P}),
        ("ok 7 # skip", {"7": S}),
        ("not ok 1 - adds", {"adds": F}),
        ("not ok", {"1": F}),
        ("ok 1 - adds\r", {"adds": P}),
        ("ok 1 - adds   ", {"adds": P}),
        ("ok 1 - é 日本", {"é 日本": P}),
        ("ok 1 - a-b - c", {"a-b - c": P}),
        ("ok 1 - 2 times", {"2 times": P}),
        ("ok 1 - adds # SKIP no net", {"adds": S}),
        ("ok 1 - adds # skip", {"adds": S}),
        ("ok 1 - adds # Skipped: no net", {"adds": S}),
        ("ok 1 - adds #skip", {"adds": S}),
        ("not ok 1 - adds # SKIP", {"adds": S}),
        ("not ok 1 - adds # TODO later", {"adds": Status.XFAILED}),
        ("ok 1 - adds # todo", {"adds": Status.XPASSED}),
        ("ok 1 - adds \\# skip", {"adds # skip": P}),
        ("ok 1 - issue \\#3", {"issue #3": P}),
        ("ok 1 - issue #3", {"issue #3": P}),
        ("ok 1 - adds # time=3ms", {"adds": P}),
        ("ok 1 - skip this # todolist", {"skip this # todolist": P}),
        ("    ok 1 - of a subtest", {}),
        ("\tnot ok 1 - of a subtest", {}),
        ("okay", {}),
        ("okay then", {}),
        ("ok, that was it", {}),
        ("ok: fine", {}),
        ("ok-ish", {}),
        ("OK 1 - loud", {}),
        ("Not ok 1", {}),
        ("not  ok 1", {}),
        ("notok 1", {}),
        ("# ok 1", {}),
        ("1 ok", {}),
        ("", {}),
    ],
)
def test_a_line_of_tap(line: str, expected: Results) -> None:
    assert tap(line).results == expected


def test_a_prose_ok_is_taken_for_a_test() -> None:
    """TAP allows a name without a number, so nobody can tell."""
    assert tap("ok then").results == {"then": P}


def test_numbers_stand_for_missing_names() -> None:
    assert tap("ok", "not ok", "ok 7", "ok - named").results == {"1": P, "2": F, "7": P, "named": P}


def test_of_tests_with_one_name_the_worst_counts() -> None:
    reader = tap("1..3", "ok 1 - a", "not ok 2 - a", "ok 3 - a")
    assert reader.results == {"a": F}
    assert reader.trouble() is None


@pytest.mark.parametrize(
    ("lines", "trouble"),
    [
        (["1..2", "ok 1", "ok 2"], None),
        (["ok 1", "ok 2", "1..2"], None),
        (["ok 1"], None),
        (["1..0 # skip all"], None),
        (["1..2", "ok 1"], "2 tests planned, 1 told of"),
        (["1..1", "ok 1", "ok 2"], "1 tests planned, 2 told of"),
        (["1..1", "ok 1", "1..2"], "2 tests planned, 1 told of"),
        (["1..2\r", "ok 1\r", "ok 2\r"], None),
        (["1..2", "    1..5", "    ok 1", "ok 1", "ok 2"], None),
        (["ok 1", "Bail out! no disk"], "the tests bailed out"),
        (["TAP version 13", "1..1", "ok 1", "  ---", "  message: x", "  ..."], None),
    ],
)
def test_a_plan_must_be_kept(lines: list[str], trouble: str | None) -> None:
    reader = tap(*lines)
    assert reader.seen
    assert reader.trouble() == trouble


@pytest.mark.parametrize("lines", [[], ["hello", "all tests passed", "okay"], ["    ok 1"], ["1...2", "1..x"]])
def test_what_is_no_tap_is_not_seen(lines: list[str]) -> None:
    assert not tap(*lines).seen


@given(st.binary())
def test_no_line_of_tap_raises(line: bytes) -> None:
    TapReader().take(line)


# --- JUnit --------------------------------------------------------------------------------------------------------


def test_pytests_own_junit_is_read() -> None:
    data = b"""<?xml version="1.0" encoding="utf-8"?><testsuites name="pytest tests"><testsuite name="pytest">
<testcase classname="tests.test_a" name="test_ok" time="0.001" />
<testcase classname="tests.test_a" name="test_bad"><failure message="assert 0">text</failure></testcase>
<testcase classname="tests.test_a" name="test_both"><failure/></testcase>
<testcase classname="tests.test_a" name="test_both"><error message="failed on teardown"/></testcase>
<testcase classname="tests.test_a" name="test_setup"><error/></testcase>
<testcase classname="tests.test_a" name="test_skip"><skipped type="pytest.skip"/></testcase>
<testcase classname="tests.test_a" name="test_p[\xc3\xa9]"><system-out>x</system-out></testcase>
</testsuite></testsuites>"""
    assert read_junit(data) == {
        "tests.test_a::test_ok": P,
        "tests.test_a::test_bad": F,
        "tests.test_a::test_both": F,
        "tests.test_a::test_setup": E,
        "tests.test_a::test_skip": S,
        "tests.test_a::test_p[é]": P,
    }


def test_other_writers_junit_is_read() -> None:
    data = b"""<testsuite><testsuite><testsuite name="deep">
<testcase name="adds two" file="src/a.test.js" classname="adds"/><testcase name="alone"/>
<testcase classname="c"><error/></testcase></testsuite></testsuite>
<testcase name="outer"><skipped/></testcase></testsuite>"""
    assert read_junit(data) == {"src/a.test.js::adds two": P, "alone": P, "c::": E, "outer": S}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"hello",
        b"<testsuite>",
        b"<testsuite></other>",
        b"<a/><b/>",
        b"\0" * 100,
        b'<!DOCTYPE x [<!ENTITY a "b">]><testsuite>&a;</testsuite>',
        b"<testsuite><testcase name='&undefined;'/></testsuite>",
        '<!DOCTYPE x [<!ENTITY a "b">]><testsuite><testcase name="&a;"/></testsuite>'.encode("utf-16"),
        b"<testsuite><testcase name='&#xD800;'/></testsuite>",
        b"<?xml version='1.0' encoding='nonsense'?><testsuite/>",
        b"<?xml version='1.0' encoding='utf-7'?><testsuite/>",
    ],
)
def test_what_is_no_junit_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError):
        read_junit(data)


def test_a_giant_file_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tests_module, "MAX_JUNIT_BYTES", 10)
    with pytest.raises(ValueError, match="more than 10 bytes"):
        read_junit(b"<testsuite/>")


def test_only_a_cases_own_children_say_how_it_ended() -> None:
    data = (
        b"<testsuite><error/><testcase name='a'><properties><failure/></properties></testcase><failure/>"
        b"<testcase name='b'><testcase name='c'/><failure/></testcase></testsuite>"
    )
    assert read_junit(data) == {"a": P, "b": F, "c": P}


def test_deep_junit_does_not_raise_otherwise() -> None:
    assert read_junit(b"<a>" * 50_000 + b"<testcase name='x'/>" + b"</a>" * 50_000) == {"x": P}


# --- metrics ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b'{"a": 1}', {"a": 1}),
        (b'\n\n{"a": 1}\n\n', {"a": 1}),
        (b'{\n  "a": {\n    "b": [1, 2]\n  }\n}\n', {"a": {"b": [1, 2]}}),
        (b'log line\n{"a": 1}\n', {"a": 1}),
        (b'{"first": 1}\n{"last": 2}\n', {"last": 2}),
        (b'{ not json\nlog\n{\n"a": 1\n}', {"a": 1}),
        (b'log\n{"a": [\n{"b": 1}\n]}', {"a": [{"b": 1}]}),
        ('{"é": "日本"}'.encode(), {"é": "日本"}),
        (b"{}", {}),
    ],
)
def test_the_last_object_is_what_counts(text: bytes, expected: dict[str, object]) -> None:
    assert last_object(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        b"", b" \n", b"hello", b"[1]", b"3", b"null", b'"x"', b'{"a": NaN}', b'{"a": -Infinity}', b'{"a": 1e999}', b"{",
        b'{"a": 1} trailing', b'{"a": 1}\nbye', b'{"a":' * 100_000, b'{"a": ' + b"[" * 500 + b"]" * 500 + b"}",
        b'{"a": "\\ud800"}', b'{"\\udfff": 1}', b"\xff\xfe", b'{"a": ' + b"9" * 5000 + b"}",
    ],
)  # fmt: skip
def test_what_is_no_object_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError):
        last_object(text)


@given(st.binary())
def test_metrics_are_an_object_that_can_be_written_or_refused(text: bytes) -> None:
    try:
        found = last_object(text)
    except ValueError:
        return
    json.dumps(found, allow_nan=False, ensure_ascii=False).encode()
