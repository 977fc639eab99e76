"""Text to timedelta."""

import re
from datetime import timedelta

from durations.errors import DurationError
from durations.units import SECONDS_PER_UNIT

_COMPONENT = re.compile(r"(\d+)([a-z])")


def parse_duration(text: str) -> timedelta:
    """Return the duration that text such as "1h30m" stands for."""
    seconds = 0
    for number, unit in _COMPONENT.findall(text.lower()):
        if unit not in SECONDS_PER_UNIT:
            raise DurationError(f"unknown unit {unit!r} in {text!r}")
        seconds += int(number) * SECONDS_PER_UNIT[unit]
    return timedelta(seconds=seconds)
