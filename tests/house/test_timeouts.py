"""Whatever a test or the lab waits for, it waits for so long and no longer: what hangs ends, and says where."""

import ast
from collections.abc import Iterator

import pytest

from tests.house.tree import HOUSE, ROOT

BOUNDED = [*(ROOT / "tests").rglob("*.py"), *(ROOT / "bench").rglob("*.py"), *(HOUSE / "lab").rglob("*.py")]
RUN = {"run", "call", "check_call", "check_output"}
BY_PLACE = {"wait", "join", "acquire"}  # the first argument of these is the timeout, or says not to wait
WAIT = {*BY_PLACE, "communicate"}


def unbounded(text: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            name, of = node.func.attr, ast.unparse(node.func.value)
            given = {keyword.arg for keyword in node.keywords} | (
                {"timeout"} if node.args and name in BY_PLACE else set()
            )
            if (name in RUN and of == "subprocess") or name in WAIT:
                yield from [] if given & {"timeout", "blocking"} else [f"{of}.{name}"]
        elif isinstance(node, ast.withitem) and ast.unparse(node.context_expr).startswith("subprocess.Popen"):
            yield "with subprocess.Popen"


def test_no_wait_is_without_its_end() -> None:
    found = {str(path.relative_to(ROOT)): set(unbounded(path.read_text("utf-8"))) for path in BOUNDED}
    # Popen's own `with` waits for its program without an end: this one kills it first.
    found["tests/processes.py"] -= {"with subprocess.Popen"}
    assert {file: waits for file, waits in found.items() if waits} == {}


@pytest.mark.parametrize(
    "text",
    [
        "subprocess.run(['a'], check=True)",
        "process.communicate(b'')",
        "thread.join()",
        "lock.acquire()",
        "with subprocess.Popen(['a']) as process: pass",
    ],
)
def test_a_wait_without_its_end_is_seen(text: str) -> None:
    assert list(unbounded(text))
    assert not list(
        unbounded("subprocess.run(['a'], timeout=1); event.wait(1); ','.join(words); lock.acquire(timeout=1)")
    )
