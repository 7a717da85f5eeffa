"""Work on several hosts at once: bounded threads, results in order; one failure does not stop the others."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Generic, TypeVar

from winhost.core.dataclass import dataclass
from winhost.model.errors import WinhostError

W = TypeVar("W")
T = TypeVar("T")

# Seconds until a signal is heard that arrived as the main thread began to wait, too late to end that wait.
_SIGNAL_POLL_S = 0.5


@dataclass(frozen=True)
class WorkResult(Generic[W, T]):
    """The outcome of one piece of work: a value, or the error; or the failed work because of which it was not begun."""

    item: W
    value: T | None = None
    error: WinhostError | None = None
    failed_item: W | None = None

    @property
    def required_value(self) -> T:
        """The value, where there is one."""
        assert self.value is not None
        return self.value


def raise_unexpected(error: Exception) -> WinhostError:
    """Return an error meant for users as a result, and raise any other."""
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
    """Results in the order of `items`. ours: what an error is for users; what it raises ends all of them."""
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
    """Yield results one by one, so that memory does not grow with the number of hosts. ahead: how many results may wait
    for one that is slow; work beyond them begins when that is there. leave: whoever asks for no more does not wait for
    what runs, because it changes nothing.
    """
    failed: list[W] = []

    def run_one(item: W) -> WorkResult[W, T]:
        if stop_on_failure and failed:
            return WorkResult(item, failed_item=failed[0])
        try:
            return WorkResult(item, do(item))
        except Exception as error:  # noqa: BLE001 - whatever it is, it is one host's
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
    finally:  # nobody waits for what has not begun
        pool.shutdown(wait=not abandon_running, cancel_futures=True)


def _result(future: Future[T]) -> T:
    while not future.done():
        wait([future], timeout=_SIGNAL_POLL_S)
    return future.result()
