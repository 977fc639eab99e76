"""What an agent did comes out as a patch: each case is checked by applying the patch to a fresh copy of the base.

The work is done by `sandbox/capture.sh`, here through `capture_patch`, as it is done on the host.
"""

import os
import random
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rollouts.backends.base import sandbox_file
from rollouts.errors import SandboxFailed
from rollouts.workspace import Source, capture_patch, prepare_source
from tests.samples import GIT_ENV, Content, Tree, git, make_repository, make_task, read_tree, write_files

BASE: dict[str, Content] = {
    "a.txt": "one\ntwo\nthree\n",
    "dir/b.txt": "b\n" * 20,
    "dir/deep/c.txt": "c\n",
    "image.png": bytes(range(256)) * 4,
    "run.sh": "#!/bin/sh\necho hi\n",
    "no_end.txt": "no final newline",
    "crlf.txt": b"one\r\ntwo\r\n",
    ".gitignore": "*.log\nbuild/\n",
    "tracked.log": "ignored, but part of the task\n",
}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Source:
    folder = tmp_path_factory.mktemp("base")
    write_files(folder / "t/repo", BASE)
    (folder / "t/repo/run.sh").chmod(0o755)
    (folder / "t/repo/link").symlink_to("a.txt")
    return prepare_source(make_task(folder / "t", repo={}), folder / "cache")


@dataclass
class Captured:
    patch: bytes
    skipped: str


class Box:
    """A copy of the base for an agent to work in."""

    def __init__(self, source: Source, folder: Path) -> None:
        self.source, self.folder, self.tree = source, folder, folder / "tree"
        shutil.copytree(source.tree, self.tree, symlinks=True)

    def capture(self) -> Captured:
        outputs = capture_patch(self.source.base_git, self.tree, self.folder / "out")
        skipped = outputs["skipped.txt"].read_text() if "skipped.txt" in outputs else ""
        assert {path.name for path in (self.folder / "out").iterdir()} == set(outputs)
        return Captured(outputs["diff.patch"].read_bytes(), skipped)

    def applied(self, captured: Captured) -> Tree:
        """What a fresh copy of the base becomes with the patch."""
        fresh, patch = self.folder / "fresh", self.folder / "check.patch"
        shutil.copytree(self.source.tree, fresh, symlinks=True)
        patch.write_bytes(captured.patch)
        if captured.patch:
            command = ["git", "apply", "--binary", "--whitespace=nowarn", str(patch)]
            done = subprocess.run(command, cwd=fresh, env=GIT_ENV, capture_output=True, text=True, timeout=60)
            assert done.returncode == 0, done.stderr
        return read_tree(fresh)

    def round_trip(self) -> Captured:
        """Capture, and check that the patch makes the base into just what lies in the box."""
        wanted = read_tree(self.tree)
        captured = self.capture()
        assert self.applied(captured) == wanted
        return captured


@pytest.fixture
def box(source: Source, tmp_path: Path) -> Iterator[Box]:
    yield Box(source, tmp_path)
    subprocess.run(["chmod", "-R", "u+rwX", str(tmp_path)], capture_output=True)


def test_nothing_done_is_an_empty_patch(box: Box) -> None:
    assert box.capture() == Captured(b"", "")


def test_edited_files_are_captured(box: Box) -> None:
    (box.tree / "a.txt").write_text("one\n2\nthree\n")
    assert b"-two\n+2\n" in box.round_trip().patch


def test_the_base_is_left_as_it_was(box: Box) -> None:
    before = {path: path.read_bytes() for path in box.source.base_git.rglob("*") if path.is_file()}
    write_files(box.tree, {"new.txt": "x" * 1000, "a.txt": ""})
    box.capture()
    assert {path: path.read_bytes() for path in box.source.base_git.rglob("*") if path.is_file()} == before


def test_untracked_files_are_captured(box: Box) -> None:
    write_files(box.tree, {"new.txt": "new\n", "new/folder/x.py": "x = 1\n", "empty": ""})
    box.round_trip()


def test_committed_work_is_captured(box: Box) -> None:
    write_files(box.tree, {"a.txt": "changed\n", "new.txt": "new\n"})
    git("add", "-A", cwd=box.tree)
    git("commit", "-q", "-m", "done", cwd=box.tree)
    assert b"new.txt" in box.round_trip().patch


def test_work_committed_on_another_branch_and_left_is_not_captured(box: Box) -> None:
    git("checkout", "-q", "-b", "other", cwd=box.tree)
    write_files(box.tree, {"a.txt": "changed\n"})
    git("commit", "-q", "-a", "-m", "done", cwd=box.tree)
    git("checkout", "-q", "main", cwd=box.tree)
    assert box.capture().patch == b""


def test_staged_work_is_captured(box: Box) -> None:
    write_files(box.tree, {"new.txt": "new\n"})
    git("add", "new.txt", cwd=box.tree)
    git("rm", "-q", "--cached", "a.txt", cwd=box.tree)
    assert b"a.txt" not in box.round_trip().patch


def test_an_amended_start_commit_makes_no_difference(box: Box) -> None:
    write_files(box.tree, {"a.txt": "changed\n"})
    git("commit", "-q", "-a", "--amend", "-m", "there was never anything else", cwd=box.tree)
    assert b"+changed" in box.round_trip().patch


def test_binary_files_are_captured(box: Box) -> None:
    write_files(box.tree, {"image.png": bytes(reversed(range(256))), "new.bin": b"\0\1\2" * 5000})
    assert b"GIT binary patch" in box.round_trip().patch


def test_deleted_files_are_captured(box: Box) -> None:
    (box.tree / "a.txt").unlink()
    shutil.rmtree(box.tree / "dir")
    box.round_trip()


def test_renamed_files_are_captured_as_renames(box: Box) -> None:
    (box.tree / "dir/b.txt").rename(box.tree / "moved.txt")
    assert b"rename to moved.txt" in box.round_trip().patch


def test_a_link_moved_to_below_its_own_name_still_applies(box: Box) -> None:
    """Git's own rename of this does not: the destination is beyond a link for it."""
    (box.tree / "link").unlink()
    (box.tree / "link").mkdir()
    (box.tree / "link/below").symlink_to("a.txt")
    (box.tree / "dir/b.txt").rename(box.tree / "moved.txt")
    box.round_trip()


def test_changed_modes_are_captured(box: Box) -> None:
    (box.tree / "a.txt").chmod(0o755)
    (box.tree / "run.sh").chmod(0o644)
    assert b"new mode 100755" in box.round_trip().patch


def test_links_are_captured_as_links(box: Box) -> None:
    (box.tree / "added").symlink_to("dir")
    (box.tree / "outside").symlink_to("/etc/passwd")
    (box.tree / "link").unlink()
    (box.tree / "link").symlink_to("dir/b.txt")
    captured = box.round_trip()
    assert b"root:" not in captured.patch


def test_a_link_replaced_by_a_file_and_a_file_by_a_link_are_captured(box: Box) -> None:
    (box.tree / "link").unlink()
    (box.tree / "link").write_text("a file now\n")
    (box.tree / "a.txt").unlink()
    (box.tree / "a.txt").symlink_to("link")
    box.round_trip()


def test_a_folder_replaced_by_a_file_and_a_file_by_a_folder_are_captured(box: Box) -> None:
    shutil.rmtree(box.tree / "dir")
    write_files(box.tree, {"dir": "a file now\n"})
    (box.tree / "a.txt").unlink()
    write_files(box.tree, {"a.txt/below": "x\n"})
    box.round_trip()


def test_a_folder_replaced_by_a_link_out_of_the_tree_is_not_followed(box: Box) -> None:
    outside = write_files(box.folder / "outside", {"b.txt": "secret of the host\n"})
    shutil.rmtree(box.tree / "dir")
    (box.tree / "dir").symlink_to(outside)
    assert b"secret of the host" not in box.round_trip().patch


def test_a_nested_repository_counts_as_files(box: Box) -> None:
    make_repository(box.tree / "vendor/lib", {"x.c": "int x;\n"}, {"y.c": "int y;\n"})
    captured = box.round_trip()
    assert b"vendor/lib/y.c" in captured.patch
    assert b"Subproject" not in captured.patch


def test_a_nested_repository_without_commits_counts_as_files(box: Box) -> None:
    git("init", "-q", "nested", cwd=box.tree)
    write_files(box.tree, {"nested/x.txt": "x\n"})
    assert b"nested/x.txt" in box.round_trip().patch


def test_a_submodules_git_file_does_not_hide_its_files(box: Box) -> None:
    write_files(box.tree, {"sub/.git": "gitdir: /nowhere\n", "sub/x.txt": "x\n"})
    assert b"sub/x.txt" in box.round_trip().patch


def test_a_deleted_git_folder_makes_no_difference(box: Box) -> None:
    shutil.rmtree(box.tree / ".git")
    write_files(box.tree, {"new.txt": "new\n"})
    assert b"new.txt" in box.round_trip().patch


@pytest.mark.parametrize("content", ["", "gitdir: /nowhere\n"])
def test_a_git_folder_replaced_by_a_file_makes_no_difference(content: str, box: Box) -> None:
    shutil.rmtree(box.tree / ".git")
    write_files(box.tree, {".git": content, "new.txt": "new\n"})
    assert b"new.txt" in box.round_trip().patch


def test_a_git_folder_replaced_by_a_link_is_not_followed(box: Box) -> None:
    shutil.rmtree(box.tree / ".git")
    victim = write_files(box.folder / "victim", {".git/x": "x", "x": "x"})
    (box.tree / ".git").symlink_to(victim)
    write_files(box.tree, {"new.txt": "new\n"})
    assert b"new.txt" in box.round_trip().patch
    assert (victim / ".git/x").exists()


def test_a_corrupt_index_and_broken_settings_make_no_difference(box: Box) -> None:
    write_files(box.tree, {".git/index": b"\0garbage", ".git/HEAD": "nonsense", ".git/config": "[core\n", "n": "n"})
    assert b"+n" in box.round_trip().patch


def test_settings_and_hooks_of_the_box_are_not_obeyed(box: Box) -> None:
    trap = f"#!/bin/sh\ntouch {box.folder}/trapped\n"
    config = '[core]\n fsmonitor = ./trap\n[filter "x"]\n clean = ./trap\n[diff "x"]\n command = ./trap\n'
    write_files(box.tree, {".git/config": config, "trap": trap, ".git/hooks/post-index-change": trap, "a.txt": "new\n"})
    write_files(box.tree, {".gitattributes": "* filter=x diff=x text=auto ident working-tree-encoding=UTF-16\n"})
    for name in ("trap", ".git/hooks/post-index-change"):
        (box.tree / name).chmod(0o755)
    box.round_trip()
    assert not (box.folder / "trapped").exists()


def test_exclusions_of_the_box_hide_nothing(box: Box) -> None:
    write_files(box.tree, {".git/info/exclude": "*\n", "new.txt": "new\n"})
    git("update-index", "--assume-unchanged", "a.txt", cwd=box.tree)
    write_files(box.tree, {"a.txt": "changed\n"})
    assert b"new.txt" in box.round_trip().patch


def test_line_ends_survive_text_attributes(box: Box) -> None:
    write_files(box.tree, {".gitattributes": "* text=auto eol=crlf\n", "crlf.txt": b"one\r\n2\r\n", "lf.txt": "a\nb\n"})
    write_files(box.tree, {"mixed.txt": b"a\r\nb\nc\r"})
    box.round_trip()


def test_attributes_cannot_hide_a_change(box: Box) -> None:
    write_files(box.tree, {".gitattributes": "*.txt binary\n* -diff\n[attr]diff -diff\n", "a.txt": "changed\n"})
    assert b"+changed" in box.round_trip().patch


def test_missing_final_newlines_survive(box: Box) -> None:
    write_files(box.tree, {"no_end.txt": "changed, no final newline", "a.txt": "one\ntwo\nthree", "n.txt": "n"})
    assert b"\\ No newline at end of file" in box.round_trip().patch


@pytest.mark.parametrize(
    "name", ["ünï/cødé.txt", "a new\nline", 'quo"te', "back\\slash", "tab\there", " both ends ", "-rf", "*", "$(x)"]
)
def test_strange_names_survive(name: str, box: Box) -> None:
    write_files(box.tree, {name: "x\n"})
    box.round_trip()


def test_names_that_are_not_text_survive(box: Box) -> None:
    Path(os.fsdecode(os.fsencode(box.tree) + b"/\xff\xfe")).write_text("x\n")
    box.round_trip()


def test_names_git_refuses_are_noted_and_the_rest_is_kept(box: Box) -> None:
    write_files(box.tree, {".GIT/x": "x\n", "sub/.Git": "x", "new.txt": "new\n"})
    captured = box.capture()
    assert box.applied(captured)[b"new.txt"] == ("file", b"new\n")
    assert ".GIT/x" in captured.skipped


def test_a_fifo_over_a_tracked_file_is_noted_and_the_file_counts_as_unchanged(box: Box) -> None:
    (box.tree / "a.txt").unlink()
    os.mkfifo(box.tree / "a.txt")
    os.mkfifo(box.tree / "dir/pipe")
    write_files(box.tree, {"new.txt": "new\n"})
    captured = box.capture()
    assert set(captured.skipped.split()) == {"./a.txt", "./dir/pipe"}
    assert box.applied(captured) == {**read_tree(box.source.tree), b"new.txt": ("file", b"new\n")}


def test_a_huge_file_is_noted_and_left_out(box: Box) -> None:
    for name in ("huge", "dir/b.txt"):
        with (box.tree / name).open("wb") as file:
            file.truncate(1024**3)
    write_files(box.tree, {"new.txt": "new\n"})
    captured = box.capture()
    assert set(captured.skipped.split()) == {"./huge", "./dir/b.txt"}
    assert box.applied(captured) == {**read_tree(box.source.tree), b"new.txt": ("file", b"new\n")}


def test_ignored_files_are_left_out_but_tracked_ones_are_kept(box: Box) -> None:
    write_files(box.tree, {"debug.log": "noise", "build/out.o": "noise", "tracked.log": "changed\n"})
    captured = box.capture()
    applied = box.applied(captured)
    assert applied[b"tracked.log"] == ("file", b"changed\n")
    assert b"debug.log" not in applied
    assert b"build/out.o" not in applied


def test_a_tracked_file_that_becomes_ignored_is_not_deleted(box: Box) -> None:
    write_files(box.tree, {".gitignore": "*\n"})
    assert read_tree(box.tree) == box.applied(box.capture())


def test_a_tree_replaced_by_a_link_counts_as_emptied(box: Box) -> None:
    shutil.rmtree(box.tree)
    box.tree.symlink_to(write_files(box.folder / "elsewhere", {"secret.txt": "secret of the host\n"}))
    captured = box.capture()
    assert box.applied(captured) == {}
    assert b"secret of the host" not in captured.patch


@pytest.mark.parametrize("gone", ["all of it", "its files", "a file in its place"])
def test_a_tree_that_is_gone_counts_as_emptied(gone: str, box: Box) -> None:
    shutil.rmtree(box.tree)
    if gone == "its files":
        box.tree.mkdir()
    elif gone == "a file in its place":
        box.tree.write_text("x")
    assert box.applied(box.capture()) == {}


def test_a_tree_deeper_than_any_path_does_not_spoil_the_rest(box: Box) -> None:
    top = here = os.open(box.tree, os.O_RDONLY)
    for _ in range(500):
        os.mkdir("d" * 20, dir_fd=here)
        below = os.open("d" * 20, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    assert top
    write_files(box.tree, {"new.txt": "new\n"})
    assert b"new.txt" in box.capture().patch
    subprocess.run(["rm", "-rf", str(box.tree)], check=True)


def test_the_callers_git_variables_and_settings_have_no_influence(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = "[core]\n autocrlf = true\n excludesFile = ~/all\n quotePath = false\n[diff]\n noprefix = true\n"
    home = write_files(box.folder / "home", {".gitconfig": f"{settings}[color]\n ui = always\n", "all": "*\n"})
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_EXTERNAL_DIFF", "GIT_OBJECT_DIRECTORY"):
        monkeypatch.setenv(name, "/nowhere")
    monkeypatch.setenv("GIT_DIFF_OPTS", "-u0")
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", "core.bare")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", "true")
    write_files(box.tree, {"new.txt": b"new\r\n", "a.txt": "one\n2\nthree\n"})
    patch = box.round_trip().patch
    assert b"diff --git a/new.txt b/new.txt" in patch
    assert b" one\n-two\n+2\n three\n" in patch
    assert b"\x1b" not in patch


def test_the_same_work_gives_the_same_patch(source: Source, tmp_path: Path) -> None:
    patches = set()
    for number in range(2):
        box = Box(source, tmp_path / str(number))
        write_files(box.tree, {"new.txt": "new\n", "image.png": b"\0other"})
        patches.add(box.capture().patch)
    assert len(patches) == 1


def test_a_base_that_is_gone_is_told_in_one_line(box: Box) -> None:
    with pytest.raises(SandboxFailed, match="the patch could not be captured: ") as caught:
        capture_patch(box.folder / "nowhere.git", box.tree, box.folder / "out")
    assert "\n" not in str(caught.value)
    assert not list((box.folder / "out").iterdir())


# --- as a user who may not read everything ------------------------------------------------------------------------


def close_files(tree: Path) -> None:
    write_files(tree, {"new.txt": "new\n", "shut/in.txt": "in\n", "a.txt": "changed\n"})
    for name in ("new.txt", "a.txt"):
        (tree / name).chmod(0)
    (tree / "shut").chmod(0)


def close_nested_folders(tree: Path) -> None:
    write_files(tree, {"x/y/z.txt": "z\n"})
    for name in ("x/y", "x"):
        (tree / name).chmod(0)


def close_the_tree(tree: Path) -> None:
    write_files(tree, {"new.txt": "new\n"})
    tree.chmod(0)


@pytest.mark.parametrize("close", [close_files, close_nested_folders, close_the_tree])
def test_what_the_agent_closed_to_everyone_is_captured(close: Callable[[Path], None], source: Source) -> None:
    """As root nothing is closed, so the script runs as another user then."""
    other = 65534 if os.getuid() == 0 else os.getuid()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        box = Box(source, folder)
        close(box.tree)
        shutil.copytree(source.base_git, folder / "base.git")
        shutil.copy(sandbox_file("capture.sh"), folder)
        (folder / "out").mkdir()
        if other != os.getuid():
            subprocess.run(["chown", "-R", f"{other}:{other}", str(folder)], check=True)
        command = ["sh", *(str(folder / part) for part in ("capture.sh", "base.git", "tree", "out"))]
        user = other if os.getuid() == 0 else None
        done = subprocess.run(command, user=user, group=user, capture_output=True, text=True, cwd="/")
        patch = (folder / "out/diff.patch").read_bytes() if done.returncode == 0 else b""
        subprocess.run(["chmod", "-R", "u+rwX", str(folder)], check=True)
        assert done.returncode == 0, done.stderr
        wanted = {path: content for path, (_, content) in read_tree(box.tree).items()}
        assert {path: content for path, (_, content) in box.applied(Captured(patch, "")).items()} == wanted


# --- any tree -----------------------------------------------------------------------------------------------------

NAMES = st.sampled_from(["a.txt", "dir", "run.sh", "link", "n", "é", "x y", 'q"', "new.log", ".gitattributes"])
PATHS = st.lists(NAMES, min_size=1, max_size=3).map("/".join)
CONTENTS = st.one_of(
    st.binary(max_size=60),
    st.sampled_from([b"one\ntwo\nthree\n", b"one\r\ntwo\r\n", b"* text=auto eol=crlf\n", b"* -diff\n", b"b\n" * 20]),
)
ACTIONS = st.one_of(
    st.tuples(st.just("write"), PATHS, CONTENTS),
    st.tuples(st.just("execute"), PATHS, CONTENTS),
    st.tuples(st.just("link"), PATHS, st.sampled_from([b"a.txt", b"/etc", b"nowhere", b".."])),
    st.tuples(st.just("delete"), PATHS, st.just(b"")),
)


def act(tree: Path, kind: str, name: str, content: bytes) -> None:
    """Do one thing, taking away what is in its way."""
    path = tree
    for part in Path(name).parts[:-1]:
        path = path / part
        if path.is_symlink() or path.is_file():
            path.unlink()
    path = tree / name
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    if kind == "delete":
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind == "link":
        path.symlink_to(os.fsdecode(content))
    else:
        path.write_bytes(content)
        path.chmod(0o755 if kind == "execute" else 0o644)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(actions=st.lists(ACTIONS, max_size=8))
def test_any_work_survives_the_round_trip(actions: list[tuple[str, str, bytes]], source: Source) -> None:
    with tempfile.TemporaryDirectory() as name:
        box = Box(source, Path(name))
        (box.tree / ".gitignore").unlink()
        for action in actions:
            act(box.tree, *action)
        box.round_trip()


PNG = bytes.fromhex("89504e470d0a1a0a0000000d49484452") + bytes(range(256))


def test_huge_or_binary_diff_of_junk_leaves_the_work_itself(box: Box) -> None:
    """Files below the limit for one, which together are above that for all."""
    noise = random.Random(4).randbytes
    write_files(box.tree, {f"junk/{n}.bin": noise(2 * 1024**2) for n in range(30)})
    write_files(
        box.tree, {"a.txt": "mended\n", "new.txt": "new\n", "picture.png": PNG, "dir/b.txt": noise(2 * 1024**2)}
    )
    captured = box.capture()
    assert captured.skipped == "changed files of more than 1024 KB: the patch would have more than 65536 KB\n"
    after = {**read_tree(box.source.tree), b"a.txt": ("file", b"mended\n"), b"new.txt": ("file", b"new\n")}
    assert box.applied(captured) == {**after, b"picture.png": ("file", PNG)}
    assert b"GIT binary patch" in captured.patch


def test_huge_or_binary_diff_of_many_files_is_left_out_and_said_so(box: Box) -> None:
    noise = random.Random(4).randbytes
    large = b"mended\n" * 20_000  # more than what is left out of new files
    write_files(box.tree, {f"junk/{n}": noise(60_000) for n in range(1000)} | {"a.txt": large})
    (box.tree / "dir/b.txt").unlink()
    captured = box.capture()
    assert captured.skipped == "new files: the patch would have more than 65536 KB\n"
    after = {**read_tree(box.source.tree), b"a.txt": ("file", large)}
    assert box.applied(captured) == {name: what for name, what in after.items() if name != b"dir/b.txt"}


def test_huge_or_binary_diff_of_sparse_files_costs_nothing(box: Box) -> None:
    for name in ("sparse", "dir/b.txt", "dir/other"):
        with (box.tree / name).open("wb") as file:
            file.truncate(1024**4)
    write_files(box.tree, {"new.txt": "new\n"})
    began = time.monotonic()
    captured = box.capture()
    assert time.monotonic() - began < 30
    assert set(captured.skipped.split()) == {"./sparse", "./dir/b.txt", "./dir/other"}
    assert box.applied(captured) == {**read_tree(box.source.tree), b"new.txt": ("file", b"new\n")}
