"""Whatever a test or the lab waits for, it waits for so long and no longer: what hangs ends, and says where."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.house.tree import HOUSE, ROOT, Source, sources

RUN = {"run", "call", "check_call", "check_output"}
BY_PLACE = {"wait", "join", "acquire"}  # the first argument of these is the timeout, or says not to wait
WAIT = {*BY_PLACE, "communicate"}


def unbounded(file: Source) -> Iterator[str]:
    for node in file.every(ast.Call):
        if isinstance(node.func, ast.Attribute) and (name := node.func.attr) in RUN | WAIT:
            of = ast.unparse(node.func.value)
            given = {keyword.arg for keyword in node.keywords} | (
                {"timeout"} if node.args and name in BY_PLACE else set()
            )
            if of == "subprocess" or name in WAIT:
                yield from [] if given & {"timeout", "blocking"} else [f"{of}.{name}"]
    if any(ast.unparse(node.context_expr).startswith("subprocess.Popen") for node in file.every(ast.withitem)):
        yield "with subprocess.Popen"


def test_no_wait_is_without_its_end() -> None:
    files = sources(ROOT / "tests", ROOT / "bench", HOUSE / "lab")
    found = {str(file.path.relative_to(ROOT)): set(unbounded(file)) for file in files}
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
def test_a_wait_without_its_end_is_seen(text: str, tmp_path: Path) -> None:
    (tmp_path / "waits.py").write_text(text)
    (tmp_path / "ends.py").write_text(
        "subprocess.run(['a'], timeout=1); event.wait(1); ','.join(words); lock.acquire(timeout=1)"
    )
    ends, waits = sources(tmp_path)
    assert list(unbounded(waits))
    assert not list(unbounded(ends))
