"""Archives made to hurt, byte by byte where no library would make them: nothing outside, no hang, little memory."""

import io
import os
import signal
import struct
import tarfile
import time
import tracemalloc
from collections.abc import Callable, Iterator, Mapping
from itertools import chain, repeat
from pathlib import Path

import pytest

from rollouts import archive
from rollouts.archive import unpack
from tests.samples import read_tree, write_files

END = bytes(1024)
Attack = Callable[[Path], bytes]


def header(name: bytes, kind: bytes = b"0", size: int = 0, link: bytes = b"", claims: bytes | None = None) -> bytes:
    """One block; `claims` stands in the field of the size as it is."""
    field = claims if claims is not None else b"%011o\0" % size
    block = bytearray(struct.pack("100s8s8s8s12s12s8sc100s8s", name, b"0000644\0", b"0000000\0", b"0000000\0", field,
                                  b"00000000000\0", b" " * 8, kind, link, b"ustar  \0").ljust(512, b"\0"))  # fmt: skip
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def member(name: bytes, content: bytes = b"x", kind: bytes = b"0", link: bytes = b"") -> bytes:
    padding = bytes(-len(content) % 512)
    return header(name, kind, len(content), link) + content + padding


def folder(name: bytes) -> bytes:
    return header(name, b"5")


def symlink(name: bytes, target: bytes) -> bytes:
    return header(name, b"2", 0, target)


def pax(**records: str) -> bytes:
    """Extended headers for the next member; `__` in a name stands for a dot."""
    lines = b""
    for key, value in records.items():
        text = f" {key.replace('__', '.')}={value}\n".encode()
        size = len(text) + 1
        while len(str(size)) + len(text) != size:
            size += 1
        lines += str(size).encode() + text
    return member(b"pax", lines, b"x")


def long_name(name: bytes, kind: bytes = b"L") -> bytes:
    return member(b"././@LongLink", name + b"\0", kind)


TOP = folder(b"repo")


def deep_links(_: Path) -> bytes:
    """CVE-2025-4517: folders and links so long that `realpath` gives up on them, then a file through them."""
    parts, data, path = "d" * 247, TOP, b"repo"
    for step in b"abcdefghijklmnop":
        data += pax(path=os.fsdecode(path + b"/" + parts.encode())) + folder(b"x")
        data += pax(path=os.fsdecode(path + b"/" + bytes([step])), linkpath=parts) + symlink(b"x", b"x")
        path += b"/" + parts.encode()
    shortcut = "/".join("abcdefghijklmnop")
    data += pax(path=f"repo/{shortcut}/{'l' * 254}", linkpath="../" * 16) + symlink(b"x", b"x")
    data += pax(path="repo/escape", linkpath=f"{shortcut}/{'l' * 254}/../../outside") + symlink(b"x", b"x")
    data += pax(path="repo/victim", linkpath="repo/escape/victim") + header(b"x", b"1")
    return data + member(b"repo/victim", b"planted") + member(b"repo/escape/victim", b"planted")


ATTACKS: Mapping[str, Attack] = {
    "a name that climbs": lambda outside: TOP + member(b"repo/../../outside/victim"),
    "an absolute name": lambda outside: TOP + member(os.fsencode(outside / "victim")),
    "an absolute name by a long name": lambda outside: TOP + long_name(os.fsencode(outside / "victim")) + member(b"x"),
    "a name overridden by an extended header": lambda outside: TOP + pax(path=f"{outside}/victim") + member(b"repo/x"),
    "a climbing name in a header": lambda outside: TOP + pax(path="repo/../../outside/new") + member(b"repo/x"),
    "a link, then a file through it": lambda outside: (
        TOP + symlink(b"repo/l", os.fsencode(outside)) + member(b"repo/l/victim") + member(b"repo/l/new")
    ),
    "a link by an extended header, then a file through it": lambda outside: (
        TOP + pax(linkpath=str(outside)) + symlink(b"repo/l", b"x") + member(b"repo/l/victim")
    ),
    "a link in place of a folder, then a file": lambda outside: (
        TOP + folder(b"repo/d") + symlink(b"repo/d", os.fsencode(outside)) + member(b"repo/d/new")
    ),
    "a link in place of the top": lambda outside: symlink(b"repo", os.fsencode(outside)) + member(b"repo/victim"),
    "links so long that nobody resolves them": deep_links,
    "a hard link out, then a file over it": lambda outside: (
        TOP + header(b"repo/h", b"1", 0, os.fsencode(outside / "victim")) + member(b"repo/h", b"planted")
    ),
    "a hard link through a link": lambda outside: (
        TOP + symlink(b"repo/l", os.fsencode(outside)) + header(b"repo/h", b"1", 0, b"repo/l/victim")
    ),
    "a hard link to a link, then a file over it": lambda outside: (
        TOP
        + symlink(b"repo/l", os.fsencode(outside / "victim"))
        + header(b"repo/h", b"1", 0, b"repo/l")
        + member(b"repo/h", b"planted")
    ),
    "a file over its own link": lambda outside: (
        TOP + symlink(b"repo/l", os.fsencode(outside / "victim")) + member(b"repo/l", b"planted")
    ),
    "devices and pipes": lambda outside: TOP + b"".join(header(b"repo/" + kind, kind) for kind in (b"3", b"4", b"6")),
    "a type that nobody knows": lambda outside: TOP + header(b"repo/z", b"Z") + member(b"repo/7", b"x", b"7"),
    "many members of one name": lambda outside: (
        TOP
        + b"".join(
            step
            for _ in range(50)
            for step in (symlink(b"repo/a", os.fsencode(outside / "victim")), member(b"repo/a", b"planted"))
        )
    ),
}  # fmt: skip


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    return write_files(tmp_path / "outside", {"victim": "as it was", "folder/inner": "as it was"})


@pytest.fixture(autouse=True)
def _no_hang() -> Iterator[None]:
    """A header that lies must not make anyone wait."""
    signal.alarm(60)
    yield
    signal.alarm(0)


def pieces(data: bytes) -> Iterator[bytes]:
    return (data[start : start + 4096] for start in range(0, len(data), 4096))


@pytest.mark.parametrize("attack", ATTACKS)
def test_hostile_archive_changes_and_reads_nothing_outside(attack: str, tmp_path: Path, outside: Path) -> None:
    before = read_tree(outside)
    unpack(pieces(ATTACKS[attack](outside) + END), tmp_path / "target")
    assert read_tree(outside) == before
    assert {path.name for path in tmp_path.iterdir()} == {"outside", "target"}
    for path in (tmp_path / "target").rglob("*"):
        assert path.is_symlink() or path.is_dir() or path.is_file()
        if path.is_file() and not path.is_symlink():
            assert path.read_bytes() != b"as it was"
            assert path.stat().st_ino != (outside / "victim").stat().st_ino


REFUSED: Mapping[str, bytes] = {
    "a name of gigabytes": TOP + header(b"././@LongLink", b"L", 2 * 1024**3),
    "a link target of gigabytes": TOP + header(b"././@LongLink", b"K", 2 * 1024**3),
    "extended headers of gigabytes": TOP + header(b"pax", b"x", 4 * 1024**3),
    "global headers of gigabytes": TOP + header(b"pax", b"g", 4 * 1024**3),
    "a size below nothing": TOP + header(b"repo/a", claims=b"\xff" * 12),
    "a size of terabytes": TOP + header(b"repo/a", claims=b"\x80" + (2**44).to_bytes(11, "big")),
    "a size by an extended header": TOP + pax(size=str(2**44)) + header(b"repo/a"),
    "a size below nothing by an extended header": TOP + pax(size="-1024") + header(b"repo/a") + END,
    "more than there is": TOP + header(b"repo/a", size=4096) + b"short",
    "sparse, of terabytes": TOP
    + pax(GNU__sparse__major="1", GNU__sparse__minor="0", GNU__sparse__name="repo/s", GNU__sparse__realsize=str(2**44))
    + member(b"x", b"1\n0\n1\n".ljust(512, b"\0")),
    "sparse, with a map that is none": TOP
    + pax(GNU__sparse__major="1", GNU__sparse__minor="0", GNU__sparse__realsize="9")
    + member(b"x", b"no number\n".ljust(512, b"\0")),
    "sparse, with numbers that are none": TOP + pax(GNU__sparse__map="a,b", GNU__sparse__size="9") + member(b"repo/x"),
    "names of names of names": TOP + long_name(b"repo/x") * 5000,
}


@pytest.mark.parametrize("attack", REFUSED)
def test_hostile_archive_that_lies_about_sizes_is_refused(attack: str, tmp_path: Path) -> None:
    more = repeat(bytes(4096), 16384 if "gigabytes" in attack else 0)
    tracemalloc.start()
    try:
        with pytest.raises((tarfile.TarError, OSError)):
            unpack(chain(pieces(REFUSED[attack]), more), tmp_path / "t")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 16 * 1024 * 1024
    made = [path for path in (tmp_path / "t").rglob("*") if path.is_file() and path.stat().st_blocks > 100]
    assert made == []


def test_hostile_archive_of_many_members_keeps_none_of_them_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "MAX_MEMBERS", 20_000)
    stream = (TOP if n == 0 else header(b"repo/pipe%d" % n, b"6") for n in range(10**9))
    tracemalloc.start()
    try:
        with pytest.raises(tarfile.TarError, match="more than 20,000 members"):
            unpack(stream, tmp_path / "target")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 * 1024 * 1024
    assert list((tmp_path / "target").iterdir()) == []


def test_hostile_archive_names_only_so_many_of_what_it_left_out(tmp_path: Path) -> None:
    data = TOP + b"".join(header(b"repo/pipe%d" % n, b"6") for n in range(archive.MAX_TOLD + 50)) + END
    assert len(unpack(pieces(data), tmp_path / "target")) == archive.MAX_TOLD


def test_hostile_archive_of_one_huge_sparse_file_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "MAX_BYTES", 8 * 1024**2)
    source = tmp_path / "big"
    with source.open("wb") as file:
        file.truncate(16 * 1024**2)
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        tar.add(source, "repo/big")
    began = time.monotonic()
    with pytest.raises(tarfile.TarError, match="8,388,608 bytes"):
        unpack(pieces(stream.getvalue()), tmp_path / "target")
    assert time.monotonic() - began < 30
