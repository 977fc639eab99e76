"""The tree that is tested: the start, the patch's changes, what had to be put back, and the hidden tests.

All of it is decided here, from names and contents, before a box exists. What goes into the box is a list of files to
remove and an archive of files to write; so the same patch gives the same tree on every backend.
"""

import io
import re
import stat
import tarfile
import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import PurePosixPath

from rollouts.scoring.bending import (
    TEST_FOLDERS,
    Flag,
    always_undone,
    has_pytest_settings,
    looks_like_test,
    names_tests,
    settings_changed,
    with_settings_of,
    worth_telling,
)
from rollouts.scoring.patch import EXECUTABLE, LINK, PLAIN, Changes, Content, Start
from rollouts.tasks import Task

PYTEST_CONFIGS = ("pytest.toml", ".pytest.toml", "pytest.ini", ".pytest.ini", "pyproject.toml", "tox.ini", "setup.cfg")
"""Where pytest looks for its settings, in its order."""
OWN_CONFIG = ".rollouts-pytest"


@dataclass(frozen=True)
class ScoredTree:
    """What to do to the start so that it becomes the tree that is tested."""

    changes: Changes
    flags: tuple[Flag, ...]
    empty_folders: tuple[str, ...]
    """Folders of the start in which git knows of nothing any more, the deepest first."""
    pytest_config: str | None = None
    """Where the settings are that pytest must use; None: the task has none."""

    def removals(self) -> bytes:
        """Everything that goes or is written anew, for `xargs -0 rm`; the box may have more there than git knows."""
        return b"".join(path.encode(errors="surrogateescape") + b"\0" for path in self.changes)

    def folders(self) -> bytes:
        """For `xargs -0 rmdir`."""
        return b"".join(path.encode(errors="surrogateescape") + b"\0" for path in self.empty_folders)

    def archive(self) -> bytes:
        """The files to write. Old GNU format, which every tar reads."""
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT, errors="surrogateescape") as archive:
            for path, content in sorted(self.changes.items()):
                if content is None:
                    continue
                member = tarfile.TarInfo(path)
                member.mtime = int(time.time())
                member.mode = 0o755 if content.mode == EXECUTABLE else 0o644
                if content.mode == LINK:
                    member.type = tarfile.SYMTYPE
                    member.linkname = content.data.decode(errors="surrogateescape")
                    archive.addfile(member)
                else:
                    member.size = len(content.data)
                    archive.addfile(member, io.BytesIO(content.data))
        return out.getvalue()


def test_files(task: Task) -> dict[str, Content]:
    """The task's own tests, by their place in the repository: hidden ones from `tests/`, then the rubrics' scripts."""
    files: dict[str, Content] = {}
    folder = task.part("tests")
    for path in sorted(folder.rglob("*")) if folder else ():
        name = f"tests/{path.relative_to(folder).as_posix()}" if folder else ""
        if path.is_symlink():
            files[name] = Content(LINK, str(path.readlink()).encode(errors="surrogateescape"))
        elif path.is_file() and "__pycache__" not in path.parts:
            mode = EXECUTABLE if path.stat().st_mode & stat.S_IXUSR else PLAIN
            files[name] = Content(mode, path.read_bytes())
    for script in task.evaluation.test_scripts:
        known = files.get(script.path)
        mode = known.mode if known and known.mode == EXECUTABLE else PLAIN
        mode = EXECUTABLE if script.content.startswith("#!") else mode
        files[script.path] = Content(mode, script.content.encode())
    return files


def expected_files(task: Task) -> list[str]:
    """The files that the expected test ids name, as far as they name one."""
    return list(dict.fromkeys(_file_of(test_id) for test_id in task.evaluation.expected_ids if "::" in test_id))


def _file_of(test_id: str) -> str:
    return test_id.partition("::")[0]


def _named_files(task: Task) -> set[str]:
    """The same without those whose tests stand in the texts of the product itself."""
    ids = task.evaluation.expected_ids
    return {_file_of(test_id) for test_id in ids if "::" in test_id and not _is_doctest(test_id)}


def _is_doctest(test_id: str) -> bool:
    """Whether pytest found a test in the text of a module: `calc.py::calc.add`."""
    path, _, name = test_id.partition("::")
    stem = PurePosixPath(path).stem
    return not looks_like_test(path) and (name == stem or name.startswith(f"{stem}.") or f".{stem}." in name)


def scored_tree(
    task: Task, start: Start, changes: Changes, config_for: Iterable[str] = (), solved_by: Collection[str] = ()
) -> ScoredTree:
    """Put back what bends the verdict, add the hidden tests.

    `config_for`: files that our own pytest will be given. `solved_by`: what the task's solution changes; a fix may too.
    """
    tests, own_pytest = test_files(task), list(config_for)
    protection = _Protection(task, start, tests, solved_by)
    before = start.read(*changes)
    kept: Changes = {}
    flags: list[Flag] = []
    for path, content in changes.items():
        kind = protection.kind(path)
        if kind is not None:
            flags.append(Flag(kind, path, "put back" if path in start or path in tests else "removed"))
            continue
        if content is not None and not own_pytest and (flag := _used_settings(path, content, before.get(path))):
            flags.append(flag)
            mended = with_settings_of(path, before.get(path), content.data)
            if mended is None:
                continue
            content = Content(content.mode, mended)
        kept[path] = content
        if content is not None:
            flags += _told(path, content, before.get(path), task)
    _settle(start, kept, flags)
    config, settings = _own_config(start, tests, kept, own_pytest)
    folders = {str(parent) for path in (*start.paths, *kept) for parent in PurePosixPath(path).parents}
    for path, content in (*tests.items(), *config.items()):
        _make_room(start, kept, folders, path)
        kept[path] = content
    return ScoredTree(
        _real(start, kept),
        tuple(sorted(flags, key=lambda flag: (flag.path, flag.kind))),
        _empty(start, kept),
        settings,
    )


class _Protection:
    """What a patch may not change."""

    def __init__(self, task: Task, start: Start, hidden: Iterable[str], solved_by: Collection[str]) -> None:
        self._start, self._top, self._solved_by = start, _top(task), solved_by
        self._patterns = task.evaluation.protected_paths
        self._hidden = set(hidden)
        self._by_command = task.evaluation.command is not None
        self._named = {path for path in (*_named_files(task), *_files_of_modules(task)) if path not in self._hidden}
        tests = {*self._hidden, *self._named}
        self._folders = {folder for path in tests if (folder := self._test_folder(path))}
        if self._by_command:  # then the tests may be the repository's own
            self._folders |= {f"{self._top}{name}" for name in TEST_FOLDERS}

    def kind(self, path: str) -> str | None:
        """Why a change of that path is undone; None when it stays."""
        if any(_matches(path, pattern) for pattern in self._patterns):
            return "protected_path"
        if path in self._hidden or self._is_test(path):
            return "test_file"
        return always_undone(path.removeprefix(self._top), path not in self._start)

    def _is_test(self, path: str) -> bool:
        """By its name or its place; but a product may lie in a folder `spec`, and the solution tells."""
        named = looks_like_test(path)
        lies_there = any(path == folder or path.startswith(f"{folder}/") for folder in self._folders)
        if path in self._solved_by and not (named and lies_there):
            return False
        return path in self._named or lies_there or (named and self._by_command and path in self._start)

    def _test_folder(self, path: str) -> str | None:
        """The deepest folder of tests that a test lies in; tests beside the code they test have none."""
        top = self._top if path.startswith(self._top) else ""
        folders = PurePosixPath(path.removeprefix(top)).parents
        return next((f"{top}{folder}" for folder in folders if names_tests(folder.name)), None)


def _files_of_modules(task: Task) -> set[str]:
    """Files behind ids like `tests.test_a.TestB::test_c`, as JUnit XML has them, that look like tests."""
    ids = task.evaluation.expected_ids
    names = {_file_of(test_id).replace(".", "/") for test_id in ids if "/" not in test_id and "." in test_id}
    files = {f"{name}.py" for each in names for name in (each, each.rpartition("/")[0]) if name}
    return {path for path in files if looks_like_test(path)}


def _top(task: Task) -> str:
    """Where tests are run, and so where imports begin."""
    return f"{task.repo.subdir}/" if task.repo.subdir else ""


def _matches(path: str, pattern: str) -> bool:
    """As a path, as a folder (with or without its final slash), or as a glob."""
    bare = pattern.rstrip("/")
    return path == bare or path.startswith(f"{bare}/") or fnmatchcase(path, bare) or fnmatchcase(path, f"{bare}/*")


def _used_settings(path: str, content: Content, before: bytes | None) -> Flag | None:
    """Settings of a runner that the task's own command starts, and that reads them."""
    if not settings_changed(path, before, None if content.mode == LINK else content.data):
        return None
    return Flag("runner_config", path, "put back" if before is not None else "removed", "settings of the test runner")


def _told(path: str, content: Content, before: bytes | None, task: Task) -> Iterator[Flag]:
    if content.mode == LINK:
        target = content.data.decode(errors="replace")
        if target.startswith("/") or ".." in PurePosixPath(target).parts:
            yield Flag("link", path, "kept", f"leads to {target}")
        return
    inner, command = path.removeprefix(_top(task)), task.evaluation.command or ""
    if inner in re.split(r"[\s;&|()<>=\"']+(?:\./)?|^\./", command):
        yield Flag("test_command", path, "kept", "the command that runs the tests names it")
    for kind, detail in worth_telling(inner, content.mode == EXECUTABLE, before, content.data, command):
        yield Flag(kind, path, "kept", detail)


def _settle(start: Start, kept: Changes, flags: list[Flag]) -> None:
    """What was put back may stand where the patch has a file, a link or a folder now: the patch's goes."""
    final = _final(start, kept)
    folders = {str(parent) for path in final for parent in PurePosixPath(path).parents}
    for path, content in list(kept.items()):
        if content is None or path in start:
            continue
        below = any(str(parent) in final for parent in PurePosixPath(path).parents)
        if below or path in folders:
            del kept[path]
            flags.append(Flag("test_file", path, "removed", "stood in the way of what was put back"))


def _make_room(start: Start, kept: Changes, folders: set[str], path: str) -> None:
    """Neither a file above `path` nor anything below it. `folders`: all there are; most paths need no search."""
    for parent in map(str, PurePosixPath(path).parents):
        folders.add(parent)
        if parent in start or kept.get(parent) is not None:
            kept[parent] = None
    below = f"{path}/"
    for other in [name for name in (*start.paths, *kept) if name.startswith(below)] if path in folders else ():
        kept[other] = None


def _own_config(
    start: Start, tests: dict[str, Content], kept: Changes, wanted: Iterable[str]
) -> tuple[dict[str, Content], str | None]:
    """The task's own settings of pytest, and their path. Where a patch changed that file, a copy beside it is made."""
    above = [set(PurePosixPath(path).parents) or {PurePosixPath()} for path in wanted]
    if not above:
        return {}, None
    shared = set.intersection(*above)
    for folder in sorted(shared, key=lambda parent: len(parent.parts), reverse=True):
        for name in PYTEST_CONFIGS:
            place = str(folder / name)
            data = tests[place].data if place in tests else start.read(place).get(place)
            if data is not None and has_pytest_settings(name, data):
                if place not in kept:
                    return {}, place
                suffix = PurePosixPath(f"x{name}" if name.startswith(".") else name).suffix
                copy = str(folder / f"{OWN_CONFIG}{suffix}")
                return {copy: Content(PLAIN, data)}, copy
    return {}, None


def _final(start: Start, kept: Changes) -> set[str]:
    """Every file that there will be."""
    return ({*start.paths} | {*kept}) - {path for path, content in kept.items() if content is None}


def _real(start: Start, kept: Changes) -> Changes:
    """Without removals of what was never there."""
    return {path: content for path, content in kept.items() if content is not None or path in start}


def _empty(start: Start, kept: Changes) -> tuple[str, ...]:
    gone = [path for path, content in kept.items() if content is None and path in start]
    if not gone:
        return ()
    folders = {parent for path in _final(start, kept) for parent in PurePosixPath(path).parents}
    empty = {parent for path in gone for parent in PurePosixPath(path).parents} - folders - {PurePosixPath(".")}
    return tuple(map(str, sorted(empty, key=lambda folder: (-len(folder.parts), folder))))
