"""Runs the real command line in forked children that kill themselves at their n-th write; and says what was written.

A write point is any change that the process is about to make below its project's folder: creating, truncating, writing,
renaming and removing files and folders. Killed just before one is killed just after the one before. A write to a
journal counts a second time, half done. The product knows nothing of this: audit events and a few wrapped functions of
the child tell. An fsync changes nothing that a killed process leaves behind, so it is recorded and no point to die at.

The children come from a process of their own that has the product imported and no threads: forking a test process is
neither cheap nor safe.
"""

import builtins
import contextlib
import ctypes
import gc
import io
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, NoReturn

CHECKOUT = Path(__file__).resolve().parents[1]
PATIENCE_S = 120.0
_WRITES = os.O_WRONLY | os.O_RDWR
_SUBREAPER = 36
"""PR_SET_CHILD_SUBREAPER: what a killed child started becomes ours, so its end can be waited for."""


@dataclass(frozen=True)
class Step:
    """One thing that the command did, or was about to do when it was killed."""

    what: str
    """open, write, half (a write's second point), sync, mkdir, rename, remove, rmdir, truncate, link, say, free."""
    path: str
    """Relative to the project's folder; absolute outside; the text for `say`."""
    point: int | None = None
    """Its number; None for what is no point to die at."""
    more: str = ""
    """Where a rename comes from; what is written to a journal."""


@dataclass(frozen=True)
class Tried:
    """What became of a command."""

    code: int
    """Below zero: the signal that ended it."""
    out: str
    err: str
    steps: tuple[Step, ...]

    @property
    def was_killed(self) -> bool:
        """At the point where it was meant to."""
        return self.code == -signal.SIGKILL

    @property
    def points(self) -> int:
        """How many it passed."""
        return max((step.point for step in self.steps if step.point is not None), default=0)

    def json(self) -> Any:
        """The document on stdout."""
        return json.loads(self.out)

    def __str__(self) -> str:
        last = "".join(f"\n    {step.what} {step.path}" for step in self.steps[-3:])
        return f"exit code {self.code} after point {self.points}; out={self.out!r} err={self.err!r}; last steps:{last}"


class Commands:
    """Starts commands, each in a process forked from one that has everything imported.

    Their boxes lie in a folder of their own, so that no other command on this machine removes what these leave.
    """

    def __enter__(self) -> "Commands":
        self._temporary = tempfile.TemporaryDirectory(prefix="rollouts-killed-")
        Path(self._temporary.name).chmod(0o711)  # boxes may belong to other users
        environ = {name: value for name, value in os.environ.items() if not name.startswith(("ROLLOUTS_", "SANDBOX_"))}
        self._server = subprocess.Popen(
            [sys.executable, "-m", "tests.kill_points"],
            cwd=CHECKOUT,
            env={**environ, "TERM": "dumb", "TMPDIR": self._temporary.name},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.close()
        self._server.wait(PATIENCE_S)
        self._server.stdout.close()
        self._temporary.cleanup()

    def boxes(self) -> list[str]:
        """Folders of boxes that are there now."""
        return sorted(path.name for path in Path(self._temporary.name).glob("rollouts-*/*"))

    def __call__(self, folder: Path, *arguments: str, kill_at: int | str | None = None) -> Tried:
        """Run a command in a project's folder; with `kill_at`, kill it there: at the n-th point, or by name.

        A name is a pattern for `WHAT PATH`, like `rename .*/result.json`; the first that matches counts.
        """
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        asked = {"folder": str(folder.resolve()), "arguments": arguments, "kill_at": kill_at}
        self._server.stdin.write(json.dumps(asked) + "\n")
        self._server.stdin.flush()
        told = json.loads(self._server.stdout.readline())
        steps = tuple(Step(*step) for step in told.pop("steps"))
        return Tried(**told, steps=steps)


# --- the process that forks ---------------------------------------------------------------------------------------


def serve() -> None:
    """Answer requests, a line each, until there are no more."""
    _import_everything()
    assert threading.active_count() == 1, threading.enumerate()
    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
    gc.freeze()  # what is here already need not be looked at, and so not copied, in any child
    for line in sys.stdin:
        print(json.dumps(_try(**json.loads(line))), flush=True)


def _import_everything() -> None:
    import rollouts.batch
    import rollouts.cli
    import rollouts.console
    import rollouts.doctor
    import rollouts.evaluation
    import rollouts.tables  # noqa: F401 - imported once, for all children


def _try(folder: str, arguments: list[str], kill_at: int | str | None) -> Mapping[str, Any]:
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, tempfile.TemporaryFile() as steps:
        pid = os.fork()
        if not pid:
            _child(folder, arguments, kill_at, out, err, steps)
        _, status = os.waitpid(pid, 0)
        _wait_for_orphans()
        return {
            "code": os.waitstatus_to_exitcode(status),
            "out": _text(out),
            "err": _text(err),
            "steps": [json.loads(step) for step in _text(steps).splitlines()],
        }


def _wait_for_orphans() -> None:
    """What a killed command had started, like git, may still write: the next command must not meet it.

    Boxes are left alone: they live in a folder of their own, and the next command ends them.
    """
    deadline = time.monotonic() + PATIENCE_S
    with contextlib.suppress(ChildProcessError):
        while time.monotonic() < deadline:
            if os.waitpid(-1, os.WNOHANG) == (0, 0):
                if all(_is_boxed(pid) for pid in _children()):
                    return
                time.sleep(0.002)


def _children() -> list[str]:
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()


def _is_boxed(pid: str) -> bool:
    with contextlib.suppress(OSError):
        return b"ROLLOUTS_JOB=" in Path(f"/proc/{pid}/environ").read_bytes()
    return False


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


def _child(
    folder: str, arguments: list[str], kill_at: int | str | None, out: IO[bytes], err: IO[bytes], steps: IO[bytes]
) -> NoReturn:
    code = 70
    try:
        os.chdir(folder)
        for number, file in ((1, out), (2, err)):
            os.dup2(file.fileno(), number)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        watch = Watch(Path(folder), kill_at, steps.fileno())
        sys.stdin, sys.stdout, sys.stderr = open(0), watch.speaking(1), watch.speaking(2)  # noqa: SIM115 - open until the end
        sys.argv = ["rollouts", *arguments]
        watch.begin()
        from rollouts.cli import main

        main()
    except SystemExit as exc:
        code = exc.code if isinstance(exc.code, int) else 0
    except BaseException:  # noqa: BLE001 - nothing may get back into the server's loop
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


# --- what the child watches ---------------------------------------------------------------------------------------


class Watch:
    """Sees every change that this process is about to make below its project, and kills it at the chosen one."""

    def __init__(self, root: Path, kill_at: int | str | None, steps: int) -> None:
        self._root, self._kill_at, self._steps = f"{root}/", kill_at, steps
        self._boxes = f"{tempfile.gettempdir()}/rollouts-{os.getuid()}/"
        self._lock = threading.RLock()
        self._count = 0
        self._write = os.write

    def begin(self) -> None:
        """From here to the end of the process."""
        os.write = self._wrapped(os.write)
        os.sendfile = self._wrapped(os.sendfile)
        for name in ("fsync", "fdatasync"):
            setattr(os, name, self._synced(getattr(os, name)))
        builtins.open = io.open = self._open(io.open)
        sys.addaudithook(self._audit)

    def point(self, what: str, path: str, more: str = "") -> bool:
        """A change is about to happen; does not return when this is where to die. False: not below the project."""
        if not path.startswith(self._root):
            return False
        with self._lock:
            self._count += 1
            self.note(what, path, self._count, more)
            if self._is_last(f"{what} {path}"):
                os.kill(os.getpid(), signal.SIGKILL)
                signal.pause()
        return True

    def _is_last(self, named: str) -> bool:
        if isinstance(self._kill_at, str):
            return re.fullmatch(self._kill_at, named) is not None
        return self._count == self._kill_at

    def note(self, what: str, path: str, point: int | None = None, more: str = "") -> None:
        """Put it on record."""
        shown = "." if path + "/" == self._root else path.removeprefix(self._root)
        line = json.dumps([what, shown, point, more.removeprefix(self._root)]) + "\n"
        with self._lock:
            self._write(self._steps, line.encode())

    def half(self, write: Any, data: Any, path: str) -> None:
        """The second point of a write to a journal: half of the bytes are there. Nobody reads other files half done."""
        if not path.endswith("/events.jsonl"):
            return
        with self._lock:
            if self._count + 1 == self._kill_at:
                write(bytes(data)[: len(bytes(data)) // 2])
            self.point("half", path)

    def speaking(self, number: int) -> io.TextIOWrapper:
        """Standard output or error, each line of which is put on record."""
        return io.TextIOWrapper(io.BufferedWriter(_Speaking(number, self)), line_buffering=True)

    def _wrapped(self, function: Any) -> Any:
        def watched(descriptor: int, *rest: Any) -> Any:
            path = _name_of(descriptor)
            journalled = bytes(rest[0]).decode() if path.endswith("/events.jsonl") else ""
            if self.point("write", path, journalled) and function is self._write:
                self.half(lambda part: function(descriptor, part), rest[0], path)
            return function(descriptor, *rest)

        return watched

    def _synced(self, function: Any) -> Any:
        def watched(descriptor: Any) -> None:
            number = descriptor if isinstance(descriptor, int) else descriptor.fileno()
            function(number)
            self.note("sync", _name_of(number))

        return watched

    def _open(self, function: Any) -> Any:
        """Buffered files write below Python's sight, so theirs are given something to write to that tells."""

        def watched(file: Any, mode: str = "r", buffering: int = -1, *rest: Any, **options: Any) -> Any:
            below = not isinstance(file, int) and _absolute(file).startswith(self._root)
            if not below or not set(mode) & set("wax+") or buffering == 0:
                return function(file, mode, buffering, *rest, **options)
            raw = _Watched(file, mode.replace("b", "").replace("t", ""), self)
            whole = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
            return whole if "b" in mode else io.TextIOWrapper(whole, *rest, **options)

        return watched

    def _audit(self, event: str, given: tuple[Any, ...]) -> None:
        if event == "open":
            self._opening(*given)
        elif event in ("os.mkdir", "os.remove", "os.rmdir"):
            self.point(event[3:], _absolute(given[0], given[-1]))
        elif event == "os.rename":
            self.point("rename", _absolute(given[1], given[3]), _absolute(given[0], given[2]))
        elif event in ("os.link", "os.symlink"):
            self.point("link", _absolute(given[1]))
        elif event == "os.truncate":
            self.point("truncate", _name_of(given[0]) if isinstance(given[0], int) else _absolute(given[0]))
        elif event == "shutil.rmtree" and _absolute(given[0]).startswith(self._boxes):
            self.note("free", _absolute(given[0]))

    def _opening(self, path: Any, mode: str | None, flags: int) -> None:
        """Only when it makes or empties a file: otherwise nothing is changed."""
        if isinstance(path, int) or path is None or not flags & (_WRITES | os.O_CREAT):
            return
        if flags & os.O_TRUNC or (flags & os.O_CREAT and not os.path.lexists(path)):
            self.point("open", _absolute(path))


class _Watched(io.FileIO):
    def __init__(self, file: Any, mode: str, watch: Watch) -> None:
        super().__init__(file, mode)
        self._watch, self._path = watch, _absolute(file)

    def write(self, data: Any, /) -> int:
        self._watch.point("write", self._path)
        self._watch.half(super().write, data, self._path)
        return super().write(data)


class _Speaking(io.FileIO):
    def __init__(self, number: int, watch: Watch) -> None:
        super().__init__(number, "w", closefd=False)
        self._watch = watch

    def write(self, data: Any, /) -> int:
        self._watch.note("say", bytes(data).decode(errors="replace"))
        return super().write(data)


def _absolute(path: Any, folder: int = -1) -> str:
    name = os.path.normpath(os.fsdecode(path))
    if folder >= 0:
        return f"{_name_of(folder)}/{name}"
    return os.path.abspath(name)


def _name_of(descriptor: int) -> str:
    return os.readlink(f"/proc/self/fd/{descriptor}")  # noqa: PTH115 - texts are compared


# --- going through all of them ------------------------------------------------------------------------------------


def every_point(most: int, step: int = 1, first: int = 1) -> Iterator[int]:
    """1, 2, 3 … Whoever counts stops when a command came through; `most` bounds it if none ever does."""
    return iter(range(first, most, step))


if __name__ == "__main__":
    serve()
