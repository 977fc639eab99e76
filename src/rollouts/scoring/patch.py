"""A patch applied to a task's recorded start, in git's index alone.

There is no work tree, so nothing in a patch can be followed, run or written anywhere: what comes back is a list of
files that are different, and their contents.
"""

import os
import re
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from rollouts.errors import SandboxFailed
from rollouts.owner import owned_folder
from rollouts.repositories import one_line, start_git

MAX_CONTENT_BYTES = 256 * 1024 * 1024
"""The most that the files a patch changes may have together; what a box hands out has the same limit."""
LINK = 0o120000
EXECUTABLE = 0o100755
PLAIN = 0o100644
_KINDS = (PLAIN, EXECUTABLE, LINK)
_HEADER = re.compile(rb"^(?:diff --git |--- )[^\n]*", re.MULTILINE)
_SETTINGS = ("-c", "apply.whitespace=nowarn", "-c", "core.quotePath=false")


class PatchRefused(Exception):
    """A patch that does not apply, in git's own words."""


@dataclass(frozen=True)
class Content:
    """A file as git knows it: its kind and its bytes; of a link, where it leads."""

    mode: int
    data: bytes


Changes = dict[str, Content | None]
"""By path: what is there afterwards; None where nothing is."""


@dataclass(frozen=True)
class Applied:
    """What a patch makes of the start."""

    changes: Changes
    how: str
    """Which way of applying it worked."""


class Start:
    """A task's recorded start. Read once; patches are applied to copies of its index."""

    def __init__(self, base_git: Path) -> None:
        self.base_git = base_git.resolve()
        with owned_folder("rollouts-start-") as place:
            (place / "objects").mkdir()
            _checked(self._git("read-tree", "HEAD", scratch=place))
            self._index = (place / "index").read_bytes()
            listed = _checked(self._git("ls-files", "-s", "-z", scratch=place))
        self._files = dict(_entries(listed))

    @property
    def paths(self) -> Iterable[str]:
        """Every file of the start."""
        return self._files.keys()

    def __contains__(self, path: str) -> bool:
        return path in self._files

    def read(self, *paths: str) -> dict[str, bytes]:
        """Contents of the start's files, of those that are there."""
        blobs = {path: self._files[path][1] for path in paths if path in self._files}
        return self._read(blobs, self.base_git)

    def apply(self, patch: bytes) -> Applied:
        """The patch's changes; raises PatchRefused when no way of applying it works."""
        refused = None
        with owned_folder("rollouts-patch-") as scratch:
            (scratch / "objects").mkdir()
            for how, text, options in _attempts(patch):
                (scratch / "index").write_bytes(self._index)
                done = self._git("apply", "--cached", "--binary", *options, scratch=scratch, data=text)
                if done.returncode == 0:
                    changes = self._changes(scratch, unpacks=b"GIT binary patch" in text)
                    return Applied(
                        self._with_own_line_ends(changes) if "--ignore-whitespace" in options else changes, how
                    )
                if refused is None:
                    refused = one_line(done.stderr.decode(errors="replace"))
        raise PatchRefused(refused or "git said nothing")

    def _git(self, *arguments: str, scratch: Path, data: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        environ = {
            "GIT_DIR": str(self.base_git),
            "GIT_INDEX_FILE": str(scratch / "index"),
            "GIT_OBJECT_DIRECTORY": str(scratch / "objects"),
            "GIT_ALTERNATE_OBJECT_DIRECTORIES": str(self.base_git / "objects"),
        }
        return start_git(*_SETTINGS, *arguments, cwd=scratch, data=data, environ=environ)

    def _changes(self, scratch: Path, *, unpacks: bool) -> Changes:
        raw = _checked(
            self._git("diff-index", "--cached", "--raw", "-z", "--no-renames", "--no-abbrev", "HEAD", scratch=scratch)
        )
        blobs: dict[str, tuple[int, str]] = {}
        changes: Changes = {}
        fields = iter(raw.split(b"\0"))
        for head in fields:
            if not head:
                break
            path = os.fsdecode(next(fields))
            _, mode, _, blob, _ = head.decode().split(" ")
            if int(mode, 8) in _KINDS:
                blobs[path] = (int(mode, 8), blob)
            changes[path] = None
        if unpacks:
            self._check_size([blob for _, blob in blobs.values()], scratch)
        contents = self._read({path: blob for path, (_, blob) in blobs.items()}, scratch)
        return {**changes, **{path: Content(blobs[path][0], data) for path, data in contents.items()}}

    def _check_size(self, blobs: list[str], scratch: Path) -> None:
        """A patch of a few megabytes may unpack to many gigabytes."""
        asked = "".join(f"{blob}\n" for blob in blobs).encode()
        sizes = _checked(self._git("cat-file", "--batch-check=%(objectsize)", scratch=scratch, data=asked)).split()
        if sum(map(int, sizes)) > MAX_CONTENT_BYTES:
            raise PatchRefused(f"the changed files have more than {MAX_CONTENT_BYTES:,} bytes together")

    def _read(self, blobs: Mapping[str, str], scratch: Path) -> dict[str, bytes]:
        if not blobs:
            return {}
        asked = "".join(f"{blob}\n" for blob in blobs.values()).encode()
        out = memoryview(_checked(self._git("cat-file", "--batch", scratch=scratch, data=asked)))
        contents, position = {}, 0
        for path in blobs:
            end = bytes(out[position : position + 200]).index(b"\n") + position
            size = int(bytes(out[position:end]).split()[2])
            contents[path] = bytes(out[end + 1 : end + 1 + size])
            position = end + 1 + size + 1
        return contents

    def _with_own_line_ends(self, changes: Changes) -> Changes:
        """A patch without carriage returns, applied to a file that has them everywhere, must not leave a mixture."""
        before = self.read(*changes)
        mended = dict(changes)
        for path, content in changes.items():
            if content is not None and _is_dos(before.get(path, b"")) and content.mode != LINK:
                data = content.data.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")
                mended[path] = Content(content.mode, data)
        return mended


def _attempts(patch: bytes) -> Iterator[tuple[str, bytes, tuple[str, ...]]]:
    """Ways to apply it, from the strictest: what differs in line ends alone is no reason to refuse a fix."""
    text, how = _completed(patch), "git apply"
    if text != patch:
        how = "with a final newline added"
    header = _HEADER.search(text)
    if header and header.group().endswith(b"\r"):  # then the whole text was converted, not only what it changes
        text, how = text.replace(b"\r\n", b"\n"), "without its carriage returns"
    yield how, text, ()
    yield f"{how}, --3way" if how != "git apply" else "git apply --3way", text, ("--3way",)
    yield "with its end mended", text.removesuffix(b"\n") + b"\n\n", ()  # who strips a patch takes a blank last line
    unix = text.replace(b"\r\n", b"\n")
    if unix != text:
        yield "without its carriage returns", unix, ()
    yield "whatever its line ends", text, ("--ignore-whitespace",)
    if unix != text:
        yield "whatever its line ends", unix, ("--ignore-whitespace",)


def _completed(patch: bytes) -> bytes:
    """With the final newline that copying may lose; a binary part has an empty line behind it, or git drops it."""
    ended = patch if patch.endswith(b"\n") else patch + b"\n"
    is_binary = b"\nGIT binary patch" in ended[ended.rfind(b"\ndiff --git ") :]
    return ended + b"\n" if is_binary and not ended.endswith(b"\n\n") else ended


def _is_dos(data: bytes) -> bool:
    return b"\r\n" in data and data.count(b"\n") == data.count(b"\r\n")


def _entries(listed: bytes) -> Iterator[tuple[str, tuple[int, str]]]:
    for line in listed.split(b"\0"):
        if line:
            head, _, path = line.partition(b"\t")
            mode, blob, _ = head.decode().split(" ")
            yield os.fsdecode(path), (int(mode, 8), blob)


def _checked(done: subprocess.CompletedProcess[bytes]) -> bytes:
    if done.returncode:
        raise SandboxFailed(
            f"git failed on the task's recorded start: {one_line(done.stderr.decode(errors='replace'))}"
        )
    return done.stdout
