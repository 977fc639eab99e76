from datetime import timedelta

from durations import format_duration


def test_largest_unit_first():
    assert format_duration(timedelta(days=1, hours=2, minutes=3, seconds=4)) == "1d2h3m4s"


def test_zero_components_are_left_out():
    assert format_duration(timedelta(hours=1, seconds=5)) == "1h5s"


def test_zero():
    assert format_duration(timedelta(0)) == "0s"


def test_negative():
    assert format_duration(timedelta(minutes=-15)) == "-15m"
