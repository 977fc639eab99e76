"""The units that durations are written in."""

SECONDS_PER_UNIT = {
    "d": 24 * 60 * 60,
    "h": 60 * 60,
    "m": 60,
    "s": 1,
}
"""Largest first: the formatter writes them in this order."""
