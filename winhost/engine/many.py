"""Work on several hosts in a bounded number of threads. Results are in order, and a failure does not stop the
others.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Generic, TypeVar

from winhost.core.dataclass import dataclass
from winhost.model.errors import WinhostError

W = TypeVar("W")
T = TypeVar("T")

# A signal that arrives just as the main thread starts to wait does not end that wait. It is handled after these
# seconds.
_SIGNAL_POLL_S = 0.5


@dataclass(frozen=True)
class WorkResult(Generic[W, T]):
    """The outcome for one item: a value or an error; or, if the work was not started, the item that failed before."""

    item: W
    value: T | None = None
    error: WinhostError | None = None
    failed_item: W | None = None

    @property
    def required_value(self) -> T:
        """The value of a successful result."""
        assert self.value is not None
        return self.value


def raise_unexpected(error: Exception) -> WinhostError:
    """Return an error that is meant for users; raise any other."""
    if isinstance(error, WinhostError):
        return error
    raise error


def run_all(
    items: Sequence[W],
    do: Callable[[W], T],
    *,
    at_once: int = 16,
    stop_on_failure: bool = False,
    to_user_error: Callable[[Exception], WinhostError] = raise_unexpected,
) -> list[WorkResult[W, T]]:
    """Do the work for all items and return the results in their order. to_user_error: converts an exception; what it
    raises ends the work for all items.
    """
    return list(
        run_streaming(
            items, do, at_once=at_once, stop_on_failure=stop_on_failure, ahead=len(items), to_user_error=to_user_error
        )
    )


def run_streaming(
    items: Sequence[W],
    do: Callable[[W], T],
    *,
    at_once: int = 16,
    stop_on_failure: bool = False,
    ahead: int = 64,
    abandon_running: bool = False,
    to_user_error: Callable[[Exception], WinhostError] = raise_unexpected,
) -> Iterator[WorkResult[W, T]]:
    """Yield results one by one, so that memory does not grow with the number of hosts. ahead: the number of results
    that may wait for a slow one, before no further work is started. abandon_running: when the generator is closed, do
    not wait for running work, because it changes nothing.
    """
    failed: list[W] = []

    def run_one(item: W) -> WorkResult[W, T]:
        if stop_on_failure and failed:
            return WorkResult(item, failed_item=failed[0])
        try:
            return WorkResult(item, do(item))
        except Exception as error:  # noqa: BLE001 - any error concerns one host only
            failed.append(item)
            return WorkResult(item, error=to_user_error(error))

    if len(items) == 1:  # in this thread, where Ctrl-C arrives
        yield run_one(items[0])
    else:
        yield from _run_in_threads(items, run_one, max(1, min(at_once, len(items))), ahead, abandon_running)


def _run_in_threads(
    items: Sequence[W], run_one: Callable[[W], T], threads: int, ahead: int, abandon_running: bool
) -> Iterator[T]:
    waiting: deque[Future[T]] = deque()
    pool = ThreadPoolExecutor(max_workers=threads)
    try:
        for item in items:
            waiting.append(pool.submit(run_one, item))
            if len(waiting) > max(ahead, threads):
                yield _result(waiting.popleft())
        while waiting:
            yield _result(waiting.popleft())
    finally:  # work that has not started is cancelled
        pool.shutdown(wait=not abandon_running, cancel_futures=True)


def _result(future: Future[T]) -> T:
    while not future.done():
        wait([future], timeout=_SIGNAL_POLL_S)
    return future.result()
