"""What the docker backend makes of a container's stream when it was not there to read it in time."""

import socket
import struct
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from rollouts.backends.base import Ended, Image, Job
from rollouts.backends.docker import LOOK_EVERY_S, _Container
from rollouts.config import Limits

OUT, ERR = 1, 2


class Engine:
    """Remembers which signals it was to send; a container that gets one is over."""

    def __init__(self) -> None:
        self.signals: list[str] = []
        self.end = threading.Event()

    def kill(self, container: str, signal: str) -> None:
        self.signals.append(signal)
        self.end.set()


def frame(kind: int, content: bytes) -> bytes:
    return struct.pack(">BxxxL", kind, len(content)) + content


def container(folder: Path, engine: Engine, pause_s: float) -> _Container:
    """One whose command began long ago, and whose output is slow to put away."""
    image = Image(task_id="t", tree=folder, base_git=folder, source_digest="s", instructions="do it")
    limits = Limits()
    job = Job("b-0.1", "b-0", "b", image, ("x",), {}, limits, 100.0, "none", folder, capture=False)
    backend = SimpleNamespace(cancelled=threading.Event(), _engine_limits_disk=True, _free=lambda container: None)
    box = _Container(cast(Any, backend), cast(Any, engine), "c", job, lambda data: time.sleep(pause_s))
    box._handout.began = time.monotonic() - 1000
    return box


class Sips:
    """A socket of which little comes at a time, however much waits in it."""

    def __init__(self, wire: socket.socket) -> None:
        self._wire = wire

    def fileno(self) -> int:
        return self._wire.fileno()

    def recv(self, size: int) -> bytes:
        return self._wire.recv(min(size, 1000))


def test_an_end_that_waited_behind_output_is_read_before_the_box_is_overdue(tmp_path: Path) -> None:
    engine = Engine()
    box = container(tmp_path, engine, pause_s=2 * LOOK_EVERY_S)
    word = box._handout.word
    said = b"".join(frame(OUT, f"\n{word} {line}\n".encode()) for line in ("ended 0 exited", "done"))
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(2 * frame(ERR, b"x" * 992) + said)
        box._attend(cast(Any, Sips(ours)))
    assert engine.signals == []
    result = box._result(time.time())
    assert (result.ended, result.exit_code, result.notes) == (Ended.EXITED, 0, ())


def test_an_end_that_comes_after_the_box_was_to_be_killed_counts_all_the_same(tmp_path: Path) -> None:
    engine = Engine()
    box = container(tmp_path, engine, pause_s=0)
    word = box._handout.word
    ours, theirs = socket.socketpair()

    def answer() -> None:
        engine.end.wait(60)
        theirs.sendall(b"".join(frame(OUT, f"\n{word} {line}\n".encode()) for line in ("ended 0 exited", "done")))
        theirs.close()

    with ours:
        writer = threading.Thread(target=answer)
        writer.start()
        box._attend(ours)
        writer.join()
    assert engine.signals == ["KILL"]
    result = box._result(time.time())
    assert (result.ended, result.exit_code, result.notes) == (Ended.EXITED, 0, ())
