"""Text from elsewhere, made safe to print: control characters are shown, never obeyed. And streams nobody reads."""

import os
import re
from typing import IO

_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u061c\u202a-\u202e\u2066-\u2069\u2028\u2029]")


def printable(text: str) -> str:
    """`text` with everything escaped that could move the cursor, recolour, reorder or ring."""
    return _UNSAFE.sub(lambda match: match.group().encode("unicode_escape").decode(), text)


def counted(count: int, noun: str, plural: str | None = None) -> str:
    """`1 run`, `2 runs`; or `2 batches`."""
    return f"{count} {noun}" if count == 1 else f"{count} {plural or f'{noun}s'}"


def silence(stream: IO[str]) -> None:
    """Let what is written to `stream` go nowhere from now on, also what is still in its buffer."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
