"""Logs: capped with head and tail kept, the cut marked, and free of secrets."""

import itertools
import json
import random
import re
import threading
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollouts.logs import LogFile, Scrubber, scrub_file, tail_of

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


# --- a secret in another form -------------------------------------------------------------------------------------

HARD = 'k~y/+?"\\ é>>>???\n1'
"""Holds what base64 writes as + and /, what a URL must escape, and what JSON must."""


def scrubbed(data: bytes, step: int, *secrets: str) -> bytes:
    scrub, out = Scrubber(secrets), b""
    for start in range(0, len(data), step):
        out += scrub(data[start : start + step])
    return out + scrub.rest()


ENCODE: dict[str, Callable[[bytes], bytes]] = {"standard": b64encode, "urlsafe": urlsafe_b64encode}


@pytest.mark.parametrize("step", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize("encode", ENCODE)
@pytest.mark.parametrize("secret", [SECRET, SECRET[:-1], SECRET[:-2], HARD, "123456"])
def test_a_secret_within_base64_is_hidden_at_every_offset(secret: str, encode: str, step: int) -> None:
    """Left are the characters that a neighbour has a part in: those tell at most 4 bits of the secret on each side."""
    size = len(secret.encode())
    for before, after in itertools.product(range(6), range(4)):
        coded = ENCODE[encode](b"\xff" * before + secret.encode() + b"\xfe" * after)
        first, last = -(-before * 8 // 6), (before + size) * 8 // 6  # the characters that hold the secret alone
        expected = coded[:first] + b"[secret]" + coded[last:]
        assert scrubbed(b"<" + coded + b">", step, secret) == b"<" + expected + b">"


def test_both_alphabets_of_base64_are_meant() -> None:
    assert b"/" in b64encode(HARD.encode()) or b"+" in b64encode(HARD.encode())
    assert b64encode(HARD.encode()) != urlsafe_b64encode(HARD.encode())


FORMS: dict[str, Callable[[str], str]] = {
    "plain": str,
    "url": lambda text: quote(text, safe=""),
    "json": lambda text: json.dumps(text)[1:-1],
    "padding stripped": lambda text: b64encode(b"user:" + text.encode() + b"\n").decode().rstrip("="),
}


@pytest.mark.parametrize("step", [1, 2, 3, 5, 1000])
@pytest.mark.parametrize("form", ["plain", "url", "json"])
@pytest.mark.parametrize("secret", [SECRET, HARD, "a b&c=d", 'quo"te', "back\\slash", "ümläüt"])
def test_an_escaped_secret_is_hidden_however_it_is_cut(secret: str, form: str, step: int) -> None:
    text = FORMS[form](secret)
    assert scrubbed(f"[{text}{text}] {text}\n".encode(), step, secret) == b"[[secret][secret]] [secret]\n"


@pytest.mark.parametrize("step", [1, 4, 1000])
def test_a_secret_of_basic_authentication_is_hidden(step: int) -> None:
    found = scrubbed(f"Authorization: Basic {FORMS['padding stripped'](SECRET)}\n".encode(), step, SECRET)
    assert found.startswith(b"Authorization: Basic dXNlcj")
    assert b"[secret]" in found
    assert len(found) < len("Authorization: Basic dXNlcjp") + len("[secret]") + 5


def test_every_form_is_counted() -> None:
    scrub = Scrubber([HARD])
    for form in ("plain", "url", "json"):
        scrub(FORMS[form](HARD).encode())
    scrub(b64encode(HARD.encode()))
    assert scrub.replaced == 4


def test_a_file_is_freed_of_encoded_secrets(tmp_path: Path) -> None:
    (tmp_path / "diff.patch").write_bytes(b"+" + b64encode(f"x{SECRET}".encode()) + b"\n")
    assert scrub_file(tmp_path / "diff.patch", [SECRET])
    assert re.fullmatch(rb"\+\w\w\[secret\]\w?=*\n", (tmp_path / "diff.patch").read_bytes())
    assert not scrub_file(tmp_path / "diff.patch", [SECRET])
    assert [path.name for path in tmp_path.iterdir()] == ["diff.patch"]


def test_values_too_short_to_be_secrets_are_left_alone_in_every_form() -> None:
    data = b64encode(b"12345") + b" 1%202345 " + b64encode(b"x12345")
    assert scrubbed(data, 3, "12345", "a b") == data


def test_the_last_words_of_a_log_are_text(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"a" * 100 + "é\xff".encode() + b"\xff")
    assert tail_of(tmp_path / "x", 5) == "éÿ�"
    assert len(tail_of(tmp_path / "x", 1000)) == 103
    (tmp_path / "x").write_bytes(b"")
    assert tail_of(tmp_path / "x", 10) == ""


@pytest.mark.parametrize(
    ("secrets", "pieces", "clean"),
    [
        (("sk-canary", "sk-canary-0123456789"), (b"x sk-canary", b"-0123456789 y"), b"x [secret] y"),
        (("sk-canary", "sk-canary-0123456789"), (b"x sk-canary", b" y"), b"x [secret] y"),
        (("abcabc",), (b"xxabcabc", b"zzz"), b"xx[secret]zzz"),
        (("aaaaaa",), (b"a" * 7, b"a" * 5, b"b"), b"[secret][secret]b"),
        (("\udcffbinary",), (b"x \xffbinary y",), b"x [secret] y"),
    ],
)
def test_secrets_that_begin_or_repeat_alike_are_found(
    secrets: tuple[str, ...], pieces: tuple[bytes, ...], clean: bytes
) -> None:
    scrub = Scrubber(secrets)
    assert b"".join(map(scrub, pieces)) + scrub.rest() == clean


@given(st.lists(st.sampled_from([b"abc", b"a", b"bca", b"abcabc", b"x", b"abcabcabd"]), max_size=12), st.data())
def test_how_a_stream_is_cut_makes_no_difference(parts: list[bytes], data: st.DataObject) -> None:
    whole, secrets = b"".join(parts), ("abcabc", "abcabcabd")
    at_once, in_pieces = Scrubber(secrets), Scrubber(secrets)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=6)))
    pieces = [whole[start:end] for start, end in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    expected = at_once(whole) + at_once.rest()
    assert b"".join(map(in_pieces, pieces)) + in_pieces.rest() == expected
    assert b"abcabc" not in expected


@pytest.mark.parametrize(
    "form", ["wJal/K7+bPx", "wJal/K7%2BbPx", "wJal%2FK7%2BbPx", "wJal%2fK7%2bbPx", b"wJal/K7+bPx".hex()]
)
def test_a_secret_is_found_as_hex_and_however_it_was_put_into_a_url(form: str) -> None:
    scrub = Scrubber(["wJal/K7+bPx"])
    assert scrub(f"a {form} b\n".encode()) + scrub.rest() == b"a [secret] b\n"


LONG = "sk-canary-" + "0123456789abcdefghijklmnopqrstuvwxyz" * 2


def wrapped(text: bytes, width: int, mark: bytes = b"") -> bytes:
    """A code in lines of so many characters, each behind a mark."""
    return b"".join(mark + text[start : start + width] + b"\n" for start in range(0, len(text), width))


@pytest.mark.parametrize("step", [1, 7, 20, 1000])
@pytest.mark.parametrize("mark", [b"", b"+"])
@pytest.mark.parametrize("before", [b"", b"x", b"xy", b"KEY=" * 11])
def test_secrets_in_codes_that_are_broken_into_lines_are_hidden(before: bytes, mark: bytes, step: int) -> None:
    for code, width in ((b64encode(before + LONG.encode()), 76), ((before + LONG.encode()).hex().encode(), 60)):
        whole = b"first\n" + wrapped(code, width, mark) + b"last\n"
        found = scrubbed(whole, step, LONG)
        assert found.count(b"\n") == whole.count(b"\n")
        assert found.startswith(b"first\n")
        assert found.endswith(b"last\n")
        left = found.replace(b"[secret]", b"").replace(b"\n" + mark, b"").replace(b"\n", b"")
        assert len(left) < len(before) * 2 + 20, found


def test_an_ended_line_is_passed_on_at_once() -> None:
    scrub = Scrubber([LONG])
    code = b64encode(LONG.encode())
    for line in (b"ready\n", b"ends like it: " + code[:3] + b"\n", b"\n", b"+\n"):
        assert scrub(line) == line


def test_a_text_is_freed_of_secrets() -> None:
    assert Scrubber([SECRET]).text(f"a {SECRET} b \udcff") == "a [secret] b \udcff"
    assert Scrubber([]).text("x") == "x"


def test_a_secret_of_several_lines_is_hidden_in_a_patch_too() -> None:
    secret = "-----BEGIN KEY-----\nMIIEabc+/==\nxyz\n-----END KEY-----"
    patch = "@@ -0,0 +1,4 @@\n+" + secret.replace("\n", "\n+") + "\n context\n"
    assert Scrubber([secret]).text(patch) == "@@ -0,0 +1,4 @@\n+[secret]\n+\n+\n+\n context\n"
    assert Scrubber([secret]).text(f"x {secret} y") == "x [secret] y"


def slow_overlap(data: bytes, secret: bytes) -> int:
    """What `_overlap` means."""
    longest = min(len(data), len(secret) - 1)
    return next((size for size in range(longest, 0, -1) if data.endswith(secret[:size])), 0)


FEW_LETTERS = st.lists(st.sampled_from([b"a", b"b", b"ab", b"aaaaaaaa", b"abababab"]), max_size=12).map(b"".join)


@given(data=FEW_LETTERS, secret=FEW_LETTERS.filter(bool), more=FEW_LETTERS, size=st.integers(0, 60))
def test_the_start_of_a_secret_at_the_end_is_found_as_by_trying_every_length(
    data: bytes, secret: bytes, more: bytes, size: int
) -> None:
    for text in (data, data + secret[:size], data + secret[:size] + more):
        assert Scrubber._overlap(text, secret) == slow_overlap(text, secret)


class Counted(bytes):
    """Counts how often a part of it is taken or looked for."""

    steps = 0

    def __getitem__(self, key: Any) -> Any:
        Counted.steps += 1
        part = super().__getitem__(key)
        return Counted(part) if isinstance(part, bytes) else part

    def find(self, *args: Any) -> int:
        Counted.steps += 1
        return super().find(*args)

    def endswith(self, *args: Any) -> bool:
        Counted.steps += 1
        return super().endswith(*args)


def test_a_long_secret_takes_few_steps_to_look_for() -> None:
    dice = random.Random(7)
    secret = Counted(bytes(dice.choices(b"abcdefghijklmnopqrstuvwxyz", k=3200)))
    data = Counted(bytes(dice.choices(b"abcdefghijklmnopqrstuvwxyz", k=32_768)) + secret[:5])
    Counted.steps = 0
    assert Scrubber._overlap(data, secret) == 5
    assert Counted.steps < 100  # trying every length takes thousands
