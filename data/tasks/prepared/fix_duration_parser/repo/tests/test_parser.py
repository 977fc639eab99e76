from datetime import timedelta

import pytest

from durations import DurationError, parse_duration


def test_single_units():
    assert parse_duration("2d") == timedelta(days=2)
    assert parse_duration("3h") == timedelta(hours=3)
    assert parse_duration("4m") == timedelta(minutes=4)
    assert parse_duration("5s") == timedelta(seconds=5)


def test_several_units():
    assert parse_duration("1h30m") == timedelta(minutes=90)


def test_upper_case():
    assert parse_duration("1H30M") == timedelta(minutes=90)


def test_unknown_unit():
    with pytest.raises(DurationError):
        parse_duration("3y")
