"""Durations as people write them: `10s`, `2m`, `1h30m`."""

import re

_UNITS = {"h": 3600, "m": 60, "s": 1}
PATTERN = r"(?=.)(?:([0-9]{1,9})h)?(?:([0-9]{1,9})m)?(?:([0-9]{1,9})s)?"
LONGEST = 86_400


def parse_duration(value: object) -> int:
    """Seconds of `10s`, `1m30s`, `1h`, or of a whole number of seconds. Raises ValueError."""
    seconds = _seconds(value)
    if seconds is None:
        raise ValueError("should be a duration such as 10s, 2m, 1h30m, or a whole number of seconds")
    if not 1 <= seconds <= LONGEST:
        raise ValueError(f"should be from 1s to {render_duration(LONGEST)}")
    return seconds


def _seconds(value: object) -> int | None:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    found = re.fullmatch(PATTERN, value) if isinstance(value, str) else None
    if found is None:
        return None
    return sum(int(count or 0) * size for count, size in zip(found.groups(), _UNITS.values(), strict=True))


def render_duration(seconds: int) -> str:
    """`1h30m` of 5400; `parse_duration` reads it back."""
    parts = []
    for unit, size in _UNITS.items():
        count, seconds = divmod(seconds, size)
        parts.append(f"{count}{unit}" if count else "")
    return "".join(parts) or "0s"
