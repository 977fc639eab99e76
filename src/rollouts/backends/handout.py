"""What comes out of a box on its supervisor's stdout, read as the hostile input it is."""

import contextlib
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from rollouts.files import cannot_write

OUTPUT_LIMIT_BYTES = 256 * 1024 * 1024
"""The most a box may hand out; above it the rest is not read and the run says so."""
NAMES = ("diff.patch", "notes.md", "skipped.txt", "results.xml")
"""The files a box may hand out; their names become paths, so no others are taken."""
HOW = ("exited", "timeout", "cancelled")
LONGEST_LINE = 4096
_NEWLINE = ord("\n")
_NUMBER = re.compile("[0-9]{1,15}")
"""What `int` takes without fail: `str.isdigit` lets "²" pass, and 5,000 digits are more than `int` reads."""


class OwnLines:
    """Tells a stream's own lines, which begin with a word, from everything else.

    Everything else comes in pieces as large as they are there: a box may print gigabytes of short lines.
    """

    def __init__(self, word: str, longest: int = LONGEST_LINE) -> None:
        self._word, self._longest = word.encode(), longest
        self._buffer = bytearray()
        self._inside = False
        """The buffer begins within a line, the start of which was given out already."""

    def add(self, data: bytes) -> None:
        """The next bytes of the stream."""
        self._buffer += data

    def next(self) -> tuple[bytes, str | None] | None:
        """What stands before the next own line, and that line without word and newline, or None if there is none yet.

        None altogether: more must come first. An empty line before an own one belongs to it: who writes one does not
        know where the last line ended.
        """
        start = self._find()
        if start < 0:
            return self._all_but_the_last_line()
        end = self._buffer.find(b"\n", start)
        if end < 0 and len(self._buffer) - start <= self._longest:
            return None
        empty = self._ends_empty(start)
        between = self._cut(start)
        own = self._cut(end - start + 1 if end >= 0 else len(self._buffer))
        line = own[len(self._word) :].decode("utf-8", "replace").rstrip("\n").removeprefix(" ")
        return between[:-1] if empty else between, line

    def take(self, count: int) -> bytes:
        """So many bytes as they are, or what is there of them; they are no part of any line."""
        part = self._cut(count)
        self._inside = False
        return part

    def rest(self) -> bytes:
        """All that is left."""
        return self._cut(len(self._buffer))

    def _find(self) -> int:
        start = self._buffer.find(self._word)
        while start >= 0 and not self._is_own(start):
            start = self._buffer.find(self._word, start + 1)
        return start

    def _is_own(self, start: int) -> bool:
        begins = self._buffer[start - 1] == _NEWLINE if start else not self._inside
        behind = self._buffer[start + len(self._word) : start + len(self._word) + 1]
        return begins and bytes(behind) in (b"", b" ", b"\n")

    def _ends_empty(self, end: int) -> bool:
        """Whether the last line before `end` is an empty one."""
        if not end or self._buffer[end - 1] != _NEWLINE:
            return False
        return self._buffer[end - 2] == _NEWLINE if end > 1 else not self._inside

    def _all_but_the_last_line(self) -> tuple[bytes, None] | None:
        end = self._buffer.rfind(b"\n") + 1
        if len(self._buffer) - end > self._longest:
            end = len(self._buffer)
        if self._ends_empty(end) and self._word.startswith(self._buffer[end:]):  # an own line may follow
            end -= 1
        return (self._cut(end), None) if end else None

    def _cut(self, count: int) -> bytes:
        part = bytes(self._buffer[:count])
        del self._buffer[:count]
        self._inside = part[-1] != _NEWLINE if part else self._inside
        return part


@dataclass
class Handout:
    """Reads what a box's supervisor writes on its stdout: when the command began and ended, then files.

    Lines `WORD begin`, `WORD ended CODE HOW`, `WORD note TEXT`, `WORD file NAME SIZE` (SIZE bytes follow), `WORD done`.
    The word is new for each box and known to its supervisor alone: lines without it are the job's own output that went
    astray. What comes out of a box is hostile: a line that has the word and makes no sense makes the handout `broken`,
    and nothing more is read.
    """

    outputs_dir: Path
    clock: Callable[[], float]
    stray: Callable[[bytes], None]
    """Takes what is no part of the handout."""
    word: str = field(default_factory=lambda: secrets.token_hex(16))
    began: float | None = None
    ended_at: float | None = None
    exit_code: int | None = None
    how: str | None = None
    """How the supervisor says that the command came to its end: one of `HOW`."""
    done: bool = False
    broken: str | None = None
    files: dict[str, Path] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    _open: BinaryIO | None = None
    _left: int = 0
    _total: int = 0

    @property
    def timed_out(self) -> bool:
        """The supervisor ended the command at its time limit."""
        return self.how == "timeout"

    @property
    def was_asked(self) -> bool:
        """The supervisor ended the command because it was sent SIGTERM."""
        return self.how == "cancelled"

    def __post_init__(self) -> None:
        self._lines = OwnLines(self.word)

    def feed(self, data: bytes) -> None:
        """Take the next bytes; never raises for what is in them, but StoreError when a file cannot be kept."""
        try:
            self._feed(data)
        except OSError as exc:
            self.broken = "a file could not be kept"
            raise cannot_write(self.outputs_dir, exc) from exc

    def _feed(self, data: bytes) -> None:
        self._lines.add(data)
        while not self.broken and not self.done:
            if self._open is not None:
                if not self._take_content(self._open):
                    return
                continue
            found = self._lines.next()
            if found is None:
                return
            between, own = found
            if between:
                self.stray(between)
            if own is not None:
                self._take_line(own)
        self._lines.rest()

    def close(self) -> None:
        """The stream is over; a file that was cut short does not count."""
        if self._open is not None:
            with contextlib.suppress(OSError):  # a full disk: then it does not count either
                self._open.close()
            self._open = None
            self.broken = self.broken or "cut short"
        elif (rest := self._lines.rest()) != b"\n" and rest:
            self.stray(rest)

    def _take_content(self, stream: BinaryIO) -> bool:
        part = self._lines.take(self._left)
        stream.write(part)
        self._left -= len(part)
        if not self._left:
            stream.close()
            self._open = None
        return bool(part)

    def _take_line(self, line: str) -> None:
        word, _, rest = line.partition(" ")
        match word:
            case "begin" if self.began is None:
                self.began = self.clock()
            case "ended" if self.began is not None and self.ended_at is None:
                self._take_end(rest)
            case "note" if len(self.notes) < 100:
                self.notes.append(rest)
            case "file" if self.ended_at is not None:
                self._take_file(rest)
            case "done" if self.ended_at is not None:
                self.done = True
            case _:
                self.broken = f"an unexpected line {line[:80]!r}"

    def _take_end(self, rest: str) -> None:
        code, _, how = rest.partition(" ")
        if not _NUMBER.fullmatch(code) or int(code) > 255 or how not in HOW:
            self.broken = f"an unexpected end {rest[:80]!r}"
            return
        self.ended_at, self.exit_code, self.how = self.clock(), int(code), how

    def _take_file(self, rest: str) -> None:
        name, _, size = rest.partition(" ")
        if name not in NAMES or name in self.files or not _NUMBER.fullmatch(size):
            self.broken = f"an unexpected file {rest[:80]!r}"
            return
        self._total += int(size)
        if self._total > OUTPUT_LIMIT_BYTES:
            self.broken = f"more than {OUTPUT_LIMIT_BYTES} bytes handed out"
            return
        self.outputs_dir.mkdir(parents=True, exist_ok=True)
        self.files[name] = self.outputs_dir / name
        self._left = int(size)
        stream = self.files[name].open("wb")
        if self._left:
            self._open = stream
        else:
            stream.close()
