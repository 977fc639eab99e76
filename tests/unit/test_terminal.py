"""Text from elsewhere, made safe to print."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollouts.terminal import printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain é 漢 🎉", "plain é 漢 🎉"),
        ("tab\tand\nline", "tab\tand\nline"),
        ("\x1b[31mred\x1b[0m", r"\x1b[31mred\x1b[0m"),
        ("\x1b]0;title\x07", r"\x1b]0;title\x07"),
        ("over\rwrite", r"over\rwrite"),
        ("back\x08space", r"back\x08space"),
        ("\x00\x7f\x80\x9b2J", r"\x00\x7f\x80\x9b2J"),
        ("abc\u202edcba\u2066\u200f\u061c", r"abc\u202edcba\u2066\u200f\u061c"),
        ("a\u2028b\u2029c\x85d\x0be\x0cf", r"a\u2028b\u2029c\x85d\x0be\x0cf"),
        ("[bold]not markup[/bold]", "[bold]not markup[/bold]"),
    ],
)
def test_what_could_move_the_cursor_is_shown_instead(text: str, shown: str) -> None:
    assert printable(text) == shown


@given(st.text())
def test_nothing_that_controls_a_terminal_is_left(text: str) -> None:
    left = printable(text)
    assert not {char for char in left if (ord(char) < 32 and char not in "\n\t") or 127 <= ord(char) < 160}
    assert not set(left) & set("\u200e\u200f\u061c\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
