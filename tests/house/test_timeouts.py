"""Every wait in tests and in the lab ends, and says where; no test fails because a machine is slow.

A limit only ends what hangs: 300 s at least, or less than a second where a loop looks again and again. A promise about
cost is counted in work, not in seconds.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.house.tree import HOUSE, ROOT, Source, sources
from tests.processes import PATIENCE_S

TESTS = (ROOT / "tests", ROOT / "bench")
RUN = {"run", "call", "check_call", "check_output"}
BY_POSITION = {"wait", "join", "acquire"}  # the first argument of these is the timeout, or says not to wait
WAIT = {*BY_POSITION, "communicate"}
LIMITS = {*WAIT, *RUN, "settimeout", "result", "timeout", "urlopen", "create_connection", "HTTPConnection"}
CLOCKS = ("time.monotonic()", "time.time()", "time.perf_counter()", "time.process_time()")
# The limit of these is their subject, or one of many tries.
SHORT = {"tests/connect/sshd.py": 1, "tests/serving/test_ready.py": 3}


def unbounded(file: Source) -> Iterator[str]:
    for node in file.every(ast.Call):
        if isinstance(node.func, ast.Attribute) and (name := node.func.attr) in RUN | WAIT:
            of = ast.unparse(node.func.value)
            given = {keyword.arg for keyword in node.keywords} | (
                {"timeout"} if node.args and name in BY_POSITION else set()
            )
            if of == "subprocess" or name in WAIT:
                yield from [] if given & {"timeout", "blocking"} else [f"{of}.{name}"]
    if any(ast.unparse(node.context_expr).startswith("subprocess.Popen") for node in file.every(ast.withitem)):
        yield "with subprocess.Popen"


def is_short(limit: ast.expr, allowed: float) -> bool:
    seconds = limit.value if isinstance(limit, ast.Constant) else None
    return isinstance(seconds, int | float) and 1 <= seconds < PATIENCE_S and seconds != allowed


def hurried(file: Source, allowed: float = 0) -> Iterator[str]:
    """Limits that a slow machine meets, and assertions that something took less than some time."""
    for node in (*file.every(ast.Call), *file.every(ast.Assert), *file.every(ast.BinOp)):
        match node:
            case ast.Call(func=called, args=args, keywords=keywords) if ast.unparse(called).split(".")[-1] in LIMITS:
                given = [*args[:1], *(keyword.value for keyword in keywords if keyword.arg == "timeout")]
                yield from [ast.unparse(node)] if any(is_short(each, allowed) for each in given) else []
            case ast.Assert(test=ast.Compare(left=ast.BinOp(left=clock, op=ast.Sub()), ops=[ast.Lt() | ast.LtE()])):
                yield from [ast.unparse(node)] if ast.unparse(clock) in CLOCKS else []
            case ast.BinOp(left=clock, op=ast.Add(), right=limit) if ast.unparse(clock) in CLOCKS:
                yield from [ast.unparse(node)] if is_short(limit, allowed) else []
    for loop in file.every(ast.For):
        match loop.iter:
            case ast.Call(func=ast.Name("range"), args=[ast.Constant(int(turns))]):
                yield from [ast.unparse(loop)] if 1 <= turns * sum(pauses(loop)) < PATIENCE_S else []


def pauses(loop: ast.For) -> Iterator[float]:
    """The seconds that one turn of it waits, by the clock of the machine."""
    for node in ast.walk(loop):
        match node:
            case ast.Call(func=ast.Attribute(of, "sleep" | "wait"), args=[ast.Constant(int() | float() as seconds)]):
                yield 0 if ast.unparse(of) == "asyncio" else seconds


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def test_no_wait_is_without_its_end() -> None:
    found = {name_of(file.path): set(unbounded(file)) for file in sources(*TESTS, HOUSE / "lab")}
    # Popen's own `with` waits for its program without an end: this one kills it first.
    found["tests/processes.py"] -= {"with subprocess.Popen"}
    assert {file: waits for file, waits in found.items() if waits} == {}


def test_no_test_is_in_a_hurry() -> None:
    found = {name_of(file.path): [*hurried(file, SHORT.get(name_of(file.path), 0))] for file in sources(*TESTS)}
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


@pytest.mark.parametrize(
    "text",
    [
        "subprocess.run(['a'], timeout=60)",
        "thread.join(10)",
        "pytest.mark.timeout(120)",
        "until = time.monotonic() + 20",
        "assert time.monotonic() - began < 5",
        "for _ in range(100):\n    time.sleep(0.05)",
    ],
)
def test_a_hurry_is_seen(text: str, tmp_path: Path) -> None:
    (tmp_path / "hurried.py").write_text(text)
    (tmp_path / "patient.py").write_text(
        "event.wait(0.05); pytest.mark.timeout(600); ','.join(words); until = time.monotonic() + N\n"
        "for _ in range(25):\n    time.sleep(0.02)\n"
        "for _ in range(3000):\n    time.sleep(0.1)"
    )
    hasty, patient = sources(tmp_path)
    assert list(hurried(hasty))
    assert not list(hurried(patient))
