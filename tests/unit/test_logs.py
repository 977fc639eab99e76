"""Logs: capped with head and tail kept, the cut marked, and free of secrets."""

import re
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollouts.logs import LogFile, Scrubber, tail_of

SECRET = "sk-canary-0123456789"


def written(folder: Path, *pieces: bytes, limit: int = 100, secrets: tuple[str, ...] = ()) -> bytes:
    log = LogFile(folder / "agent.log", secrets, limit)
    for piece in pieces:
        log(piece)
    log.close()
    assert [path.name for path in folder.iterdir()] == ["agent.log"]
    return (folder / "agent.log").read_bytes()


def test_output_is_kept_as_it_came(tmp_path: Path) -> None:
    assert written(tmp_path, b"a\r\n\xff\0", b"", b"b") == b"a\r\n\xff\0b"


def test_output_can_be_read_while_it_comes(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "agent.log")
    log(b"first line\n")
    assert (tmp_path / "agent.log").read_bytes() == b"first line\n"
    log.close()


@pytest.mark.parametrize("piece", [1, 3, 7, 50, 99, 1000])
@pytest.mark.parametrize("size", [0, 49, 50, 51, 99, 100, 101, 149, 150, 151, 1000, 1234])
def test_head_and_tail_are_kept_and_the_cut_is_marked(size: int, piece: int, tmp_path: Path) -> None:
    data = bytes(33 + n % 90 for n in range(size))
    found = written(tmp_path, *(data[start : start + piece] for start in range(0, size, piece)))
    if size <= 100:
        assert found == data
    else:
        mark = f"\n[… {size - 100} bytes of output left out here …]\n".encode()
        assert found == data[:50] + mark + data[-50:]


def test_a_log_that_is_taken_up_again_stays_below_its_limit(tmp_path: Path) -> None:
    (tmp_path / "agent.log").write_bytes(b"x" * 40)
    found = written(tmp_path, b"y" * 500)
    assert found.startswith(b"x" * 40 + b"y" * 10 + b"\n[")
    assert len(found) < 200


def test_many_threads_may_write(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "agent.log", limit=1000)

    def write() -> None:
        for _ in range(200):
            log(b"0123456789")

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    log.close()
    kept = re.fullmatch(
        rb"((?:0123456789)+)\n\[.* 7000 bytes.*\]\n((?:0123456789)+)", (tmp_path / "agent.log").read_bytes()
    )
    assert kept
    assert (len(kept[1]), len(kept[2])) == (500, 500)


@pytest.mark.parametrize("step", [1, 2, 3, 5, 19, 20, 21, 1000])
def test_a_secret_is_hidden_however_it_is_cut(step: int, tmp_path: Path) -> None:
    data = f"key={SECRET}{SECRET} sk-canary-01 {SECRET}\nend".encode()
    pieces = [data[start : start + step] for start in range(0, len(data), step)]
    found = written(tmp_path, *pieces, limit=10_000, secrets=(SECRET,))
    assert found == b"key=[secret][secret] sk-canary-01 [secret]\nend"


def test_the_longer_of_two_secrets_is_hidden_whole() -> None:
    scrub = Scrubber(["sk-canary", SECRET])
    assert scrub(f"{SECRET} sk-canary ".encode()) + scrub.rest() == b"[secret] [secret] "


def test_values_too_short_to_be_secrets_are_left_alone() -> None:
    scrub = Scrubber(["a", "", "12345"])
    assert scrub(b"banana 12345") + scrub.rest() == b"banana 12345"


def test_what_only_starts_like_a_secret_comes_out_in_the_end() -> None:
    scrub = Scrubber([SECRET])
    assert scrub(b"say sk-can") == b"say "
    assert scrub.rest() == b"sk-can"
    assert scrub.rest() == b""


@given(st.lists(st.sampled_from(["abcabcd", "abc", "ab", "d", "abcabc", "x"]), max_size=12), st.data())
def test_no_way_to_cut_a_stream_lets_a_secret_through(words: list[str], data: st.DataObject) -> None:
    secret, text = b"abcabcd", "".join(words).encode()
    scrub, out, rest = Scrubber([secret.decode()]), b"", text
    while rest:
        size = data.draw(st.integers(1, len(rest)))
        out, rest = out + scrub(rest[:size]), rest[size:]
    assert out + scrub.rest() == text.replace(secret, b"[secret]")


def test_the_last_words_of_a_log_are_text(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"a" * 100 + "é\xff".encode() + b"\xff")
    assert tail_of(tmp_path / "x", 5) == "éÿ�"
    assert len(tail_of(tmp_path / "x", 1000)) == 103
    (tmp_path / "x").write_bytes(b"")
    assert tail_of(tmp_path / "x", 10) == ""
