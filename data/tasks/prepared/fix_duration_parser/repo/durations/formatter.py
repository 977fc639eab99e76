"""Timedelta to text."""

from datetime import timedelta

from durations.units import SECONDS_PER_UNIT


def format_duration(delta: timedelta) -> str:
    """Write the duration in its largest units first, leaving out those that are zero."""
    if delta < timedelta(0):
        return "-" + format_duration(-delta)
    rest = int(delta.total_seconds())
    parts = []
    for unit, size in SECONDS_PER_UNIT.items():
        count, rest = divmod(rest, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"
