"""A run's log files: written as output comes, capped in size with head and tail kept, and free of known secrets."""

import json
import os
import re
import threading
from base64 import b64encode
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO
from urllib.parse import quote, quote_plus

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
        """Take the next piece."""
        with self._lock:
            self._write(self._scrub(data))

    def close(self) -> None:
        """Write what was held back; with the tail, if there is one, behind a line that marks the cut."""
        with self._lock:
            self._write(self._scrub.rest())
            if self._tail is not None:
                self._append_tail(self._tail)
                self._tail.close()
                self._tail_path.unlink()
            self._head.close()

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


def _forms(secret: str) -> Iterator[bytes]:
    """A secret as it may turn up: plain, as hex, escaped for a URL or JSON, or somewhere within base64."""
    plain = os.fsencode(secret)
    yield from (plain, plain.hex().encode(), json.dumps(secret)[1:-1].encode())
    yield os.fsencode(json.dumps(secret, ensure_ascii=False)[1:-1])
    for escaped in (quote(plain), quote(plain, safe=""), quote_plus(plain)):
        yield from (escaped.encode(), re.sub("%..", lambda found: found.group().lower(), escaped).encode())
    for offset, cut in ((0, 0), (1, 2), (2, 3)):
        coded = b64encode(bytes(offset) + plain).rstrip(b"=")
        whole = coded[cut : len(coded) - ((len(plain) + offset) % 3 != 0)]
        yield from (whole, whole.translate(bytes.maketrans(b"+/", b"-_")))


class Scrubber:
    """Replaces known secret values in a stream, also where one is split over two pieces."""

    def __init__(self, secrets: Iterable[str]) -> None:
        forms = {form for secret in secrets if len(secret) >= SHORTEST_SECRET for form in _forms(secret)}
        self._secrets = sorted(forms, key=len, reverse=True)  # of two that begin alike the longer one counts
        self._pattern = re.compile(b"|".join(map(re.escape, self._secrets)))
        self._held = b""
        self.replaced = 0
        """How many were found so far."""

    def __call__(self, data: bytes) -> bytes:
        """What can be passed on so far. What may be the start of a secret waits for what follows."""
        if not self._secrets:
            return data
        data = self._held + data
        cut = len(data) - max(self._overlap(data, secret) for secret in self._secrets)
        across = next((found for found in self._pattern.finditer(data) if found.end() > cut), None)
        if across is not None:
            cut = min(cut, across.start())
        self._held = data[cut:]
        return self._replace(data[:cut])

    def rest(self) -> bytes:
        """What is still held back, at the end of the stream."""
        held, self._held = self._held, b""
        return self._replace(held)

    def _replace(self, data: bytes) -> bytes:
        if not self._secrets:
            return data
        data, count = self._pattern.subn(_HIDDEN, data)
        self.replaced += count
        return data

    @staticmethod
    def _overlap(data: bytes, secret: bytes) -> int:
        """How much of the end of `data` may be the start of a secret."""
        longest = min(len(data), len(secret) - 1)
        return next((size for size in range(longest, 0, -1) if data.endswith(secret[:size])), 0)


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
