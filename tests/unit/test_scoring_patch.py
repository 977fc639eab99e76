"""Patches in git's index: what git made comes out again whole, what is broken is refused, nothing else is touched."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rollouts.scoring.patch import Content, PatchRefused
from tests.samples import read_tree
from tests.scored import Base, Files, executable, link, make_base, plain

LINES = "".join(f"line {number}\n" for number in range(1, 31))
OURS = LINES.replace("line 26\n", "line twenty-six\n")
START: Files = {
    "a.txt": plain(LINES),
    "src/b.py": plain("def b():\n    return 1\n"),
    "src/deep/c.txt": plain("c\n"),
    "tool": plain("#!/bin/sh\n"),
    "run.sh": executable("#!/bin/sh\necho run\n"),
    "to_b": link("src/b.py"),
    "blob.bin": plain(bytes(range(256)) * 40),
    "ours.txt": plain(OURS),
    "blank.txt": plain("a\nb\n\n"),
    "mixed.txt": plain("a\r\nb\nc\nd\r\ne\nf\n"),
    "dos.txt": plain(LINES.replace("\n", "\r\n")),
    "no_end.txt": plain("first\nlast"),
    "folder/one": plain("1\n"),
    "folder/two": plain("2\n"),
    "é ü.txt": plain("ä\n"),
}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Base:
    return make_base(tmp_path_factory.mktemp("base"), START)


def changed(**files: Content | None) -> Files:
    return changed_paths(dict(files))


def changed_paths(files: dict[str, Content | None]) -> Files:
    return {path: content for path, content in {**START, **files}.items() if content is not None}


CHANGES: dict[str, dict[str, Content | None]] = {
    "modified": {"a.txt": plain(LINES.replace("line 7\n", "line seven\n"))},
    "added": {"new/file.txt": plain("new\n")},
    "added empty": {"empty": plain("")},
    "emptied": {"a.txt": plain("")},
    "deleted": {"src/b.py": None},
    "renamed": {"a.txt": None, "moved/a.txt": plain(LINES)},
    "renamed and changed": {"a.txt": None, "moved.txt": plain(LINES + "more\n")},
    "made executable": {"tool": executable("#!/bin/sh\n")},
    "made plain": {"run.sh": plain("#!/bin/sh\necho run\n")},
    "link added": {"new_link": link("src/deep")},
    "link changed": {"to_b": link("../elsewhere")},
    "link made a file": {"to_b": plain("src/b.py")},
    "file made a link": {"src/b.py": link("deep/c.txt")},
    "binary changed": {"blob.bin": plain(bytes(reversed(range(256))) * 40)},
    "binary added": {"new.bin": plain(b"\0\1\2" * 1000)},
    "binary made text": {"blob.bin": plain("text\n")},
    "file made a folder": {"a.txt": None, "a.txt/inner/x": plain("x\n")},
    "folder made a file": {"folder/one": None, "folder/two": None, "folder": plain("file\n")},
    "folder made a link": {"src/b.py": None, "src/deep/c.txt": None, "src": link("folder")},
    "link made a folder": {"to_b": None, "to_b/x": plain("x\n")},
    "final newline added": {"no_end.txt": plain("first\nlast\n")},
    "final newline lost": {"a.txt": plain(LINES[:-1])},
    "line ends changed": {"dos.txt": plain(LINES)},
    "DOS file changed": {"dos.txt": plain(LINES.replace("line 3\n", "x\ny\n").replace("\n", "\r\n"))},
    "odd names": {
        "é ü.txt": plain("ö\n"),
        "日本/語.txt": plain("x\n"),
        "new\nline": plain("x\n"),
        "tab\there": plain("x\n"),
        'quo"te\\s': plain("x\n"),
        " lead and trail ": plain("x\n"),
        "-dash": plain("x\n"),
        "a b/c d": plain("x\n"),
        "\udcff\udcfe": plain("not UTF-8\n"),
        "x" * 200 + "/" + "y" * 200: plain("long\n"),
    },
    "content that looks like a patch": {"a.txt": plain("diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n")},
    "git's own files": {".gitattributes": plain("* text eol=crlf\n*.txt -diff\n"), ".gitignore": plain("*\n")},
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_git_made_comes_out_whole(name: str, base: Base, tmp_path: Path) -> None:
    wanted = changed_paths(CHANGES[name])
    applied = base.start.apply(base.patch(wanted, tmp_path))
    assert applied.how == "git apply"
    assert applied.changes == CHANGES[name]
    assert base.after(applied.changes) == wanted


def test_all_of_it_at_once_is_one_patch(base: Base, tmp_path: Path) -> None:
    together = [name for name in CHANGES if "folder" not in name and "link made" not in name]
    wanted = changed_paths({path: content for name in together for path, content in CHANGES[name].items()})
    assert base.after(base.start.apply(base.patch(wanted, tmp_path)).changes) == wanted


def test_the_start_can_be_read(base: Base) -> None:
    assert set(base.start.paths) == set(START)
    assert "a.txt" in base.start
    assert "nowhere" not in base.start
    assert base.start.read("a.txt", "nowhere", "to_b") == {"a.txt": LINES.encode(), "to_b": b"src/b.py"}
    assert base.start.read() == {}


def test_equal_contents_are_read_for_each_path(base: Base, tmp_path: Path) -> None:
    wanted = changed_paths({"one": plain("same\n"), "two": executable("same\n"), "a.txt": plain("same\n")})
    assert base.after(base.start.apply(base.patch(wanted, tmp_path)).changes) == wanted


def test_nothing_is_written_to_the_base(base: Base, tmp_path: Path) -> None:
    before = contents(base.source.base_git)
    tree = read_tree(base.source.tree)
    base.start.apply(base.patch(changed_paths(CHANGES["odd names"]), tmp_path))
    with pytest.raises(PatchRefused):
        base.start.apply(b"nonsense\n")
    with pytest.raises(PatchRefused):
        base.start.apply(three_way_patch(base, tmp_path, 26))
    assert contents(base.source.base_git) == before
    assert read_tree(base.source.tree) == tree


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_patches_do_not_see_each_other(base: Base, tmp_path: Path) -> None:
    one = base.patch(changed(**CHANGES["added"]), tmp_path)
    two = base.patch(changed(**CHANGES["deleted"]), tmp_path)
    base.start.apply(one)
    assert base.start.apply(two).changes == CHANGES["deleted"]
    assert base.start.apply(one).changes == CHANGES["added"]


# --- the ways of applying -----------------------------------------------------------------------------------------


def three_way_patch(base: Base, folder: Path, line: int) -> bytes:
    """For `ours.txt`, made against the version of it that the start holds as `a.txt`."""
    wanted = changed_paths({"a.txt": plain(LINES.replace(f"line {line}\n", "changed\n"))})
    return base.patch(wanted, folder).replace(b"a.txt", b"ours.txt")


def test_a_patch_against_an_older_version_is_merged(base: Base, tmp_path: Path) -> None:
    applied = base.start.apply(three_way_patch(base, tmp_path, 29))
    assert applied.how == "git apply --3way"
    assert applied.changes == {"ours.txt": plain(OURS.replace("line 29\n", "changed\n"))}


def test_a_merge_with_conflicts_is_refused_in_the_words_of_the_first_try(base: Base, tmp_path: Path) -> None:
    with pytest.raises(PatchRefused, match=r"^error: patch failed: ours.txt:23 error: ours.txt: patch does not apply$"):
        base.start.apply(three_way_patch(base, tmp_path, 26))


def test_a_moved_hunk_applies(base: Base) -> None:
    patch = b"--- a/a.txt\n+++ b/a.txt\n@@ -2,3 +2,3 @@\n line 19\n-line 20\n+twenty\n line 21\n"
    assert base.start.apply(patch).changes == {"a.txt": plain(LINES.replace("line 20\n", "twenty\n"))}


@pytest.mark.parametrize("name", ["modified", "added", "deleted", "made executable", "binary changed", "renamed"])
def test_a_missing_final_newline_is_no_reason_to_refuse(name: str, base: Base, tmp_path: Path) -> None:
    wanted = changed_paths(CHANGES[name])
    patch = base.patch(wanted, tmp_path).rstrip(b"\n")
    assert base.after(base.start.apply(patch).changes) == wanted
    assert base.after(base.start.apply(patch + b"\n").changes) == wanted


def test_a_blank_last_line_that_was_stripped_is_no_reason_to_refuse(base: Base, tmp_path: Path) -> None:
    wanted = changed_paths({"blank.txt": plain("A\nb\n\n")})
    patch = base.patch(wanted, tmp_path)
    assert patch.endswith(b"\n b\n \n")
    applied = base.start.apply(patch.strip())
    assert applied.how == "with its end mended"
    assert base.after(applied.changes) == wanted


def test_a_patch_that_went_through_dos_applies(base: Base, tmp_path: Path) -> None:
    wanted = changed_paths({**CHANGES["modified"], **CHANGES["added"], **CHANGES["deleted"]})
    patch = base.patch(wanted, tmp_path).replace(b"\n", b"\r\n")
    applied = base.start.apply(patch)
    assert applied.how == "without its carriage returns"
    assert base.after(applied.changes) == wanted


@pytest.mark.parametrize("ends", [b"\n", b"\r\n"], ids=["unix", "dos"])
@pytest.mark.parametrize("final", [True, False], ids=["whole", "without its final newline"])
def test_a_file_with_dos_line_ends_keeps_them(ends: bytes, final: bool, base: Base, tmp_path: Path) -> None:
    wanted = changed_paths(CHANGES["DOS file changed"])
    patch = base.patch(wanted, tmp_path).replace(b"\r\n", b"\n").replace(b"\n", ends)
    applied = base.start.apply(patch if final else patch.removesuffix(ends))
    assert base.after(applied.changes) == wanted
    assert ends == b"\r\n" or applied.how == "whatever its line ends"


def test_line_ends_of_other_files_are_left_alone(base: Base, tmp_path: Path) -> None:
    unix = {"a.txt": plain(LINES + "more\n"), "new.txt": plain("new\n"), "mixed.txt": plain("a\r\nb\nc\nd\r\ne\nF\n")}
    wanted = changed_paths({**CHANGES["DOS file changed"], **unix, "dos_link": link("x\ny")})
    patch = base.patch(wanted, tmp_path).replace(b"\r\n", b"\n")
    assert base.after(base.start.apply(patch).changes) == wanted


def test_white_space_in_added_lines_is_kept(base: Base, tmp_path: Path) -> None:
    wanted = changed_paths({"a.txt": plain(LINES + "trailing \t \n \t mixed\n\n\n\n"), "dos2.txt": plain("a\r\n")})
    assert base.after(base.start.apply(base.patch(wanted, tmp_path)).changes) == wanted


# --- refusals -----------------------------------------------------------------------------------------------------

HUNK = b"@@ -0,0 +1 @@\n+x\n"


def new_file(path: str, mode: str = "100644", text: str = "x") -> bytes:
    return (
        f"diff --git a/{path} b/{path}\nnew file mode {mode}\n--- /dev/null\n+++ b/{path}\n@@ -0,0 +1 @@\n+{text}\n"
    ).encode()


@pytest.mark.parametrize(
    "patch",
    [
        b"",
        b"\n\n",
        b"garbage\n",
        b"\0\xff\xfe" * 100,
        b"diff --git a/a.txt b/a.txt\n",
        b"diff --git a/a.txt b/a.txt\n--- a/a.txt\n+++ b/a.txt\n",
        b"diff --git a/a.txt b/a.txt\n--- a/a.txt\n+++ b/a.txt\n@@ -1 +1 @@\n",
        b"--- a/a.txt\n+++ b/a.txt\n@@ -1,3 +1,3 @@\n line 1\n-line 2\n",
        b"--- a/a.txt\n+++ b/a.txt\n@@ -1,99999999999999999999 +1 @@\n line 1\n",
        b"--- a/a.txt\n+++ b/a.txt\n@@ -1 +1 @@\n-no such line\n+x\n",
        b"--- a/nowhere.txt\n+++ b/nowhere.txt\n@@ -1 +1 @@\n-x\n+y\n",
        b"Binary files a/blob.bin and b/blob.bin differ\n",
        b"diff --git a/blob.bin b/blob.bin\nindex 1111111..2222222\nBinary files a/blob.bin and b/blob.bin differ\n",
        new_file("a.txt"),
        new_file("../x"),
        new_file("src/../../x"),
        new_file("./x"),
        new_file("/tmp/x"),
        new_file(".git/config"),
        new_file("src/.git/hooks/post-checkout", "100755"),
        new_file(".git"),
        new_file("to_b/x"),
        new_file("a.txt/x"),
        new_file("folder"),
        new_file("new_link", "120000", "src") + new_file("new_link/x"),
        b"diff --git a/a.txt b/../x\nsimilarity index 100%\nrename from a.txt\nrename to ../x\n",
    ],
)  # fmt: skip
def test_a_patch_that_makes_no_sense_is_refused(patch: bytes, base: Base) -> None:
    with pytest.raises(PatchRefused) as caught:
        base.start.apply(patch)
    assert 0 < len(str(caught.value)) <= 500
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["modified", "binary changed", "deleted"])
def test_a_patch_that_was_cut_short_is_refused(name: str, base: Base, tmp_path: Path) -> None:
    """In its header, in a hunk or in a binary part; only within its last line can nobody tell."""
    patch = base.patch(changed_paths(CHANGES[name]), tmp_path)
    forward = patch.partition(b"\n\n")[0]  # of a binary part; the way back behind it is not needed
    last_line = forward.rstrip(b"\n").rindex(b"\n")
    for cut in range(1, last_line, max(1, last_line // 40)):
        with pytest.raises(PatchRefused):
            base.start.apply(patch[:cut])


def test_an_absolute_path_ends_up_inside(base: Base) -> None:
    applied = base.start.apply(b"--- /dev/null\n+++ /tmp/x\n@@ -0,0 +1 @@\n+x\n")
    assert applied.changes == {"tmp/x": plain("x\n")}


@pytest.mark.parametrize("mode", ["160000", "040000"])
def test_a_submodule_brings_nothing(mode: str, base: Base) -> None:
    applied = base.start.apply(new_file("sub", mode, f"Subproject commit {'1' * 40}") + new_file("other"))
    assert base.after(applied.changes) == changed_paths({"other": plain("x\n")})


def test_a_submodule_in_place_of_a_file_removes_the_file(base: Base) -> None:
    patch = (
        b"diff --git a/tool b/tool\ndeleted file mode 100644\n--- a/tool\n+++ /dev/null\n@@ -1 +0,0 @@\n-#!/bin/sh\n"
    )
    applied = base.start.apply(patch + new_file("tool", "160000", f"Subproject commit {'1' * 40}"))
    assert base.after(applied.changes) == changed_paths({"tool": None})


def test_a_part_that_does_not_apply_makes_all_of_it_refused(base: Base) -> None:
    with pytest.raises(PatchRefused, match=r"\.\./x"):
        base.start.apply(new_file("fine.txt") + new_file("../x"))


# --- whatever the trees -------------------------------------------------------------------------------------------

NAMES = st.sampled_from(["a", "b", "c c", "é", "-d", "e\nf", 'g"h', "i\\j", "\udcff"])
PATHS = st.lists(NAMES, min_size=1, max_size=3).map("/".join)
TEXTS = st.lists(st.sampled_from(["x", "y", "", " z", "\r", "é", "-- a", "@@"]), max_size=8).map("\n".join)
CONTENTS = st.one_of(
    st.builds(plain, TEXTS),
    st.builds(plain, TEXTS.map(lambda text: text + "\n")),
    st.builds(plain, TEXTS.map(lambda text: text.replace("\n", "\r\n") + "\r\n")),
    st.builds(plain, st.binary(max_size=40)),
    st.builds(executable, TEXTS),
    st.builds(link, st.sampled_from(["a", "../b", "/nowhere", "é"])),
)


def possible(files: Files) -> Files:
    """Without what lies below another file."""
    return {path: files[path] for path in files if not any(path.startswith(f"{other}/") for other in files)}


TREES = st.dictionaries(PATHS, CONTENTS, max_size=6).map(possible)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(before=TREES, after=TREES, kept=st.booleans(), renames=st.booleans())
def test_a_patch_by_git_gives_exactly_the_tree_it_was_made_from(
    before: Files, after: Files, kept: bool, renames: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("trees")
    after = possible({**before, **after}) if kept else after
    base = make_base(folder, before)
    patch = base.patch(after, folder, "-M" if renames else "--no-renames")
    if not patch:
        assert after == before
        return
    applied = base.start.apply(patch)
    assert applied.how == "git apply"
    assert base.after(applied.changes) == after
