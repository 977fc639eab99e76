"""Digests: equal content has equal names, and every difference that matters has another."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from rollouts.digests import digest_folder, digest_of
from tests.samples import write_files

FILES = {"a.txt": "a", "d/b.txt": "b", "tests/t.py": "t"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = write_files(tmp_path / "folder", FILES)
    (folder / "link").symlink_to("a.txt")
    return folder


def test_values_are_told_apart() -> None:
    values: list[tuple[object, ...]] = [(), ("1",), (1,), (None,), ("a", "b"), ("ab",), (["a"], "b"), ({"x": 1},)]
    assert len({digest_of(*value) for value in values}) == len(values)


def test_the_order_of_keys_does_not_matter() -> None:
    assert digest_of({"a": 1, "b": 2}) == digest_of({"b": 2, "a": 1})


def test_a_copy_has_the_same_digest(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "copy", symlinks=True)
    assert digest_folder(tmp_path / "copy") == digest_folder(folder)


def test_no_folder_has_no_digest() -> None:
    assert digest_folder(None) == ""


def edit(folder: Path) -> None:
    (folder / "a.txt").write_text("A")


def rename(folder: Path) -> None:
    (folder / "a.txt").rename(folder / "z.txt")


def add(folder: Path) -> None:
    (folder / "new").write_text("")


def remove(folder: Path) -> None:
    (folder / "d/b.txt").unlink()


def make_executable(folder: Path) -> None:
    (folder / "a.txt").chmod(0o755)


def aim_elsewhere(folder: Path) -> None:
    (folder / "link").unlink()
    (folder / "link").symlink_to("d")


def replace_link_by_its_text(folder: Path) -> None:
    (folder / "link").unlink()
    (folder / "link").write_text("a.txt")


def move_a_byte_between_files(folder: Path) -> None:
    write_files(folder, {"a.txt": "", "d/b.txt": "ab"})


@pytest.mark.parametrize(
    "change",
    [edit, rename, add, remove, make_executable, aim_elsewhere, replace_link_by_its_text, move_a_byte_between_files],
)
def test_every_change_has_a_digest_of_its_own(change: Callable[[Path], None], folder: Path) -> None:
    before = digest_folder(folder)
    change(folder)
    assert digest_folder(folder) != before


def test_git_folders_and_what_is_left_out_do_not_count(folder: Path) -> None:
    before = digest_folder(folder, ("tests",))
    write_files(folder, {".git/x": "x", "d/.git/x": "x", "tests/more": "m"})
    assert digest_folder(folder, ("tests",)) == before
    assert digest_folder(folder) != before


def test_names_are_left_out_at_the_top_only(folder: Path) -> None:
    before = digest_folder(folder, ("tests",))
    write_files(folder, {"d/tests/x": "x"})
    assert digest_folder(folder, ("tests",)) != before


def test_links_to_folders_are_not_entered(folder: Path, tmp_path: Path) -> None:
    (folder / "out").symlink_to(tmp_path)
    before = digest_folder(folder)
    (tmp_path / "elsewhere").write_text("x")
    assert digest_folder(folder) == before
