"""Packed data of a plan is shown by its size and hash, wherever people read values."""

import gzip
from base64 import b64encode
from hashlib import sha256

import pytest

from winhost.bundle import bundle_files
from winhost.cli.plan import show as show_plan
from winhost.model.packed import describe_packed

DATA = gzip.compress(b"a CD for cloud-init" * 50, mtime=0)  # without a time: the names of tests are made of it
PACKED = b64encode(DATA).decode("ascii")
SHOWN = f"{len(DATA)} bytes, packed, SHA-256 {sha256(DATA).hexdigest()[:12]}…"


@pytest.mark.parametrize(
    "shown", [show_plan.format_value, show_plan.format_full_value, bundle_files.format_value, describe_packed]
)
def test_people_see_size_and_hash(shown: object) -> None:
    assert shown(PACKED) == SHOWN  # type: ignore[operator]


@pytest.mark.parametrize("text", ["H4sI", "H4sI is a name", f"{PACKED}\n", f" {PACKED}", "llm-01", ""])
def test_another_text_is_none(text: str) -> None:
    assert describe_packed(text) is None
