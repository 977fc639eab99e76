"""Takes a folder out of a tar stream that came from a box, and so may have been made to hurt.

Regular files, folders and links are made below the target and nowhere else: names that climb, absolute names and paths
through links are left out, links are made but never followed, hard links only to files that the same archive brought;
everything else is skipped. What was skipped is returned.
"""

import contextlib
import errno
import os
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import BinaryIO, cast

MAX_MEMBERS = 500_000
MAX_BYTES = 4 * 1024**3
LARGE_BYTES = 50 * 1024**2
"""A file above this is left out of patches anyway (see capture.sh): an empty one of a size above stands for it."""
MAX_STREAM_BYTES = 16 * 1024**3
"""What is read in all, large files included."""
MAX_HEADER_BYTES = 1024 * 1024
"""Of a member's long name or extended attributes: `tarfile` reads all of them into memory."""
MAX_TOLD = 1000
"""So many of the members that were left out are named."""
_HEADERS = (
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
)
_IMPOSSIBLE = (errno.EEXIST, errno.EISDIR, errno.ENOTDIR, errno.ENAMETOOLONG)


class _Chunks:
    """The reading end that `tarfile` wants, over an iterator of bytes."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks: Iterator[bytes] = iter(chunks)
        self._rest = b""

    def read(self, size: int) -> bytes:
        parts, have = [self._rest], len(self._rest)
        while have < size:
            chunk = next(self._chunks, b"")
            if not chunk:
                break
            parts.append(chunk)
            have += len(chunk)
        data = b"".join(parts)
        self._rest = data[size:]
        return data[:size]


class _Member(tarfile.TarInfo):
    """A member whose headers are no larger than headers are."""

    def _proc_member(self, archive: tarfile.TarFile) -> tarfile.TarInfo:
        """Looks at what `tarfile` is about to read; the one place where its size is known before that."""
        if self.size < 0 or (self.type in _HEADERS and self.size > MAX_HEADER_BYTES):
            raise tarfile.ReadError(f"a header of {self.size:,} bytes")
        member: tarfile.TarInfo = super()._proc_member(archive)  # type: ignore[misc] # typeshed does not tell of it
        return member


def unpack(chunks: Iterable[bytes], target: Path) -> list[str]:
    """Make what the stream holds below `target`, without its first folder; returns what was left out.

    Raises `tarfile.TarError` or OSError when the stream is no archive or goes over the limits.
    """
    target.mkdir(parents=True)
    stream = cast(BinaryIO, _Chunks(chunks))
    try:
        with tarfile.open(fileobj=stream, mode="r|", errorlevel=2, tarinfo=_Member) as archive:
            return _unpack(archive, target)
    except (ValueError, ArithmeticError, LookupError, RecursionError) as exc:  # what `tarfile` makes of broken headers
        raise tarfile.ReadError(f"a broken header: {type(exc).__name__}") from exc


def _unpack(archive: tarfile.TarFile, target: Path) -> list[str]:
    skipped: list[str] = []
    total = kept = count = 0
    while (member := archive.next()) is not None:
        archive.members.clear()  # type: ignore[attr-defined] # not in typeshed; it would keep them all
        count, total = count + 1, total + max(0, member.size)
        kept += member.size if 0 < member.size <= LARGE_BYTES else 0
        if count > MAX_MEMBERS or kept > MAX_BYTES or total > MAX_STREAM_BYTES:
            raise tarfile.ReadError(f"more than {MAX_MEMBERS:,} members or {MAX_BYTES:,} bytes")
        if not _made(archive, member, target) and len(skipped) < MAX_TOLD:
            skipped.append(member.name)
    return skipped


def _made(archive: tarfile.TarFile, member: tarfile.TarInfo, target: Path) -> bool:
    """Whether the member could be made. One that cannot exist where it wants to is left out; a full disk is raised."""
    try:
        place = _place(target, member.name)
        return place is not None and _make(archive, member, place, target)
    except OSError as exc:
        if exc.errno not in _IMPOSSIBLE:
            raise
        return False


def _place(target: Path, name: str) -> Path | None:
    """Where a member goes, or None when it must not go anywhere."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\0" in name:
        return None
    place = target
    for part in path.parts[1:-1]:
        place = place / part
        if place.is_symlink() or not place.is_dir():
            return None
    return target.joinpath(*path.parts[1:])


def _make(archive: tarfile.TarFile, member: tarfile.TarInfo, place: Path, target: Path) -> bool:
    if member.isdir():
        if not place.is_symlink():
            place.mkdir(exist_ok=True)
            return True
        return False
    original = _place(target, member.linkname) if member.islnk() else None
    if place == target or original == place:
        return False
    with contextlib.suppress(IsADirectoryError, PermissionError, FileNotFoundError):
        place.unlink()
    if member.issym():
        place.symlink_to(member.linkname)
        return True
    if original is not None and not original.is_symlink() and original.is_file():
        place.hardlink_to(original)
        return True
    content = archive.extractfile(member) if member.isreg() else None
    if content is None:
        return False
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    with os.fdopen(os.open(place, flags, 0o700 if member.mode & 0o100 else 0o600), "wb") as out:
        if member.size > LARGE_BYTES:
            out.truncate(LARGE_BYTES + 1)
            return True
        while chunk := content.read(1024 * 1024):
            out.write(chunk)
    return True
