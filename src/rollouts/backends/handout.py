"""What comes out of a box on its supervisor's stdout, read as the hostile input it is."""

import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

OUTPUT_LIMIT_BYTES = 256 * 1024 * 1024
"""The most a box may hand out; above it the rest is not read and the run says so."""
NAMES = ("diff.patch", "notes.md", "skipped.txt", "results.xml")
"""The files a box may hand out; their names become paths, so no others are taken."""
LONGEST_LINE = 4096
_NUMBER = re.compile("[0-9]{1,15}")
"""What `int` takes without fail: `str.isdigit` lets "²" pass, and 5,000 digits are more than `int` reads."""


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
    timed_out: bool = False
    done: bool = False
    broken: str | None = None
    files: dict[str, Path] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    _buffer: bytearray = field(default_factory=bytearray)
    _inside: bool = False
    """The last line was too long to wait for its end, so what comes next is more of it."""
    _open: BinaryIO | None = None
    _left: int = 0
    _total: int = 0

    def feed(self, data: bytes) -> None:
        """Take the next bytes; never raises for what is in them."""
        self._buffer += data
        while self._buffer and not self.broken and not self.done:
            if self._open is not None:
                self._take_content()
                continue
            line, newline, rest = self._buffer.partition(b"\n")
            if not newline and len(line) <= LONGEST_LINE:
                return
            self._buffer = rest
            if self._inside:
                self.stray(bytes(line + newline))
            else:
                self._take_line(bytes(line + newline))
            self._inside = not newline
        if self.broken or self.done:
            self._buffer.clear()

    def close(self) -> None:
        """The stream is over; a file that was cut short does not count."""
        if self._buffer and self._open is None:
            self.stray(bytes(self._buffer))
            self._buffer.clear()
        if self._open is not None:
            self._open.close()
            self._open = None
            self.broken = self.broken or "cut short"

    def _take_content(self) -> None:
        assert self._open is not None
        part = self._buffer[: self._left]
        del self._buffer[: self._left]
        self._open.write(part)
        self._left -= len(part)
        if not self._left:
            self._open.close()
            self._open = None

    def _take_line(self, raw: bytes) -> None:
        mark, _, line = raw.decode("utf-8", "replace").rstrip("\n").partition(" ")
        if mark != self.word:
            if raw != b"\n":  # the supervisor starts each line of its own on a new one
                self.stray(raw)
            return
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
        if not _NUMBER.fullmatch(code) or int(code) > 255 or how not in ("exited", "timeout"):
            self.broken = f"an unexpected end {rest[:80]!r}"
            return
        self.ended_at, self.exit_code, self.timed_out = self.clock(), int(code), how == "timeout"

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
