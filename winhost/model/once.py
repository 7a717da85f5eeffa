"""What is made once and then kept, whichever thread asks for it first."""

from collections.abc import Callable
from functools import cache, wraps
from threading import RLock
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_MAKING = RLock()  # one for all: what is made may need something else that is made once


def once(make: Callable[P, T]) -> Callable[P, T]:
    """As `functools.cache`, and no two threads are ever inside `make` or of anything else that is made once.

    Hosts are worked on in threads. What they share is parsed by the first that needs it, and the parsers it goes
    through (`ast` in Python 3.11 for one, which ended a run) take two at a time badly.
    """
    kept = cache(make)

    @wraps(make)
    def get(*args: P.args, **kwargs: P.kwargs) -> T:
        with _MAKING:
            return kept(*args, **kwargs)  # type: ignore[arg-type]  # as with `cache`, arguments must be hashable

    get.cache_clear = kept.cache_clear  # type: ignore[attr-defined]  # for tests that count what is made
    return get
