"""Hostile archives: nothing is made outside the target, whatever the members are called."""

import io
import os
import stat
import tarfile
from pathlib import Path

import pytest

from rollouts import archive
from rollouts.archive import unpack
from tests.samples import read_tree, write_files

Member = tuple[str, bytes, str | bytes]
"""Name, tar's type, and content or link target."""


def pack(*members: Member, mode: int = 0o644) -> list[bytes]:
    """A tar stream in small pieces."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for name, kind, content in members:
            info = tarfile.TarInfo(name)
            info.type, info.mode = kind, 0o755 if kind == tarfile.DIRTYPE else mode
            if isinstance(content, bytes):
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
            else:
                info.linkname = content
                tar.addfile(info)
    data = stream.getvalue()
    return [data[start : start + 700] for start in range(0, len(data), 700)]


REPO: Member = ("repo", tarfile.DIRTYPE, "")


def file(name: str, content: bytes = b"x") -> Member:
    return name, tarfile.REGTYPE, content


def link(name: str, target: str) -> Member:
    return name, tarfile.SYMTYPE, target


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    return write_files(tmp_path / "outside", {"victim": "as it was", "folder/inner": "as it was"})


def unpacked(tmp_path: Path, *members: Member) -> tuple[Path, list[str]]:
    """Unpack, and check that nothing beside the target was touched."""
    before = read_tree(tmp_path)
    target = tmp_path / "target"
    skipped = unpack(pack(*members), target)
    after = {name: kept for name, kept in read_tree(tmp_path).items() if not name.startswith(b"target/")}
    assert after == before
    return target, skipped


def test_files_folders_links_and_modes_come_out(tmp_path: Path) -> None:
    source = write_files(tmp_path / "repo", {"a.txt": "a", "d/e/f.bin": bytes(range(256)) * 9000, "run": "#!/bin/sh\n"})
    (source / "run").chmod(0o755)
    (source / "empty").mkdir()
    (source / "link").symlink_to("a.txt")
    (source / "broken").symlink_to("/nowhere/at/all")
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        tar.add(source, "repo")
    assert unpack([stream.getvalue()], tmp_path / "target") == []
    assert read_tree(tmp_path / "target") == read_tree(source)
    assert (tmp_path / "target/empty").is_dir()


def test_hard_links_within_the_archive_come_out_as_files(tmp_path: Path) -> None:
    source = write_files(tmp_path / "repo", {"a.txt": "shared", "d/x": "x"})
    (source / "a.txt").chmod(0o755)
    (source / "d/b.txt").hardlink_to(source / "a.txt")
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        tar.add(source, "repo")
    assert unpack([stream.getvalue()], tmp_path / "target") == []
    assert read_tree(tmp_path / "target") == read_tree(source)


def test_a_name_that_climbs_is_left_out(tmp_path: Path, outside: Path) -> None:
    target, skipped = unpacked(tmp_path, REPO, file("repo/../../outside/victim"), file("../planted"), file("repo/ok"))
    assert skipped == ["repo/../../outside/victim", "../planted"]
    assert read_tree(target) == {b"ok": ("file", b"x")}


def test_an_absolute_name_is_left_out(tmp_path: Path, outside: Path) -> None:
    _, skipped = unpacked(tmp_path, REPO, file(f"{outside}/victim"))
    assert len(skipped) == 1


def test_nothing_is_written_through_a_link(tmp_path: Path, outside: Path) -> None:
    members = (REPO, link("repo/l", str(outside)), file("repo/l/victim"), file("repo/l/new"))
    target, skipped = unpacked(
        tmp_path, *members, ("repo/l/made", tarfile.DIRTYPE, ""), ("repo/l", tarfile.DIRTYPE, "")
    )
    assert skipped == ["repo/l/victim", "repo/l/new", "repo/l/made", "repo/l"]
    assert (target / "l").is_symlink()


def test_a_chain_of_links_is_not_followed(tmp_path: Path, outside: Path) -> None:
    members = (REPO, link("repo/a", ".."), link("repo/b", "a/outside"), file("repo/b/victim"), file("repo/a/b/c"))
    _, skipped = unpacked(tmp_path, *members)
    assert skipped == ["repo/b/victim", "repo/a/b/c"]


def test_a_file_takes_the_place_of_a_link_without_following_it(tmp_path: Path, outside: Path) -> None:
    target, _ = unpacked(tmp_path, REPO, link("repo/l", str(outside / "victim")), file("repo/l", b"planted"))
    assert read_tree(target) == {b"l": ("file", b"planted")}


@pytest.mark.parametrize("aim", ["{outside}/victim", "repo/../../outside/victim", "repo/l", "repo/nowhere", "repo"])
def test_a_hard_link_to_elsewhere_is_left_out(aim: str, tmp_path: Path, outside: Path) -> None:
    aim = aim.format(outside=outside)
    target, skipped = unpacked(
        tmp_path, REPO, link("repo/l", str(outside / "victim")), ("repo/h", tarfile.LNKTYPE, aim), file("repo/ok")
    )
    assert skipped == ["repo/h"]
    assert set(read_tree(target)) == {b"l", b"ok"}


@pytest.mark.parametrize("kind", [tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE])
def test_devices_and_pipes_are_left_out(kind: bytes, tmp_path: Path) -> None:
    target, skipped = unpacked(tmp_path, REPO, ("repo/special", kind, ""), file("repo/ok"))
    made = [path for path in target.iterdir() if not stat.S_ISREG(path.lstat().st_mode)]
    assert made == []
    assert (target / "ok").exists()
    assert skipped == ["repo/special"]


def test_too_many_members_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "MAX_MEMBERS", 10)
    with pytest.raises(tarfile.TarError, match="more than 10 members"):
        unpack(pack(REPO, *(file(f"repo/{n}") for n in range(20))), tmp_path / "target")


def test_a_size_above_the_limit_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "MAX_BYTES", 100)
    with pytest.raises(tarfile.TarError, match="100 bytes"):
        unpack(pack(REPO, file("repo/a", b"x" * 60), file("repo/b", b"x" * 60)), tmp_path / "target")
    assert not (tmp_path / "target/b").exists()


def test_what_is_too_large_for_a_patch_leaves_its_name_and_takes_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "MAX_BYTES", 100)
    monkeypatch.setattr(archive, "LARGE_BYTES", 50)
    members = (REPO, file("repo/large", b"x" * 4000), file("repo/small", b"x" * 50))
    target, skipped = unpacked(tmp_path, *members)
    assert skipped == []
    assert (target / "large").read_bytes() == b"\0" * 51
    assert (target / "small").read_bytes() == b"x" * 50
    monkeypatch.setattr(archive, "MAX_STREAM_BYTES", 4000)
    with pytest.raises(tarfile.TarError, match="more than"):
        unpack(pack(*members), tmp_path / "again")


def test_of_two_members_of_one_name_the_later_counts(tmp_path: Path) -> None:
    members = (REPO, file("repo/a", b"first"), file("repo/a", b"second"), file("repo/b"), link("repo/b", "a"))
    target, skipped = unpacked(tmp_path, *members)
    assert read_tree(target) == {b"a": ("file", b"second"), b"b": ("link", b"a")}
    assert skipped == []


def test_a_file_where_a_folder_is_and_a_folder_where_a_file_is_are_left_out(tmp_path: Path) -> None:
    folder: Member = ("repo/d", tarfile.DIRTYPE, "")
    again: Member = ("repo/f", tarfile.DIRTYPE, "")
    target, skipped = unpacked(tmp_path, REPO, folder, file("repo/d/x"), file("repo/d"), file("repo/f"), again)
    assert skipped == ["repo/d", "repo/f"]
    assert set(read_tree(target)) == {b"d/x", b"f"}


def test_a_path_through_a_file_is_left_out(tmp_path: Path) -> None:
    target, skipped = unpacked(tmp_path, REPO, file("repo/f"), file("repo/f/below/deep"))
    assert skipped == ["repo/f/below/deep"]
    assert set(read_tree(target)) == {b"f"}


def test_strange_names_stay_below_the_target(tmp_path: Path) -> None:
    target, _ = unpacked(
        tmp_path, REPO, file("repo/new\nline"), file("repo/\udcff"), file("repo/./dot"), file("repo//two")
    )
    assert set(read_tree(target)) == {b"new\nline", b"\xff", b"dot", b"two"}


def test_a_name_too_long_for_any_disk_is_left_out(tmp_path: Path) -> None:
    target, skipped = unpacked(tmp_path, REPO, file("repo/" + "x" * 300), file("repo/ok"))
    assert skipped == ["repo/" + "x" * 300]
    assert set(read_tree(target)) == {b"ok"}


@pytest.mark.parametrize("top", [link("repo", "/etc"), file("repo"), ("repo", tarfile.FIFOTYPE, "")])
def test_a_top_that_is_no_folder_is_left_out(top: Member, tmp_path: Path) -> None:
    target, skipped = unpacked(tmp_path, top)
    assert skipped == ["repo"]
    assert target.is_dir()
    assert not target.is_symlink()
    assert read_tree(target) == {}


def test_modes_of_owners_and_set_user_bits_do_not_come_out(tmp_path: Path) -> None:
    unpack(pack(REPO, file("repo/a"), mode=0o6777), tmp_path / "target")
    assert (tmp_path / "target/a").stat().st_mode & 0o7777 == 0o700
    assert (tmp_path / "target/a").stat().st_uid == os.getuid()


@pytest.mark.parametrize("data", [[b"not an archive" * 100], [b""], []])
def test_what_is_no_archive_is_refused(data: list[bytes], tmp_path: Path) -> None:
    with pytest.raises(tarfile.TarError):
        unpack(data, tmp_path / "target")


def test_an_archive_that_breaks_off_is_refused(tmp_path: Path) -> None:
    with pytest.raises((tarfile.TarError, OSError)):
        unpack(pack(REPO, file("repo/a", b"x" * 5000))[:3], tmp_path / "target")
