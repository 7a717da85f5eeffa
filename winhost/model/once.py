"""Caches the value of a function so that it is computed once, also with several threads."""

from collections.abc import Callable
from functools import wraps
from threading import RLock
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_LOCK = RLock()  # one lock for all: a function may call another one that is cached
_MISSING: Any = object()


def once(make: Callable[P, T]) -> Callable[P, T]:
    """Cache like `functools.cache`, but never run two cached functions at a time in different threads.

    Hosts are worked on in threads, and the first thread that needs shared data parses it. Some parsers are not
    thread-safe (`ast` of Python 3.11 crashed).
    """
    cached: dict[Any, T] = {}

    @wraps(make)
    def get(*args: P.args, **kwargs: P.kwargs) -> T:
        key: Any = (args, tuple(kwargs.items())) if kwargs else args
        value: T = cached.get(key, _MISSING)  # without the lock, so that a cached value never waits
        if value is _MISSING:
            with _LOCK:
                value = cached.get(key, _MISSING)
                if value is _MISSING:
                    value = cached[key] = make(*args, **kwargs)
        return value

    get.cache_clear = cached.clear  # type: ignore[attr-defined]  # for tests that count calls
    return get
