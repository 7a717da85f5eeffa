"""A value that threads share is computed by one of them, alone."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.processes import PATIENCE_S
from winhost.model.once import once
from winhost.resources.linux import linux_scripts

AT_ONCE = 8


@pytest.fixture(autouse=True)
def _often() -> Iterator[None]:
    """Threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def together(work: Callable[[], object]) -> list[object]:
    ready = threading.Barrier(AT_ONCE)

    def one(_: int) -> object:
        ready.wait(PATIENCE_S)
        return work()

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(one, range(AT_ONCE)))


def test_what_all_need_first_is_made_once_and_by_nobody_else_meanwhile() -> None:
    inside, most, made = 0, 0, 0

    @once
    def other() -> str:
        return made_alone()

    @once
    def this() -> str:
        return other() + made_alone()

    def made_alone() -> str:
        nonlocal inside, most, made
        inside, made = inside + 1, made + 1
        most = max(most, inside)
        time.sleep(0.01)
        inside -= 1
        return "x"

    assert together(this) == ["xx"] * AT_ONCE
    assert (most, made) == (1, 2)


def test_the_agent_for_linux_is_put_together_by_one_of_the_threads_that_need_it() -> None:
    """`ast.parse` of Python 3.11 in two threads at once: SystemError, AST constructor recursion depth mismatch."""
    for _ in range(5):
        linux_scripts.agent_text.cache_clear()
        assert len(set(together(linux_scripts.session_text))) == 1


def test_nobody_waits_for_what_is_there() -> None:
    begun, go_on = threading.Event(), threading.Event()

    @once
    def there() -> str:
        return "there"

    @once
    def slow() -> str:
        begun.set()
        assert go_on.wait(PATIENCE_S)
        return "made"

    assert there() == "there"
    with ThreadPoolExecutor(1) as pool:
        making = pool.submit(slow)
        assert begun.wait(PATIENCE_S)
        try:
            assert ThreadPoolExecutor(1).submit(there).result(PATIENCE_S) == "there"
        finally:
            go_on.set()
        assert making.result() == "made"
