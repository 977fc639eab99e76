"""Durations such as "1h30m" to timedelta and back."""

from durations.errors import DurationError
from durations.formatter import format_duration
from durations.parser import parse_duration

__all__ = ["DurationError", "format_duration", "parse_duration"]
