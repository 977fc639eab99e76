"""Names for content: equal digests mean equal files, so whatever was made from them need not be made again."""

import hashlib
import json
import os
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any


def digest_of(*parts: object) -> str:
    """Name a few plain values."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()


def digest_folder(folder: Path | None, leave_out: Collection[str] = ()) -> str:
    """Name all files below a folder: their paths, contents, executable bits and link targets.

    `.git` does not count, nor do the names of `leave_out` at the folder's top.
    """
    return "" if folder is None else digest_of(digest_parts(folder, leave_out))


def digest_parts(folder: Path, leave_out: Collection[str] = ()) -> dict[str, str]:
    """The same for each file at the folder's top and each file or folder one level below: what changed can be told."""
    parts: dict[str, Any] = {}
    for path in sorted(_files(folder, leave_out)):
        if path.is_symlink():
            kind, content = "link", os.fsencode(path.readlink())
        elif path.is_file():
            kind, content = ("x" if path.stat().st_mode & 0o100 else "f"), path.read_bytes()
        else:
            kind, content = "special", b""
        name = path.relative_to(folder)
        digest = parts.setdefault("/".join(name.parts[:2]), hashlib.sha256())
        head = f"{name}\0{kind}\0{len(content)}\0"
        digest.update(head.encode("utf-8", "surrogateescape") + content)
    return {name: digest.hexdigest() for name, digest in parts.items()}


def _files(folder: Path, leave_out: Collection[str]) -> Iterator[Path]:
    for root, folders, names in os.walk(folder):
        unwanted = {".git", *(leave_out if root == str(folder) else ())}
        folders[:] = [name for name in folders if name not in unwanted]
        yield from (Path(root) / name for name in names if name not in unwanted)
        yield from (Path(root) / name for name in folders if (Path(root) / name).is_symlink())
