"""Text from elsewhere, made safe to print: control characters are shown, never obeyed. And streams nobody reads."""

import json
import os
import re
from typing import IO

_UNSAFE = re.compile(
    "[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f"  # C0 but for tab and newline, DEL, C1
    "\\u061c\\u200e\\u200f\\u2028-\\u202e\\u2066-\\u206f\\ufeff\\ufff9-\\ufffb\\U000e0000-\\U000e007f"  # order, hide
    "\\ud800-\\udfff]"  # half a character: it cannot even be written
)
_CREDENTIALS = re.compile(r"(://)[^/\s]+@")


def printable(text: str) -> str:
    """`text` with everything escaped that could move the cursor, recolour, reorder or ring."""
    return _UNSAFE.sub(lambda match: match.group().encode("unicode_escape").decode(), text)


def printable_line(text: str) -> str:
    """The same as one line: nobody but us begins a new one."""
    return printable(text).replace("\n", "\\n")


def printable_json(text: str) -> str:
    """A JSON document with the same characters escaped as JSON has it, so that it stays the same document."""
    return _UNSAFE.sub(lambda match: json.dumps(match.group())[1:-1], text)


def without_credentials(text: str) -> str:
    """`text` with user names and passwords taken out of the addresses in it."""
    return _CREDENTIALS.sub(r"\1", text)


def counted(count: int, noun: str, plural: str | None = None) -> str:
    """`1 run`, `2 runs`; or `2 batches`."""
    return f"{count} {noun}" if count == 1 else f"{count} {plural or f'{noun}s'}"


def silence(stream: IO[str]) -> None:
    """Let what is written to `stream` go nowhere from now on, also what is still in its buffer."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
