"""Describes packed parts of a plan (gzip in base64) by size and hash, because nobody can read the text itself."""

import re
from base64 import b64decode
from hashlib import sha256

_PACKED = re.compile(
    r"H4sI(?:[A-Za-z0-9+/]{4})+(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?"
)  # gzip in base64 starts with H4sI


def describe_packed(text: str) -> str | None:
    """Describe a packed text by its size and SHA-256; None if it is not packed."""
    if not _PACKED.fullmatch(text):
        return None
    data = b64decode(text)
    return f"{len(data):,} bytes, packed, SHA-256 {sha256(data).hexdigest()[:12]}…"
