"""Text from elsewhere, made safe to print: control characters are shown, never obeyed."""

import re

_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u061c\u202a-\u202e\u2066-\u2069\u2028\u2029]")


def printable(text: str) -> str:
    """`text` with everything escaped that could move the cursor, recolour, reorder or ring."""
    return _UNSAFE.sub(lambda match: match.group().encode("unicode_escape").decode(), text)
