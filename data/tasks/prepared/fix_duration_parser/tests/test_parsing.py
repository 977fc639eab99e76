"""What parse_duration accepts, and what it stands for."""

from datetime import timedelta

from durations import parse_duration


def test_whole_numbers():
    assert parse_duration("1d2h3m4s") == timedelta(days=1, hours=2, minutes=3, seconds=4)


def test_any_order():
    assert parse_duration("30m1h") == timedelta(minutes=90)


def test_space_around_and_between():
    assert parse_duration(" 1h 30m\t5s \n") == timedelta(hours=1, minutes=30, seconds=5)


def test_zero():
    assert parse_duration("0s") == timedelta(0)


def test_decimals():
    assert parse_duration("1.5h") == timedelta(minutes=90)
    assert parse_duration("1h2.5m") == timedelta(hours=1, seconds=150)


def test_decimals_are_exact():
    assert parse_duration("0.1s") == timedelta(microseconds=100_000)
    assert parse_duration("0.7ms") == timedelta(microseconds=700)
    assert parse_duration("0.1d0.2h0.3m") == timedelta(seconds=8640 + 720 + 18)


def test_weeks():
    assert parse_duration("2w1d") == timedelta(days=15)


def test_milliseconds():
    assert parse_duration("250ms") == timedelta(milliseconds=250)


def test_milliseconds_beside_minutes_and_seconds():
    assert parse_duration("1m2s3ms") == timedelta(minutes=1, seconds=2, milliseconds=3)
    assert parse_duration("3ms1m") == timedelta(minutes=1, milliseconds=3)


def test_upper_case_units():
    assert parse_duration("1W 5MS") == timedelta(weeks=1, milliseconds=5)


def test_negative():
    assert parse_duration("-15m") == timedelta(minutes=-15)


def test_the_sign_counts_for_all_components():
    assert parse_duration(" -1h30m") == timedelta(minutes=-90)
