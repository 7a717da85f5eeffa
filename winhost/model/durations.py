"""Parses and formats durations such as `10s`, `2m`, `1h30m`, and ages."""

import re

DAY = 86_400
_DIGITS = 6  # of a count of days
_UNITS = {"h": 3600, "m": 60, "s": 1}
PATTERN = r"(?=.)(?:([0-9]{1,9})h)?(?:([0-9]{1,9})m)?(?:([0-9]{1,9})s)?"
MAX_SECONDS = DAY


def parse_duration(value: object) -> int:
    """Parse `10s`, `1m30s`, `1h` or a whole number of seconds into seconds. Raises ValueError."""
    seconds = _seconds(value)
    if seconds is None:
        raise ValueError("should be a duration such as 10s, 2m, 1h30m, or a whole number of seconds")
    if not 1 <= seconds <= MAX_SECONDS:
        raise ValueError(f"should be from 1s to {render_duration(MAX_SECONDS)}")
    return seconds


def _seconds(value: object) -> int | None:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    found = re.fullmatch(PATTERN, value) if isinstance(value, str) else None
    if found is None:
        return None
    return sum(int(count or 0) * size for count, size in zip(found.groups(), _UNITS.values(), strict=True))


def render_duration(seconds: int) -> str:
    """Format seconds so that `parse_duration` reads them back: `1h30m` for 5400."""
    parts = []
    for unit, size in _UNITS.items():
        count, seconds = divmod(seconds, size)
        parts.append(f"{count}{unit}" if count else "")
    return "".join(parts) or "0s"


def parse_age(text: str) -> int:
    """Parse `7d`, `1d12h` or a duration into seconds. Raises ValueError."""
    days, d, rest = text.partition("d")
    if not d:
        days, rest = "0", text
    seconds = _seconds(int(rest) if rest.isdecimal() and not d else rest) if rest or not d else 0
    if seconds is None or not (days.isascii() and days.isdecimal() and len(days) <= _DIGITS):
        raise ValueError("should be an age such as 12h, 7d or 1d12h, or a whole number of seconds")
    return int(days) * DAY + seconds


def render_age(seconds: float) -> str:
    """Format an age in one unit: `3 days`, `5 hours`."""
    for unit, size in (("day", DAY), ("hour", 3600), ("minute", 60)):
        if (count := int(seconds // size)) > 0:
            return f"{count} {unit}{'' if count == 1 else 's'}"
    return "less than a minute"
