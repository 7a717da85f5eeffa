"""A table of cases within one test: every row is tried, and the test fails once, with each row that failed.

A row costs nothing but its own work, where an item of pytest costs a millisecond, several times over with xdist.
Rows that cost more than 0.1 s each stay items, so that several processes share them.
"""

import inspect
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from functools import wraps
from pathlib import Path
from typing import Any

import pytest

Table = Iterable[Any]
Ids = Callable[[Any], object] | Iterable[object] | None
Test = Callable[..., None]
FAILURES = (Exception, pytest.fail.Exception)


def each_row(
    names: str | tuple[str, ...], table: Table | Callable[[], Table], *, ids: Ids = None
) -> Callable[[Test], Test]:
    """Call the test with every row of a table, where `pytest.mark.parametrize` would make an item of each.

    names, table, ids: as there. A function that returns the table is called when the test runs, not when it is
    collected.
    `tmp_path`, `monkeypatch` and `capsys` of the test are made anew for each row; other fixtures are shared by all.
    """
    told = tuple(name.strip() for name in names.split(",")) if isinstance(names, str) else tuple(names)

    def loop(test: Test) -> Test:
        signature = inspect.signature(test)
        assert set(told) <= signature.parameters.keys(), f"{test.__name__} takes no {told}"

        @wraps(test)
        def every(**fixtures: Any) -> None:
            _try_all(test, _named(told, table() if callable(table) else table, ids), fixtures)

        rest = [parameter for name, parameter in signature.parameters.items() if name not in told]
        every.__signature__ = signature.replace(parameters=rest)  # type: ignore[attr-defined]
        return every

    return loop


def _try_all(test: Test, rows: Iterator[tuple[str, dict[str, Any]]], fixtures: dict[str, Any]) -> None:
    tried = 0
    failed: dict[str, BaseException] = {}
    skipped: dict[str, str] = {}
    for name, values in rows:
        tried += 1
        try:
            with ExitStack() as stack:
                test(**_fresh(fixtures, tried, stack), **values)
        except pytest.skip.Exception as why:
            skipped[name] = str(why)
        except FAILURES as error:
            failed[name if name not in failed else f"{name} ({tried})"] = error
            if "from pytest-timeout" in str(error):
                break  # the time of the whole test is over: nothing would end a later row that hangs
    assert tried, f"the table of {test.__name__} is empty"
    if failed:
        raise AssertionError(_listed(failed, tried, test)) from next(iter(failed.values()))
    if skipped:
        pytest.skip(f"{len(skipped)} of {tried} rows: {'; '.join(sorted({*skipped.values()}))}")


def _named(names: tuple[str, ...], table: Table, ids: Ids) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each row with its name, as the arguments that it stands for."""
    rows = list(table)
    keys = [None] * len(rows) if ids is None or callable(ids) else [str(key) for key in ids]
    for key, row in zip(keys, rows, strict=True):
        if isinstance(row, type(pytest.param())):
            assert not row.marks, "a row has no marks: what is marked stays an item"
            key, values = row.id or key, row.values
        else:
            values = tuple(row) if len(names) > 1 else (row,)
        assert len(values) == len(names), f"{values} for {names}"
        name = key or "-".join(_said(value, ids) for value in values)
        yield name, dict(zip(names, values, strict=True))


def _said(value: Any, ids: Ids) -> str:
    if callable(ids) and (given := ids(value)) is not None:
        return str(given)
    return value if isinstance(value, str) else getattr(value, "__qualname__", repr(value)[:100])


def _fresh(fixtures: dict[str, Any], number: int, stack: ExitStack) -> dict[str, Any]:
    made = dict(fixtures)
    if "tmp_path" in made:
        made["tmp_path"] = Path(made["tmp_path"]) / f"row-{number}"
        made["tmp_path"].mkdir()
    if "monkeypatch" in made:
        made["monkeypatch"] = stack.enter_context(pytest.MonkeyPatch.context())
    if "capsys" in made:
        made["capsys"].readouterr()
    return made


def _listed(failed: dict[str, BaseException], tried: int, test: Test) -> str:
    """List the failed rows, then the message and line of each; the first is also shown in full."""
    rows = "\n\n".join(f"{name}: {_reason(error, test)}" for name, error in failed.items())
    return f"{len(failed)} of {tried} rows failed: {', '.join(failed)}\n\n{rows}"


def _reason(error: BaseException, test: Test) -> str:
    file = inspect.unwrap(test).__code__.co_filename
    frames = traceback.extract_tb(error.__traceback__)
    line = next((frame.lineno for frame in reversed(frames) if frame.filename == file), None)
    place = f"line {line}: " if line else ""  # a table within a table says the line of each of its own rows
    return place + "".join(traceback.format_exception_only(error)).strip()
