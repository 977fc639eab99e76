"""Images by content: a task's tree and its base are baked in, so that starting a run copies nothing.

Layers, each named by what it is made from: the base image (or the task's Dockerfile) → the agent's installation → the
task's tree with our supervisor. Equal content has an equal name, so a second run finds everything built.
"""

import contextlib
import io
import json
import re
import tarfile
import tempfile
import threading
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import IO, Any

import docker
from docker.errors import APIError, ImageNotFound
from docker.utils.build import exclude_paths
from filelock import FileLock

from rollouts.backends.base import BOX_APP, BOX_HOME, BOX_TOOL_FILES, BOX_TOOLS, Image, LogSink, sandbox_file
from rollouts.backends.image_tree import BUILDING_LABEL, IMAGE_LABEL
from rollouts.digests import digest_of
from rollouts.errors import ImageFailed, JobCancelled, SandboxFailed
from rollouts.image_uses import ImageUses
from rollouts.logs import LogFile
from rollouts.store import shown_path

RECIPE = 2
"""Part of every name: raise it when the way images are built changes."""
DEFAULT_USER = "1000:1000"
CHOSEN_DOCKERFILE = ".rollouts.Dockerfile"
"""What a build reads, whatever else the context holds."""
BUILD_TAIL_LINES = 8
BUILDS_AT_ONCE = 2
_BUILDER_WORDS = ("Step", " --->", "Removing")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
Context = Callable[[], IO[bytes]]
"""Makes a build context; only called when something is built."""


class DockerImages:
    """Finds or builds the images of one engine."""

    def __init__(
        self,
        api: docker.APIClient,
        default_base: str,
        cache_dir: Path,
        cancelled: threading.Event,
        secrets: Callable[[], Iterable[str]] = tuple,
    ) -> None:
        self._api, self._default_base, self._cache, self._secrets = api, default_base, cache_dir, secrets
        self._cancelled = cancelled
        self._slots = threading.Semaphore(BUILDS_AT_ONCE)
        self._tags: dict[str, str] = {}
        self._uses = ImageUses(cache_dir)

    def close(self) -> None:
        """Nobody here needs an image any more."""
        self._uses.close()

    def tag(self, image: Image) -> str:
        """The name of an image that was built."""
        return self._tags[image.digest()]

    def has_base(self) -> bool:
        """Whether the default base image is there."""
        return self._identity(self._default_base) is not None

    def has(self, image: Image) -> bool:
        """Whether everything that `build` would make is there."""
        parent = image.base or self._default_base
        for make in (self._dockerfile_tag, self._install_tag, self._task_tag):
            identity = self._identity(parent)
            if identity is None:
                return False
            parent = make(image, identity) or parent
        return self._identity(parent) is not None

    def build(self, image: Image, sink: LogSink) -> None:
        """Make what is missing, layer by layer."""
        parent = image.base or self._default_base
        identity = self._identity(parent) or self._pull(parent, sink)
        tag = self._dockerfile_tag(image, identity)
        if tag and image.dockerfile:
            context = partial(_dockerfile_context, image)
            identity = self._build(tag, context, sink, str(image.dockerfile), {"BASE_IMAGE": parent})
            parent = tag
        tag = self._install_tag(image, identity)
        if tag and image.install:
            lines = f"FROM {parent}\nLABEL {BUILDING_LABEL}={tag}\nUSER root\n"
            lines += f"RUN {json.dumps(['sh', '-c', image.install])}\n"
            user = self._config(parent).get("User")
            lines += f"USER {user}\n" if user else ""
            context = partial(_context, {CHOSEN_DOCKERFILE: lines.encode()})
            identity = self._build(tag, context, sink, f"install of {image.install!r}")
            parent = tag
        tag = self._task_tag(image, identity)
        user = image.box_user or self._config(parent).get("User") or DEFAULT_USER
        self._build(tag, partial(_task_context, image, parent, user, tag), sink, f"task {image.task_id}")
        self._tags[image.digest()] = tag

    def _dockerfile_tag(self, image: Image, parent_id: str) -> str | None:
        return _tag("base", image.dockerfile_digest, parent_id) if image.dockerfile else None

    def _install_tag(self, image: Image, parent_id: str) -> str | None:
        return _tag("agent", image.install, parent_id) if image.install else None

    def _task_tag(self, image: Image, parent_id: str) -> str:
        scripts = [sandbox_file(name).read_text() for name in BOX_TOOL_FILES]
        return _tag("task", image.digest(parent_id, *scripts))

    def _identity(self, name: str) -> str | None:
        try:
            return str(self._inspect(name)["Id"])
        except ImageNotFound:
            return None
        except APIError as exc:
            kind = ImageFailed if exc.is_client_error() else SandboxFailed  # the engine may be well again soon
            raise kind(f"image {name}: {exc.explanation}") from exc

    def _config(self, name: str) -> dict[str, Any]:
        config: dict[str, Any] = self._inspect(name)["Config"] or {}
        return config

    def _inspect(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self._api.inspect_image(name)  # type: ignore[no-untyped-call] # docker's stubs lack it
        return found

    def _pull(self, name: str, sink: LogSink) -> str:
        sink(f"pulling {name}\n".encode())
        try:
            errors = [entry["error"] for entry in self._api.pull(name, stream=True, decode=True) if "error" in entry]
        except APIError as exc:
            kind = ImageFailed if exc.is_client_error() else SandboxFailed  # a registry may be out of reach for a while
            raise kind(_missing(name, exc.explanation or str(exc))) from exc
        if errors:
            raise SandboxFailed(_missing(name, errors[0]))
        return self._identity(name) or ""

    def _build(
        self, tag: str, context: Context, sink: LogSink, what: str, buildargs: dict[str, str] | None = None
    ) -> str:
        """One build even if several processes ask: the later ones find the image when they get the lock."""
        self._uses.add(tag)
        known = self._identity(tag)
        if known:
            return known
        name = tag.partition(":")[2]
        for folder in (self._cache / "locks", self._cache / "builds"):
            folder.mkdir(parents=True, exist_ok=True)
        with FileLock(self._cache / "locks" / name), self._slots:
            known = self._identity(tag)
            if known:
                return known
            kept = self._cache / "builds" / f"{name}.log"
            if self._cancelled.is_set():
                raise JobCancelled
            sink(f"building {tag} ({what})\n".encode())
            kept.unlink(missing_ok=True)
            with contextlib.closing(LogFile(kept, self._secrets())) as log, context() as tar:
                try:
                    entries = self._api.build(
                        fileobj=tar, custom_context=True, tag=tag, rm=True, forcerm=True, decode=True,
                        buildargs=buildargs, labels={IMAGE_LABEL: tag}, dockerfile=CHOSEN_DOCKERFILE,
                    )  # fmt: skip
                    failure = _follow(entries, sink, log)
                except APIError as exc:
                    failure = exc.explanation or str(exc)
            if failure is not None:
                raise ImageFailed(f"{what}: the image does not build: {failure}; all of it in {shown_path(kept)}")
            return self._identity(tag) or ""


def _tag(kind: str, *content: object) -> str:
    return f"rollouts/{kind}:{digest_of(RECIPE, *content)[:24]}"


def _missing(name: str, reason: str) -> str:
    advice = "give another with [docker] base_image, $ROLLOUTS_BASE_IMAGE or environment.image"
    return f"base image {name} is not on this engine and cannot be pulled ({' '.join(reason.split())[:200]}); {advice}"


def _follow(entries: Iterable[dict[str, Any]], sink: LogSink, log: LogSink) -> str | None:
    """Pass a build's words on; returns why it failed, if it did.

    Reads to the end behind an error too: a response that is not used up keeps its connection open.
    """
    tail: list[str] = []
    failure = None
    for entry in entries:
        text = entry.get("stream") or entry.get("status") or ""
        if text:
            log(text.encode())
            sink(text.encode())
            tail = [*tail, *text.splitlines()][-BUILD_TAIL_LINES:]
        if "error" in entry:
            log(entry["error"].encode())
            words = [line.strip() for line in tail if line.strip() and not line.startswith(_BUILDER_WORDS)]
            said = _COLOUR.sub("", " | ".join(words))[-300:]
            failure = failure or f"{' '.join(entry['error'].split())}; it said: {said}"
    return failure


def _dockerfile_context(image: Image) -> IO[bytes]:
    """The task's folder, without what agents must not see and what its .dockerignore names; and the Dockerfile."""
    assert image.dockerfile is not None
    assert image.dockerfile_context is not None
    folder = image.dockerfile_context
    ignored = folder / ".dockerignore"
    patterns = [line.strip() for line in ignored.read_text(errors="replace").splitlines()] if ignored.is_file() else []
    patterns = [line for line in patterns if line and not line.startswith("#")]
    out = tempfile.TemporaryFile()  # noqa: SIM115 - the caller closes it
    with tarfile.open(fileobj=out, mode="w") as archive:
        names = exclude_paths(str(folder), [*patterns, *image.dockerfile_hidden])  # last, so nothing brings them back
        for name in sorted(names - {".dockerignore"}):  # the engine would apply it again, to our Dockerfile too
            archive.add(folder / name, name, recursive=False)
        archive.add(image.dockerfile, CHOSEN_DOCKERFILE)
    out.seek(0)
    return out


def _task_context(image: Image, parent: str, user: str, tag: str) -> IO[bytes]:
    named = ":" not in user and not user.isdecimal()
    owner = f"{user}:0" if named else user  # for a bare name the engine wants a group of that name too
    lines = [
        f"FROM {parent}",
        f"LABEL {BUILDING_LABEL}={tag}",
        _copy("app", BOX_APP, owner),
        _copy("repo", image.workdir, owner),
        _copy("home", BOX_HOME, owner),
        _copy("tools", BOX_TOOLS, "0:0"),
        _copy("own", BOX_TOOLS, owner),
        f"USER {user}",
    ]
    files = {
        CHOSEN_DOCKERFILE: "\n".join(lines).encode(),
        "tools/instructions.md": image.instructions.encode(),
        **{f"tools/{name}": sandbox_file(name).read_bytes() for name in BOX_TOOL_FILES},
    }
    folders = {"repo": image.tree, "tools/base.git": image.base_git}
    if image.overlay:
        folders["app"] = image.overlay
    return _context(files, folders, empty=("app", "home", "tools", "own", "own/in", "own/out"))


def _copy(source: str, target: str, owner: str) -> str:
    """As a list, so that a space in a path is no end of it."""
    return f"COPY --chown={owner} {json.dumps([source, target])}"


def _context(files: dict[str, bytes], folders: dict[str, Path] | None = None, empty: tuple[str, ...] = ()) -> IO[bytes]:
    out = tempfile.TemporaryFile()  # noqa: SIM115 - the caller closes it
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name in empty:
            member = tarfile.TarInfo(name)
            member.type, member.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(member)
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content), 0o644
            archive.addfile(member, io.BytesIO(content))
        for name, folder in (folders or {}).items():
            archive.add(folder, name, filter=_plain)
    out.seek(0)
    return out


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Readable by any user in the box, and the same whoever made it."""
    member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member
