"""What can go wrong."""


class DurationError(ValueError):
    """The text is not a duration."""
