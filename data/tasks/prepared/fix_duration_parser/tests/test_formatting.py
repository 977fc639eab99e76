"""What format_duration writes, and that it can be read back."""

from datetime import timedelta

from durations import format_duration, parse_duration


def test_seconds_to_days():
    assert format_duration(timedelta(days=6, hours=23, seconds=59)) == "6d23h59s"


def test_weeks():
    assert format_duration(timedelta(days=9, seconds=1)) == "1w2d1s"


def test_milliseconds():
    assert format_duration(timedelta(seconds=1, milliseconds=500)) == "1s500ms"
    assert format_duration(timedelta(milliseconds=7)) == "7ms"


def test_smaller_parts_are_cut_off():
    assert format_duration(timedelta(microseconds=1999)) == "1ms"
    assert format_duration(timedelta(microseconds=-1999)) == "-1ms"


def test_nothing_left_has_no_sign():
    assert format_duration(timedelta(microseconds=-999)) == "0s"


def test_round_trip():
    for milliseconds in (0, 1, 999, 1001, 59_999, 86_400_000, 694_861_001, 10**13 + 7):
        for delta in (timedelta(milliseconds=milliseconds), timedelta(milliseconds=-milliseconds)):
            assert parse_duration(format_duration(delta)) == delta
