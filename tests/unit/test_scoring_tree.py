"""The tree that is tested: what a patch may not change is as it was, hidden tests win, and a box gets exactly that."""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from _pytest.config.findpaths import get_common_ancestor, locate_config
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rollouts.backends.base import sandbox_file
from rollouts.scoring.bending import Flag
from rollouts.scoring.patch import LINK, Changes
from rollouts.scoring.tree import OWN_CONFIG, ScoredTree, expected_files, scored_tree
from rollouts.scoring.tree import test_files as hidden_files
from tests.samples import read_tree
from tests.scored import Base, Files, as_files, executable, link, make_base, plain, write_tree

HIDDEN = {"tests/test_hidden.py": "def test_hidden(): pass\n", "tests/data/x.bin": b"\0\1"}
START: Files = {
    "calc.py": plain("def add(a, b):\n    return a - b\n"),
    "pkg/mod.py": plain("x = 1\n"),
    "tests/test_shown.py": plain("def test_shown(): pass\n"),
    "tests/helper.py": plain("help\n"),
    "pkg/conftest.py": plain("ours\n"),
    "docs/a.md": plain("a\n"),
    "docs/deep/b.md": plain("b\n"),
    "spec/notes.txt": plain("spec\n"),
}


def made(folder: Path, files: Mapping[str, Any] = START, hidden: Any = None, **evaluation: Any) -> Base:
    return make_base(folder, files, files=HIDDEN if hidden is None else hidden, meta={"evaluation": evaluation})


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Base:
    protected = ["docs/deep", "data/", "*.lock", "exact.txt"]
    return made(tmp_path_factory.mktemp("tree"), protected_paths=protected)


def tree_of(base: Base, changes: Changes, *config_for: str) -> ScoredTree:
    return scored_tree(base.task, base.start, changes, config_for)


def result_of(base: Base, changes: Changes) -> Files:
    return base.after(tree_of(base, changes).changes)


def with_tests(base: Base, changes: Changes | None = None) -> Files:
    return base.after({**(changes or {}), **hidden_files(base.task)})


def flags_of(tree: ScoredTree) -> list[tuple[str, str, str]]:
    return [(flag.kind, flag.path, flag.action) for flag in tree.flags]


# --- what is put back ---------------------------------------------------------------------------------------------


def test_without_a_patch_only_the_hidden_tests_are_added(base: Base) -> None:
    tree = tree_of(base, {})
    assert tree.changes == hidden_files(base.task)
    assert tree.flags == ()
    assert tree.empty_folders == ()


def test_a_fix_stays(base: Base) -> None:
    fix: Changes = {
        "calc.py": plain("fixed\n"),
        "pkg/mod.py": None,
        "new/deep.py": executable("x\n"),
        "l": link("calc.py"),
    }
    assert result_of(base, fix) == with_tests(base, fix)
    assert tree_of(base, fix).flags == ()


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("docs/deep/b.md", "protected_path"),
        ("docs/deep/new.md", "protected_path"),
        ("docs/deep", "protected_path"),
        ("data/x", "protected_path"),
        ("data/deep/x", "protected_path"),
        ("poetry.lock", "protected_path"),
        ("sub/poetry.lock", "protected_path"),
        ("exact.txt", "protected_path"),
        ("tests/test_shown.py", "test_file"),
        ("tests/helper.py", "test_file"),
        ("tests/new.py", "test_file"),
        ("tests/test_hidden.py", "test_file"),
        ("pkg/conftest.py", "runner_config"),
        ("conftest.py", "runner_config"),
    ],
)
def test_what_a_patch_may_not_change_is_as_it_was(path: str, kind: str, base: Base) -> None:
    tree = tree_of(base, {path: plain("bent\n"), "calc.py": plain("fixed\n")})
    assert base.after(tree.changes) == with_tests(base, {"calc.py": plain("fixed\n")})
    action = "put back" if path in base.start or path in hidden_files(base.task) else "removed"
    assert flags_of(tree) == [(kind, path, action)]


@pytest.mark.parametrize(
    "path", ["docs/a.md", "docs/deeper.md", "exact.txt2", "database", "testsuite/x", "spec/notes.txt", "locks"]
)
def test_what_only_looks_protected_is_not(path: str, base: Base) -> None:
    assert tree_of(base, {path: plain("changed\n")}).changes[path] == plain("changed\n")


def test_deleted_tests_come_back(base: Base) -> None:
    tree = tree_of(base, {"tests/test_shown.py": None, "tests/helper.py": None, "docs/deep/b.md": None})
    assert base.after(tree.changes) == with_tests(base)
    assert tree.empty_folders == ()
    assert {flag.action for flag in tree.flags} == {"put back"}


@pytest.mark.parametrize(
    ("pattern", "path"),
    [("docs", "docs/a.md"), ("docs/", "docs/deep/b.md"), ("docs/*.md", "docs/a.md"), ("**/b.md", "docs/deep/b.md"),
     ("pkg/m?d.py", "pkg/mod.py"), ("*/deep", "docs/deep/b.md"), ("calc.py", "calc.py"), ("[c]alc.py", "calc.py")],
)  # fmt: skip
def test_a_path_is_protected_as_such_as_a_folder_or_by_a_glob(pattern: str, path: str, tmp_path: Path) -> None:
    base = made(tmp_path, protected_paths=[pattern])
    assert flags_of(tree_of(base, {path: None})) == [("protected_path", path, "put back")]


def test_files_that_expected_tests_name_are_protected_wherever_they_are(tmp_path: Path) -> None:
    lists: dict[str, Any] = {
        "fail_to_pass": ["pkg/mod.py::test_x", "no file", "pkg/mod.py::test_y"],
        "pass_to_pass": ["calc.py::z"],
    }
    base = made(tmp_path, hidden={}, **lists)
    assert expected_files(base.task) == ["pkg/mod.py", "calc.py"]
    tree = tree_of(base, {"calc.py": None, "pkg/mod.py": plain("bent\n"), "pkg/other.py": plain("x\n")})
    assert base.after(tree.changes) == base.after({"pkg/other.py": plain("x\n")})


@pytest.mark.parametrize("folder", ["tests", "pkg/test", "src/__tests__", "spec", "unit-tests"])
def test_the_whole_folder_of_tests_is_protected(folder: str, tmp_path: Path) -> None:
    script = {"path": f"{folder}/deep/run.sh", "rubric_id": "r", "content": "exit 0\n"}
    base = made(tmp_path, hidden={}, rubrics=[{"id": "r"}], test_scripts=[script])
    tree = tree_of(base, {f"{folder}/other.sh": plain("x\n"), f"{folder}x/y": plain("y\n")})
    assert base.after(tree.changes) == with_tests(base, {f"{folder}x/y": plain("y\n")})


# --- what stands in the way ---------------------------------------------------------------------------------------

IN_THE_WAY: dict[str, Changes] = {
    "a link over the tests": {"tests/test_shown.py": None, "tests/helper.py": None, "tests": link("elsewhere")},
    "a file over the tests": {"tests/test_shown.py": None, "tests/helper.py": None, "tests": plain("file\n")},
    "a folder where a test was": {"tests/helper.py": None, "tests/helper.py/x": plain("x\n")},
    "a folder where a hidden test will be": {"tests/test_hidden.py/deep/x": plain("x\n")},
    "a link over a protected folder": {"docs/a.md": None, "docs/deep/b.md": None, "docs": link("/etc")},
    "a file over a folder with a conftest": {"pkg/mod.py": None, "pkg/conftest.py": None, "pkg": plain("x\n")},
    "a folder where a conftest was": {"pkg/conftest.py": None, "pkg/conftest.py/x": plain("x\n")},
    "a link where a hidden folder will be": {"tests/data": link("/etc")},
}


@pytest.mark.parametrize("name", IN_THE_WAY)
def test_what_stands_in_the_way_of_what_was_put_back_goes(name: str, base: Base, tmp_path: Path) -> None:
    changes = IN_THE_WAY[name]
    tree = tree_of(base, changes)
    result = base.after(tree.changes)
    gone = {path for path in ("docs/a.md", "pkg/mod.py") if path in changes}
    assert result == {path: content for path, content in with_tests(base).items() if path not in gone}
    assert tree.flags
    assert boxed(base, tree, tmp_path) == result


def test_hidden_tests_win_over_the_start(tmp_path: Path) -> None:
    start = {"tests": plain("a file\n"), "check/a": plain("a\n"), "check/b/c": plain("c\n"), "lib": link("check")}
    script = [{"path": path, "rubric_id": "r", "content": "#!/bin/sh\n"} for path in ("check", "lib/run.sh")]
    base = made(tmp_path / "base", start, test_scripts=script, rubrics=[{"id": "r"}])
    tree = tree_of(base, {})
    assert base.after(tree.changes) == hidden_files(base.task)
    assert boxed(base, tree, tmp_path) == hidden_files(base.task)


def test_a_link_in_the_hidden_tests_is_a_link(tmp_path: Path) -> None:
    write_tree(tmp_path / "t/tests", {"real.py": plain("x\n"), "alias.py": link("real.py"), "run": executable("#!\n")})
    base = made(tmp_path, hidden={"tests/__pycache__/x.pyc": b"x"})
    assert hidden_files(base.task) == {
        "tests/alias.py": link("real.py"),
        "tests/real.py": plain("x\n"),
        "tests/run": executable("#!\n"),
    }


def test_a_script_is_executable_when_it_names_its_interpreter(tmp_path: Path) -> None:
    scripts = [
        {"path": "tests/a.sh", "rubric_id": "r", "content": "#!/bin/sh\n"},
        {"path": "tests/b.sh", "rubric_id": "r", "content": "exit 0\n"},
        {"path": "tests/test_hidden.py", "rubric_id": "r", "content": "new\n"},
    ]
    files = hidden_files(made(tmp_path, rubrics=[{"id": "r"}], test_scripts=scripts).task)
    assert files["tests/a.sh"] == executable("#!/bin/sh\n")
    assert files["tests/b.sh"] == plain("exit 0\n")
    assert files["tests/test_hidden.py"] == plain("new\n")


# --- flags --------------------------------------------------------------------------------------------------------


def test_flags_do_not_depend_on_the_order_of_the_patch(base: Base) -> None:
    changes: Changes = {
        "zz/conftest.py": plain("x"), "tests/new.py": plain("x"), "json.py": plain("import os\nos._exit(0)\n"),
        "out": link("../../etc"), "absolute": link("/etc/passwd"), "inside": link("pkg"),
        "bin/python": executable("#!"), "Makefile": plain("all:\n"), "bin/make": executable("#!"),
        "poetry.lock": plain("x"),
    }  # fmt: skip
    tree = tree_of(base, changes)
    again = tree_of(base, dict(reversed(changes.items())))
    assert tree.flags == again.flags == tuple(sorted(tree.flags, key=lambda flag: (flag.path, flag.kind)))
    assert list(tree.flags) == [
        Flag("link", "absolute", "kept", "leads to /etc/passwd"),
        Flag("path_shim", "bin/make", "kept", "make"),
        Flag("path_shim", "bin/python", "kept", "python"),
        Flag("shadowed_module", "json.py", "kept", "json"),
        Flag("suspicious_code", "json.py", "kept", "os._exit"),
        Flag("link", "out", "kept", "leads to ../../etc"),
        Flag("protected_path", "poetry.lock", "removed"),
        Flag("test_file", "tests/new.py", "removed"),
        Flag("runner_config", "zz/conftest.py", "removed"),
    ]


def test_a_makefile_is_told_of_when_the_tests_are_made(tmp_path: Path) -> None:
    base = made(tmp_path, command="make check")
    assert flags_of(tree_of(base, {"Makefile": plain("check:\n")})) == [("runner_config", "Makefile", "kept")]


# --- the box ------------------------------------------------------------------------------------------------------


def boxed(base: Base, tree: ScoredTree, folder: Path) -> Files:
    """What the box's own script makes of the start."""
    repo = write_tree(folder / "box/repo", base.files)
    return as_files(read_tree(score(base, tree, repo)))


def score(base: Base, tree: ScoredTree, repo: Path) -> Path:
    inputs = repo.parent / "in"
    inputs.mkdir()
    files = {"removals": tree.removals(), "folders": tree.folders(), "tree.tar": tree.archive()}
    for name, data in {**files, "0000-setup.sh": b"exit 0\n"}.items():
        (inputs / name).write_bytes(data)
    command = ["sh", str(sandbox_file("score.sh")), str(inputs), str(repo), str(repo)]
    done = subprocess.run(command, input=b"word\n", capture_output=True, timeout=60)
    assert b"\nword end tree 0\n" in done.stdout, done.stderr
    return repo


ODD_NAMES = (
    "with space", "quo'te", 'dou"ble', "new\nline", "é", "日本", "-rf", "--help", "$HOME", "`id`", "back\\slash", "*",
    "\udcff", "~", "{}", "tab\t", " ", "x" * 101, "y" * 200 + "/" + "z" * 200 + "/" + "w" * 120,
)  # fmt: skip


@pytest.mark.parametrize("name", ODD_NAMES, ids=range(len(ODD_NAMES)))
def test_a_box_takes_any_name(name: str, tmp_path: Path) -> None:
    start = {
        f"{name}/gone": plain("x\n"),
        f"kept{name}": plain("k\n"),
        f"{name}/deep/changed": plain("1\n"),
        "d/x": plain("x"),
    }
    base = made(tmp_path / "base", start)
    changes: Changes = {
        f"{name}/gone": None,
        f"{name}/d/changed": executable("2\n"),
        f"new/{name}": plain("new\n"),
        "d/x": None,
        f"d/{name}": link(os.fsdecode(b"../" + os.fsencode(name) * 2)),
        f"-{name}": plain(""),
    }
    tree = tree_of(base, changes)
    assert boxed(base, tree, tmp_path) == with_tests(base, changes)


def test_folders_in_which_nothing_is_left_go(tmp_path: Path) -> None:
    base = made(tmp_path / "base", START)
    tree = tree_of(
        base, {"docs/a.md": None, "docs/deep/b.md": None, "pkg/mod.py": None, "spec/notes.txt": None, "spec": plain("")}
    )
    assert tree.empty_folders == ("docs/deep", "docs", "spec")
    assert boxed(base, tree, tmp_path) == base.after(tree.changes)
    assert not (tmp_path / "box/repo/docs").exists()


def test_what_is_written_anew_is_removed_first(base: Base) -> None:
    """A tar may write through a link, or keep an old file's mode."""
    tree = tree_of(base, {"calc.py": link("pkg/mod.py"), "pkg/mod.py": None, "new": plain("x\n")})
    assert tree.removals().startswith(b"calc.py\0pkg/mod.py\0new\0")


def test_an_empty_folder_that_git_does_not_know_is_no_trouble(tmp_path: Path) -> None:
    base = made(tmp_path / "base", START)
    repo = write_tree(tmp_path / "box/repo", base.files)
    (repo / "docs/empty").mkdir()
    tree = tree_of(base, {"docs/a.md": None, "docs/deep/b.md": None})
    assert as_files(read_tree(score(base, tree, repo))) == base.after(tree.changes)
    assert not (repo / "docs/deep").exists()


def test_many_files_are_removed(tmp_path: Path) -> None:
    start = {f"{number:05}{'x' * 100}/{'y' * 100}": plain("x") for number in range(2000)}
    base = made(tmp_path / "base", start)
    tree = tree_of(base, dict.fromkeys(start))
    assert boxed(base, tree, tmp_path) == hidden_files(base.task)
    assert len(list((tmp_path / "box/repo").iterdir())) == 1


NAMES = st.sampled_from(["a", "b", "tests", "conftest.py", "x.py", "lib", "é"])
PATHS = st.lists(NAMES, min_size=1, max_size=3).map("/".join)
CONTENTS = st.one_of(
    st.builds(plain, st.text("xy\n", max_size=5)), st.builds(link, st.sampled_from(["a", "../b", "/etc"]))
)
TREES = st.dictionaries(PATHS, CONTENTS, max_size=7).map(
    lambda files: {path: files[path] for path in files if not any(path.startswith(f"{other}/") for other in files)}
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(before=TREES, after=TREES, hidden=TREES, protected=st.lists(PATHS, max_size=2))
def test_whatever_the_patch_the_tests_win_and_the_tree_can_be_made(
    before: Files, after: Files, hidden: Files, protected: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("any")
    write_tree(folder / "base/t/tests", {path: content for path, content in hidden.items() if content.mode != LINK})
    base = made(folder / "base", before, hidden={}, protected_paths=protected)
    changes: Changes = {path: after.get(path) for path in {**before, **after} if before.get(path) != after.get(path)}
    tree = tree_of(base, changes, "tests/x.py")
    result = base.after(tree.changes)
    assert not [path for path in result if any(str(parent) in result for parent in PurePosixPath(path).parents)]
    assert hidden_files(base.task).items() <= result.items()
    assert boxed(base, tree, folder) == result
    for path in {**before, **result}:
        if path.startswith("tests/") and hidden_files(base.task) and not path.startswith(f"tests/{OWN_CONFIG}"):
            assert result.get(path) in (before.get(path), hidden_files(base.task).get(path), None)


# --- settings of pytest -------------------------------------------------------------------------------------------

INI, CFG, TOML = (
    "[pytest]\naddopts = -q\n",
    "[tool:pytest]\naddopts = -q\n",
    "[tool.pytest.ini_options]\naddopts = '-q'\n",
)
LAYOUTS: dict[str, dict[str, str]] = {
    "pytest.ini": {"pytest.ini": INI, ".pytest.ini": INI, "pyproject.toml": TOML, "tox.ini": INI, "setup.cfg": CFG},
    "empty pytest.ini": {"pytest.ini": "", "pyproject.toml": TOML},
    ".pytest.ini": {".pytest.ini": INI, "pyproject.toml": TOML, "tox.ini": INI, "setup.cfg": CFG},
    "pyproject.toml": {"pyproject.toml": TOML, "tox.ini": INI, "setup.cfg": CFG},
    "tox.ini": {"pyproject.toml": "[tool.black]\n", "tox.ini": INI, "setup.cfg": CFG},
    "setup.cfg": {"pyproject.toml": "", "tox.ini": "[tox]\n", "setup.cfg": CFG},
    "sections of others": {"tox.ini": CFG, "setup.cfg": "[metadata]\nname = x\n", "pyproject.toml": "[tool.pytest]\n"},
    "tox.ini with the section of setup.cfg": {"tox.ini": CFG, "setup.cfg": CFG},
    "native TOML": {"pyproject.toml": "[tool.pytest]\naddopts = ['-q']\n", "tox.ini": INI},
    "pytest.toml": {"pytest.toml": "[pytest]\naddopts = ['-q']\n", "pytest.ini": INI},
    "nearest folder first": {"pytest.ini": INI, "tests/setup.cfg": CFG},
    "nearest folder without settings": {"pytest.ini": INI, "tests/setup.cfg": "[metadata]\n"},
    "deeper than all tests": {"tests/unit/pytest.ini": INI, "tox.ini": INI},
    "above the nearest": {"tests/pytest.ini": INI, "tests/unit/tox.ini": INI, "tox.ini": INI},
    "nothing": {"setup.py": ""},
}


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize(
    "files",
    [("tests/test_a.py",), ("tests/unit/test_b.py",), ("tests/test_a.py", "tests/unit/test_b.py"),
     ("tests/test_a.py", "x.py"), (".",)],
    ids=" ".join,
)  # fmt: skip
def test_settings_are_those_that_pytest_itself_would_choose(name: str, files: tuple[str, ...], tmp_path: Path) -> None:
    tests = {"tests/test_a.py": "", "tests/unit/test_b.py": "", "x.py": ""}
    start = {path: plain(text) for path, text in {**tests, **LAYOUTS[name]}.items()}
    base = made(tmp_path / "base", start, hidden={})
    repo = write_tree(tmp_path / "repo", start)
    ancestor = get_common_ancestor(tmp_path, [repo / path for path in files])
    _, chosen, values, _ = locate_config(tmp_path, [ancestor])
    tree = tree_of(base, {}, *files)
    if not values:
        assert tree.pytest_config is None or b"addopts" not in start[tree.pytest_config].data
        return
    assert chosen is not None
    place = chosen.relative_to(repo)
    assert tree.pytest_config == str(place)
    assert tree.pytest_config not in tree.changes
    if chosen.name not in ("pyproject.toml", "tox.ini", "setup.cfg"):
        return
    changed = tree_of(base, {str(place): plain(f"{chosen.read_text()}\n# more\n")}, *files)
    assert changed.pytest_config == str(place.parent / f"{OWN_CONFIG}{chosen.suffix}")
    assert changed.changes[changed.pytest_config] == plain(chosen.read_text())


def test_no_settings_are_made_without_pytest(base: Base) -> None:
    assert tree_of(base, {}).pytest_config is None


def test_hidden_settings_come_before_those_of_the_start(tmp_path: Path) -> None:
    start = {"tests/pytest.ini": plain("[pytest]\naddopts = -v\n")}
    tree = tree_of(made(tmp_path, start, hidden={"tests/pytest.ini": INI}), {}, "tests/test_a.py")
    assert tree.pytest_config == "tests/pytest.ini"
    assert tree.changes["tests/pytest.ini"] == plain(INI)


@pytest.mark.parametrize(
    "changes",
    [
        {f"a/{OWN_CONFIG}.ini": plain("[pytest]\naddopts = -p evil\n")},
        {f"{OWN_CONFIG}.ini": plain("[pytest]\naddopts = -p evil\n")},
        {f"{OWN_CONFIG}.ini": link("/etc/passwd")},
        {f"{OWN_CONFIG}.ini/x": plain("x")},
        {f"{OWN_CONFIG}": plain("x")},
        {"setup.cfg": plain("[tool:pytest]\naddopts = -p evil\n")},
        {"pyproject.toml": plain(TOML)},
        {"pytest.ini": plain("[pytest]\naddopts = -p evil\n")},
    ],
    ids=lambda changes: next(iter(changes)).encode("unicode_escape").decode(),
)
def test_a_patch_has_no_say_in_the_settings(changes: Changes, base: Base, tmp_path: Path) -> None:
    tree = tree_of(base, changes, "tests/test_shown.py")
    assert tree.pytest_config is None
    assert boxed(base, tree, tmp_path) == base.after(tree.changes)


@pytest.mark.parametrize(
    "changes",
    [
        {f"a/{OWN_CONFIG}.cfg": plain("[tool:pytest]\naddopts = -p evil\n")},
        {f"{OWN_CONFIG}.cfg": plain("[tool:pytest]\naddopts = -p evil\n")},
        {f"{OWN_CONFIG}.cfg": link("/etc/passwd")},
        {f"{OWN_CONFIG}.cfg/x": plain("x")},
        {},
    ],
    ids=lambda changes: next(iter(changes), "nothing"),
)
def test_a_copy_of_changed_settings_is_the_tasks_own(changes: Changes, tmp_path: Path) -> None:
    base = made(tmp_path / "base", {"setup.cfg": plain(CFG)})
    tree = tree_of(base, {**changes, "setup.cfg": plain("[tool:pytest]\naddopts = -p evil\n")}, "tests/test_a.py")
    assert tree.pytest_config == f"{OWN_CONFIG}.cfg"
    assert tree.changes[tree.pytest_config] == plain(CFG)
    assert boxed(base, tree, tmp_path) == base.after(tree.changes)


def test_broken_settings_are_passed_over(tmp_path: Path) -> None:
    start = {
        "pyproject.toml": plain("[tool.pytest.ini_options\n"),
        "tox.ini": plain("[pytest\n"),
        "setup.cfg": plain(CFG),
    }
    assert tree_of(made(tmp_path, start), {}, "tests/test_a.py").pytest_config == "setup.cfg"
