"""Values that are made once and then kept, whichever thread asks first."""

from collections.abc import Callable
from functools import wraps
from threading import RLock
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_LOCK = RLock()  # one for all: what is made may need something else that is made once
_MISSING: Any = object()


def once(make: Callable[P, T]) -> Callable[P, T]:
    """Like `functools.cache`, and no two threads are ever inside `make` or of anything else that is made once.

    Hosts are worked on in threads. What they share is parsed by the first thread that needs it, and some parsers are
    not thread-safe (`ast` of Python 3.11 ended a run).
    """
    kept: dict[Any, T] = {}

    @wraps(make)
    def get(*args: P.args, **kwargs: P.kwargs) -> T:
        asked: Any = (args, tuple(kwargs.items())) if kwargs else args
        found: T = kept.get(asked, _MISSING)  # without the lock: a value that exists never waits
        if found is _MISSING:
            with _LOCK:
                found = kept.get(asked, _MISSING)
                if found is _MISSING:
                    found = kept[asked] = make(*args, **kwargs)
        return found

    get.cache_clear = kept.clear  # type: ignore[attr-defined]  # for tests that count what is made
    return get
