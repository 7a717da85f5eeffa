"""The same for several hosts at once: bounded threads, results in order, one failure does not stop the others."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, TypeVar

from winhost.model.errors import WinhostError

W = TypeVar("W")
T = TypeVar("T")


@dataclass(frozen=True)
class Result(Generic[W, T]):
    """What came of one piece of work: a value, or the error; or the work that failed, so that this was not begun."""

    work: W
    value: T | None = None
    error: WinhostError | None = None
    because: W | None = None


def each(
    works: Sequence[W], do: Callable[[W], T], *, at_once: int = 16, stop_on_failure: bool = False
) -> list[Result[W, T]]:
    """Results in the order of `works`. Only errors meant for users are results; a defect is raised."""
    failed: list[W] = []

    def one(work: W) -> Result[W, T]:
        if stop_on_failure and failed:
            return Result(work, because=failed[0])
        try:
            return Result(work, do(work))
        except WinhostError as error:
            failed.append(work)
            return Result(work, error=error)

    if len(works) == 1:  # in this thread, where Ctrl-C arrives
        return [one(works[0])]
    with ThreadPoolExecutor(max_workers=max(1, min(at_once, len(works)))) as pool:
        return list(pool.map(one, works))
