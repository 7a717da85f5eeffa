"""Parses sizes and times of Docker, Compose and Kubernetes."""

import re

from winhost.model.units import Bytes, GiB

_DOCKER = re.compile(r"(\d+(?:\.\d+)?)\s*(?:([bkmgt])i?b?)?", re.IGNORECASE)
_KUBERNETES = re.compile(r"(\d+(?:\.\d+)?)(m|[kKMGTPE]i?)?")
_POWERS = "bkmgt"
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(us|ms|s|sec|second|m|min|h)?", re.IGNORECASE)
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1, "sec": 1, "second": 1, "m": 60, "min": 60, "h": 3600, "": 1}


def docker_size(text: str) -> Bytes | None:
    """Parse a size as Docker does: `8g`, `512MB`, `1073741824`; None for any other text."""
    found = _DOCKER.fullmatch(text.strip())
    return int(float(found[1]) * 1024 ** _POWERS.index((found[2] or "b").lower())) if found else None


def kubernetes_size(text: str) -> Bytes | None:
    """Parse a size of Kubernetes: `8Gi`, `500M`, `1073741824`; None for any other text."""
    found = _KUBERNETES.fullmatch(text.strip())
    if found is None:
        return None
    unit = found[2] or ""
    if unit == "m":
        return int(float(found[1]) / 1000)
    base = 1024 if unit.endswith("i") else 1000
    return int(float(found[1]) * base ** " KMGTPE".index(unit[:1].upper() or " "))


def seconds(text: str) -> float | None:
    """Parse a duration into seconds: `60`, `1m30s`, `30 s`; None for any other text."""
    parts = list(_DURATION.finditer(text.strip()))
    if not parts or "".join(part[0] for part in parts).replace(" ", "") != text.replace(" ", ""):
        return None
    return sum(float(part[1]) * _SECONDS[(part[2] or "").lower()] for part in parts)


def format_size(size: Bytes) -> str:
    """Format a size: `8 GiB`, `64 MiB`, `8 bytes`."""
    for unit, name in ((GiB, "GiB"), (1024**2, "MiB"), (1024, "KiB")):
        if size >= unit:
            return f"{size / unit:.3g} {name}"
    return f"{size} bytes"
