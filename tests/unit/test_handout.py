"""What a box says on its supervisor's stdout is hostile: nothing in it raises, and nothing is written elsewhere.

In these tests `@` stands for the word that only the supervisor knows.
"""

import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rollouts.backends import handout as handout_module
from rollouts.backends.handout import Handout

WORD = "c0ffee"
WHOLE = (
    b"\n@ begin\n\n@ ended 3 exited\n\n@ note all is well\n"
    b"\n@ file diff.patch 5\nab\n\0c\n@ file notes.md 0\n\n@ done\n"
)


class Clock:
    """Ticks once per look."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def marked(data: bytes) -> bytes:
    return data.replace(b"@", WORD.encode())


class Box:
    """A handout with what went astray."""

    def __init__(self, folder: Path) -> None:
        self.stray: list[bytes] = []
        self.handout = Handout(folder, Clock(), self.stray.append, WORD)


def read(data: bytes, folder: Path, step: int = 0, stray: bytes = b"") -> Handout:
    """Feed it all; what goes astray must be `stray`."""
    box, data = Box(folder / "out"), marked(data)
    handout = box.handout
    for start in range(0, len(data), step or max(1, len(data))):
        handout.feed(data[start : start + (step or len(data))])
    handout.close()
    assert b"".join(box.stray) == stray
    return handout


@pytest.mark.parametrize("step", [0, 1, 2, 7])
def test_a_handout_is_read_however_it_is_cut(step: int, tmp_path: Path) -> None:
    handout = read(WHOLE, tmp_path, step)
    assert handout.broken is None
    assert handout.done
    assert (handout.exit_code, handout.timed_out) == (3, False)
    assert (handout.began, handout.ended_at) == (1.0, 2.0)
    assert handout.notes == ["all is well"]
    assert {name: path.read_bytes() for name, path in handout.files.items()} == {
        "diff.patch": b"ab\n\0c",
        "notes.md": b"",
    }


def test_a_timeout_is_told_by_its_word(tmp_path: Path) -> None:
    handout = read(b"@ begin\n@ ended 124 timeout\n@ done\n", tmp_path)
    assert handout.timed_out
    assert handout.exit_code == 124


def test_an_end_on_request_is_told_by_its_word(tmp_path: Path) -> None:
    handout = read(b"@ begin\n@ ended 143 cancelled\n@ done\n", tmp_path)
    assert handout.was_asked
    assert not handout.timed_out
    assert handout.exit_code == 143


def test_content_that_looks_like_a_line_is_content(tmp_path: Path) -> None:
    content = marked(b"@ done\n@ done\n")
    data = b"@ begin\n@ ended 0 exited\n@ file diff.patch %d\n" % len(content) + content
    handout = read(data, tmp_path)
    assert handout.files["diff.patch"].read_bytes() == content
    assert not handout.done
    assert read(data + b"\n@ done\n", tmp_path).done


@pytest.mark.parametrize(
    "line",
    [
        b"@",
        b"@ ",
        b"@ hello",
        b"@  begin",
        b"@ BEGIN",
        b"@ \xff\xfe",
        b"@ begin\n@ begin",
        b"@ ended 0 exited",
        b"@ begin\n@ ended",
        b"@ begin\n@ ended 0",
        b"@ begin\n@ ended 0 exited now",
        b"@ begin\n@ ended -1 exited",
        b"@ begin\n@ ended 256 exited",
        b"@ begin\n@ ended 1e1 exited",
        "@ begin\n@ ended ² exited".encode(),
        b"@ begin\n@ ended " + b"9" * 5000 + b" exited",
        b"@ begin\n@ ended 0 exited\n@ ended 0 exited",
        b"@ file diff.patch 1\nx",
        b"@ begin\n@ file diff.patch 1\nx",
        b"@ done",
        b"@ begin\n@ done",
        b"@ begin\n@ ended 0 exited\n@ file ../../etc/passwd 1\nx",
        b"@ begin\n@ ended 0 exited\n@ file /etc/passwd 1\nx",
        b"@ begin\n@ ended 0 exited\n@ file result.json 1\nx",
        b"@ begin\n@ ended 0 exited\n@ file diff.patch",
        b"@ begin\n@ ended 0 exited\n@ file diff.patch -1",
        b"@ begin\n@ ended 0 exited\n@ file diff.patch 1 1\nx",
        b"@ begin\n@ ended 0 exited\n@ file diff.patch x",
        "@ begin\n@ ended 0 exited\n@ file diff.patch ³".encode(),
        b"@ begin\n@ ended 0 exited\n@ file diff.patch " + b"1" * 5000,
        b"@ begin\n@ ended 0 exited\n@ file diff.patch 1\nx\n@ file diff.patch 1\ny",
        b"@ note x\n" * 101,
    ],
)
@pytest.mark.parametrize("step", [0, 1])
def test_a_marked_line_that_makes_no_sense_breaks_the_handout(line: bytes, step: int, tmp_path: Path) -> None:
    handout = read(line + b"\n@ done\nmore\n", tmp_path, step)
    assert handout.broken
    assert len(handout.broken) < 200
    assert not handout.done


@pytest.mark.parametrize(
    "line",
    [b"hello", b" ", b"begin", b"ended 0 exited", b"done", b"file diff.patch 1", b"BEGIN", b"\xff\xfe", b" @ begin",
     b"@begin", b"@\tdone", b"x@ done", b"c0ffe done", b"C0FFEE done", b"c0ffee0 done"],
)  # fmt: skip
@pytest.mark.parametrize("step", [0, 1])
def test_lines_without_the_word_are_passed_on_and_change_nothing(line: bytes, step: int, tmp_path: Path) -> None:
    data = marked(line) + b"\n"
    between = WHOLE.replace(b"\n\n@ ended", b"\n" + line + b"\n\n@ ended")
    handout = read(data + between, tmp_path, step, stray=data * 2)
    assert handout.broken is None
    assert handout.done
    assert (handout.began, handout.ended_at, handout.exit_code) == (1.0, 2.0, 3)
    assert handout.files["diff.patch"].read_bytes() == b"ab\n\0c"


@pytest.mark.parametrize("step", [0, 1, 5])
def test_output_without_a_newline_does_not_spoil_the_line_behind_it(step: int, tmp_path: Path) -> None:
    handout = read(b"half a line" + WHOLE, tmp_path, step, stray=b"half a line\n")
    assert handout.done


def test_the_word_is_new_for_each_box_and_cannot_be_guessed(tmp_path: Path) -> None:
    words = {Handout(tmp_path, Clock(), lambda data: None).word for _ in range(100)}
    assert len(words) == 100
    assert {len(word) for word in words} == {32}
    assert all(word.isalnum() for word in words)


def test_a_line_without_end_is_passed_on_in_pieces_and_not_kept(tmp_path: Path) -> None:
    box = Box(tmp_path)
    for _ in range(10):
        box.handout.feed(b"x" * 1000)
        assert len(box.handout._lines._buffer) <= handout_module.LONGEST_LINE
    assert len(box.stray) == 2
    assert set(b"".join(box.stray)) == set(b"x")
    box.handout.feed(b"its end" + marked(WHOLE))
    assert b"".join(box.stray) == b"x" * 10_000 + b"its end\n"
    assert box.handout.broken is None
    assert box.handout.done


def test_a_file_that_is_cut_short_breaks_the_handout(tmp_path: Path) -> None:
    handout = read(b"@ begin\n@ ended 0 exited\n@ file diff.patch 10\nabc", tmp_path)
    assert handout.broken == "cut short"


def test_a_stream_that_ends_early_is_not_done(tmp_path: Path) -> None:
    handout = read(b"@ begin\n@ ended 0 exited\n", tmp_path)
    assert handout.broken is None
    assert not handout.done


def test_more_than_the_limit_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handout_module, "OUTPUT_LIMIT_BYTES", 10)
    handout = read(
        b"@ begin\n@ ended 0 exited\n@ file notes.md 6\n123456\n@ file diff.patch 5\n12345\n@ done\n", tmp_path
    )
    assert handout.broken == "more than 10 bytes handed out"
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["notes.md"]


def test_nothing_is_read_after_the_end(tmp_path: Path) -> None:
    handout = read(WHOLE + b"@ file skipped.txt 3\nabc", tmp_path)
    assert handout.broken is None
    assert "skipped.txt" not in handout.files


LINES = st.sampled_from([
    b"\n@ begin\n", b"\n@ ended 0 exited\n", b"\n@ ended 124 timeout\n", b"\n@ note x\n", b"\n@ done\n",
    b"\n@ file diff.patch 3\nabc", b"\n@ file notes.md 100\n", b"\n@ file ../x 1\nx", b"\n@ file /tmp/x 1\nx",
    b"\n@ file diff.patch/x 1\nx", "\n@ ended ² exited\n".encode(), b"@ ", b"begin\n",
])  # fmt: skip


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(pieces=st.lists(st.one_of(LINES, st.binary(max_size=30)), max_size=12))
def test_no_input_raises_or_writes_elsewhere(pieces: list[bytes], tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("handout")
    box = Box(folder / "out")
    for piece in pieces:
        box.handout.feed(marked(piece))
    box.handout.close()
    assert len(b"".join(box.stray)) <= sum(len(marked(piece)) for piece in pieces)
    written = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert written <= {f"out/{name}" for name in handout_module.NAMES}


@pytest.mark.parametrize("cut", [5000, 5001, 5002])
def test_the_line_behind_a_very_long_one_is_a_line_of_its_own(cut: int, tmp_path: Path) -> None:
    box = Box(tmp_path / "out")
    data = b"x" * 5000 + b"\n\nok 1 - a\n"
    box.handout.feed(data[:cut])
    box.handout.feed(data[cut:])
    assert b"".join(box.stray).split(b"\n", 1)[1].strip() == b"ok 1 - a"


def test_millions_of_short_lines_cost_little(tmp_path: Path) -> None:
    """Each of these megabytes took minutes when every line was a copy of all that followed it."""
    box, began = Box(tmp_path), time.process_time()
    for _ in range(64):
        box.handout.feed(b"y\n" * 131_072)
    assert len(b"".join(box.stray)) == 64 * 262_144
    assert time.process_time() - began < 5
