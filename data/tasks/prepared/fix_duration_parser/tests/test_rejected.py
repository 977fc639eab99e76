"""What parse_duration must refuse."""

import pytest

from durations import DurationError, parse_duration


def refuse(*texts: str) -> None:
    for text in texts:
        with pytest.raises(DurationError) as caught:
            parse_duration(text)
        assert repr(text) in str(caught.value)


def test_unknown_units():
    refuse("3y", "1h2x")


def test_error_is_a_value_error():
    assert issubclass(DurationError, ValueError)


def test_empty_text():
    refuse("", "   ", "-")


def test_number_without_unit():
    refuse("90", "1h30")


def test_unit_without_number():
    refuse("h", "1hm")


def test_surrounding_text():
    refuse("about 1h", "1h nonsense", "1h,30m")


def test_space_inside_a_component():
    refuse("1 h", "1h 30 m", "5m s")


def test_incomplete_decimals():
    refuse(".5h", "1.h", "1..5h", "1.5.5h")


def test_repeated_unit():
    refuse("1h5m2h", "1ms1MS")


def test_sign_in_a_wrong_place():
    refuse("1h-30m", "--1h", "+1h", "1h-")
