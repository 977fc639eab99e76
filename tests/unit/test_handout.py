"""What a box says on its supervisor's stdout is hostile: nothing in it raises, and nothing is written elsewhere."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rollouts.backends import handout as handout_module
from rollouts.backends.handout import Handout

WHOLE = b"begin\nended 3 exited\nnote all is well\nfile diff.patch 5\nab\n\0cfile notes.md 0\ndone\n"


class Clock:
    """Ticks once per look."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def read(data: bytes, folder: Path, step: int = 0) -> Handout:
    handout = Handout(folder / "out", Clock())
    for start in range(0, len(data), step or max(1, len(data))):
        handout.feed(data[start : start + (step or len(data))])
    handout.close()
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
    handout = read(b"begin\nended 124 timeout\ndone\n", tmp_path)
    assert handout.timed_out
    assert handout.exit_code == 124


def test_content_that_looks_like_a_line_is_content(tmp_path: Path) -> None:
    handout = read(b"begin\nended 0 exited\nfile diff.patch 10\ndone\ndone\ndone\n", tmp_path)
    assert handout.files["diff.patch"].read_bytes() == b"done\ndone\n"
    assert handout.done


@pytest.mark.parametrize(
    "line",
    [
        b"hello",
        b"",
        b" begin",
        b"BEGIN",
        b"\xff\xfe",
        b"begin\nbegin",
        b"ended 0 exited",
        b"begin\nended",
        b"begin\nended 0",
        b"begin\nended 0 exited now",
        b"begin\nended -1 exited",
        b"begin\nended 256 exited",
        b"begin\nended 1e1 exited",
        "begin\nended ² exited".encode(),
        b"begin\nended " + b"9" * 5000 + b" exited",
        b"begin\nended 0 exited\nended 0 exited",
        b"file diff.patch 1\nx",
        b"begin\nfile diff.patch 1\nx",
        b"done",
        b"begin\ndone",
        b"begin\nended 0 exited\nfile ../../etc/passwd 1\nx",
        b"begin\nended 0 exited\nfile /etc/passwd 1\nx",
        b"begin\nended 0 exited\nfile result.json 1\nx",
        b"begin\nended 0 exited\nfile diff.patch",
        b"begin\nended 0 exited\nfile diff.patch -1",
        b"begin\nended 0 exited\nfile diff.patch 1 1\nx",
        b"begin\nended 0 exited\nfile diff.patch x",
        "begin\nended 0 exited\nfile diff.patch ³".encode(),
        b"begin\nended 0 exited\nfile diff.patch " + b"1" * 5000,
        b"begin\nended 0 exited\nfile diff.patch 1\nxfile diff.patch 1\ny",
        b"note x\n" * 101,
    ],
)
@pytest.mark.parametrize("step", [0, 1])
def test_anything_unexpected_breaks_the_handout(line: bytes, step: int, tmp_path: Path) -> None:
    handout = read(line + b"\ndone\n", tmp_path, step)
    assert handout.broken
    assert len(handout.broken) < 200
    assert not handout.done


def test_a_line_without_end_breaks_the_handout_and_is_not_kept(tmp_path: Path) -> None:
    handout = Handout(tmp_path, Clock())
    for _ in range(10):
        handout.feed(b"x" * 1000)
    assert handout.broken == "a line without end"
    assert len(handout._buffer) == 0


def test_a_file_that_is_cut_short_breaks_the_handout(tmp_path: Path) -> None:
    handout = read(b"begin\nended 0 exited\nfile diff.patch 10\nabc", tmp_path)
    assert handout.broken == "cut short"


def test_a_stream_that_ends_early_is_not_done(tmp_path: Path) -> None:
    handout = read(b"begin\nended 0 exited\n", tmp_path)
    assert handout.broken is None
    assert not handout.done


def test_more_than_the_limit_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handout_module, "OUTPUT_LIMIT_BYTES", 10)
    handout = read(b"begin\nended 0 exited\nfile notes.md 6\n123456file diff.patch 5\n12345done\n", tmp_path)
    assert handout.broken == "more than 10 bytes handed out"
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["notes.md"]


def test_nothing_is_read_after_the_end(tmp_path: Path) -> None:
    handout = read(WHOLE + b"file skipped.txt 3\nabc", tmp_path)
    assert handout.broken is None
    assert "skipped.txt" not in handout.files


LINES = st.sampled_from([
    b"begin\n", b"ended 0 exited\n", b"ended 124 timeout\n", b"note x\n", b"done\n", b"file diff.patch 3\nabc",
    b"file notes.md 100\n", b"file ../x 1\nx", b"file /tmp/x 1\nx", b"file diff.patch/x 1\nx",
    "ended ² exited\n".encode(),
])  # fmt: skip


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(pieces=st.lists(st.one_of(LINES, st.binary(max_size=30)), max_size=12))
def test_no_input_raises_or_writes_elsewhere(pieces: list[bytes], tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("handout")
    handout = Handout(folder / "out", Clock())
    for piece in pieces:
        handout.feed(piece)
    handout.close()
    written = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert written <= {f"out/{name}" for name in handout_module.NAMES}
