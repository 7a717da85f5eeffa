"""Errors that users see, known by their code."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from winhost.model.errors import WinhostError


def raises(*codes: str, match: str | None = None) -> pytest.RaisesExc[WinhostError]:
    """Like `pytest.raises`, for an error with one of these codes."""
    return pytest.raises(WinhostError, match=match, check=lambda error: error.code in codes)


def faults(error: WinhostError) -> list[str]:
    """The faults that the error of a file lists, one text each."""
    return (error.meaning or error.what).splitlines()


@contextmanager
def suppressed(*codes: str) -> Iterator[None]:
    """Like `contextlib.suppress`, for an error with one of these codes."""
    try:
        yield
    except WinhostError as error:
        if error.code not in codes:
            raise
