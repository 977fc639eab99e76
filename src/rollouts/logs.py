"""A run's log files: written as output comes, capped in size with head and tail kept, and free of known secrets."""

import contextlib
import json
import os
import re
import threading
from base64 import b64encode
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO
from urllib.parse import quote, quote_plus

from rollouts.files import cannot_write

LOG_LIMIT_BYTES = 64 * 1024 * 1024
SHORTEST_SECRET = 6
"""Shorter values would be found in text that has nothing to do with them."""
_HIDDEN = b"[secret]"


class LogFile:
    """Takes bytes in pieces. Past the limit only the newest half is kept, in a ring on disk, until `close`."""

    def __init__(self, path: Path, secrets: Iterable[str] = (), limit: int = LOG_LIMIT_BYTES) -> None:
        self.path = path
        self._half = limit // 2
        self._scrub = Scrubber(secrets)
        self._lock = threading.Lock()
        self._head: BinaryIO = path.open("ab")
        self._room = max(0, self._half - self._head.tell())
        self._tail_path = path.with_name(f".{path.name}.tail")
        self._tail: BinaryIO | None = None
        self._beyond = 0

    def __call__(self, data: bytes) -> None:
        """Take the next piece; raises StoreError when the disk does not."""
        with self._lock:
            try:
                self._write(self._scrub(data))
            except OSError as exc:
                raise cannot_write(self.path, exc) from exc

    def close(self) -> None:
        """Write what was held back; with the tail, if there is one, behind a line that marks the cut."""
        with self._lock:
            try:
                self._write(self._scrub.rest())
                if self._tail is not None:
                    self._append_tail(self._tail)
                self._head.flush()
            except OSError as exc:
                raise cannot_write(self.path, exc) from exc
            finally:
                self._give_back()

    def _give_back(self) -> None:
        with contextlib.suppress(OSError):  # what could not be written was told already
            self._head.close()
        if self._tail is not None:
            with contextlib.suppress(OSError):
                self._tail.close()
            self._tail_path.unlink(missing_ok=True)

    def _write(self, data: bytes) -> None:
        if self._room:
            self._head.write(data[: self._room])
            self._head.flush()
            data, self._room = data[self._room :], max(0, self._room - len(data))
        if data:
            self._write_tail(data)

    def _write_tail(self, data: bytes) -> None:
        if self._tail is None:
            self._tail = self._tail_path.open("w+b")
        data, self._beyond = data[-self._half :], self._beyond + max(0, len(data) - self._half)
        while data:
            position = self._beyond % self._half
            part = data[: self._half - position]
            self._tail.seek(position)
            self._tail.write(part)
            self._beyond += len(part)
            data = data[len(part) :]

    def _append_tail(self, tail: BinaryIO) -> None:
        cut = max(0, self._beyond - self._half)
        if cut:
            self._head.write(f"\n[… {cut} bytes of output left out here …]\n".encode())
        start = self._beyond % self._half if cut else 0
        for first, last in ((start, min(self._beyond, self._half)), (0, start)):
            tail.seek(first)
            left = last - first
            while left > 0 and (part := tail.read(min(left, 1024 * 1024))):
                self._head.write(part)
                left -= len(part)


def _literal_forms(secret: str) -> Iterator[bytes]:
    """A secret as it may turn up in one piece: plain, as lines that a patch adds, or escaped for a URL or JSON."""
    plain = os.fsencode(secret)
    yield from (plain, plain.replace(b"\n", b"\n+"), json.dumps(secret)[1:-1].encode())
    yield os.fsencode(json.dumps(secret, ensure_ascii=False)[1:-1])
    for escaped in (quote(plain), quote(plain, safe=""), quote_plus(plain)):
        yield from (escaped.encode(), re.sub("%..", lambda found: found.group().lower(), escaped).encode())


def _coded_forms(secret: str) -> Iterator[bytes]:
    """The same in codes that programs break into lines: as hex, or somewhere within base64."""
    plain = os.fsencode(secret)
    yield from (plain.hex().encode(), plain.hex().upper().encode())
    for offset, cut in ((0, 0), (1, 2), (2, 3)):
        coded = b64encode(bytes(offset) + plain).rstrip(b"=")
        whole = coded[cut : len(coded) - ((len(plain) + offset) % 3 != 0)]
        yield from (whole, whole.translate(bytes.maketrans(b"+/", b"-_")))


def _by_length(forms: Iterable[bytes]) -> list[bytes]:
    """Of two that begin alike the longer one counts."""
    return sorted(set(forms), key=len, reverse=True)


_BREAK = rb"(?:\r?\n\+?)"
"""Where a code goes on in the next line; within a patch that line has a mark."""
_CODE = re.compile(rb"[A-Za-z0-9+/_\r\n-]+")
_SURE_START = 4
"""So many characters of a code before a break are taken for the start of a secret, and wait for what follows."""

_HEAD = 8
"""So many bytes at the start of a secret are looked for; hardly any other text has them."""


class Scrubber:
    """Replaces known secret values in a stream, also where one is split over two pieces."""

    def __init__(self, secrets: Iterable[str]) -> None:
        secrets = [secret for secret in secrets if len(secret) >= SHORTEST_SECRET]
        self._coded = _by_length(form for secret in secrets for form in _coded_forms(secret))
        self._secrets = _by_length([*self._coded, *(form for secret in secrets for form in _literal_forms(secret))])
        self._pattern = re.compile(b"|".join(map(re.escape, self._secrets)))
        broken = [(_BREAK + b"?").join(re.escape(bytes([byte])) for byte in form) for form in self._coded]
        self._slow_pattern = re.compile(b"|".join([*broken, self._pattern.pattern]))
        self._held = b""
        self.replaced = 0
        """How many were found so far."""

    def __call__(self, data: bytes) -> bytes:
        """What can be passed on so far. What may be the start of a secret waits for what follows."""
        if not self._secrets:
            return data
        data = self._held + data
        starts = max(self._overlap(data, secret) for secret in self._secrets)
        cut = len(data) - max(starts, self._overlap_before_a_break(data))
        across = next((found for found in self._pattern_for(data).finditer(data) if found.end() > cut), None)
        if across is not None:
            cut = min(cut, across.start())
        self._held = data[cut:]
        return self._replace(data[:cut])

    def rest(self) -> bytes:
        """What is still held back, at the end of the stream."""
        held, self._held = self._held, b""
        return self._replace(held)

    def text(self, text: str) -> str:
        """A whole text without secrets."""
        return self._replace(text.encode("utf-8", "surrogateescape")).decode("utf-8", "surrogateescape")

    def _replace(self, data: bytes) -> bytes:
        if not self._secrets:
            return data
        data, count = self._pattern_for(data).subn(_hidden, data)
        self.replaced += count
        return data

    def _pattern_for(self, data: bytes) -> re.Pattern[bytes]:
        """Codes broken into lines are rare, and looking for them is slow: they must be there when lines are joined."""
        if b"\n" in data:
            joined = _joined(data)
            if any(form in joined for form in self._coded):
                return self._slow_pattern
        return self._pattern

    def _overlap_before_a_break(self, data: bytes) -> int:
        """The same as `_overlap`, for a code that began in an earlier line."""
        tail = data[-2 * len(self._coded[0]) :]
        if b"\n" not in tail:
            return 0
        joined = _joined(tail)
        size = max(self._overlap(joined, form) for form in self._coded)
        if size < _SURE_START:
            return 0
        start = next(at for at in range(len(tail) - size, -1, -1) if len(_joined(tail[at:])) >= size)
        return len(tail) - start

    @staticmethod
    def _overlap(data: bytes, secret: bytes) -> int:
        """How much of the end of `data` may be the start of a secret.

        Secrets may have thousands of bytes: only where their first few stand is the rest looked at.
        """
        longest, head = min(len(data), len(secret) - 1), secret[:_HEAD]
        at = data.find(head, len(data) - longest)
        while at >= 0:
            if secret.startswith(data[at:]):
                return len(data) - at
            at = data.find(head, at + 1)
        short = range(min(longest, _HEAD - 1), 0, -1)
        return next((size for size in short if data.endswith(head[:size])), 0)


def _joined(data: bytes) -> bytes:
    return data.replace(b"\n+", b"\n").translate(None, b"\r\n")


def _hidden(found: re.Match[bytes]) -> bytes:
    """Breaks with a mark stay, and those of a code: a patch has as many lines as it says."""
    text = found.group()
    is_literal = b"\n" in text and b"\n+" not in text and not _CODE.fullmatch(text)
    return _HIDDEN if is_literal else _HIDDEN + b"".join(re.findall(_BREAK, text))


def scrub_file(path: Path, secrets: Iterable[str]) -> bool:
    """Take secrets out of a file; returns whether there were any."""
    scrub = Scrubber(secrets)
    clean = path.with_name(f".{path.name}.clean")
    with path.open("rb") as source, clean.open("wb") as target:
        while part := source.read(1024 * 1024):
            target.write(scrub(part))
        target.write(scrub.rest())
    clean.replace(path)
    return scrub.replaced > 0


def tail_of(path: Path, size: int) -> str:
    """The last lines of a log, at most `size` bytes."""
    with path.open("rb") as log:
        log.seek(max(0, log.seek(0, os.SEEK_END) - size))
        return log.read().decode("utf-8", "replace")
