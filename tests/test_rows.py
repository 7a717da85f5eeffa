"""Rows of a table in one test: all are tried, each that fails is told, and none sees what another left."""

from pathlib import Path

import pytest

from tests.rows import each_row


def failure(test: object) -> str:
    with pytest.raises(AssertionError) as caught:
        test()  # type: ignore[operator]
    return str(caught.value)


def test_every_row_is_tried_and_each_that_fails_is_told_with_what_it_says() -> None:
    tried = []

    @each_row("number, square", [(1, 1), (2, 5), pytest.param(3, 8, id="three"), (4, 16), (0, None)])
    def rows(number: int, square: int) -> None:
        tried.append(number)
        if not number:
            pytest.fail("nothing")
        assert number**2 == square

    said = failure(rows)
    assert tried == [1, 2, 3, 4, 0]
    assert said.startswith("3 of 5 rows failed: 2-5, three, 0-None\n")
    assert "assert (2 ** 2) == 5" in said, "what pytest makes of an assertion is shown"
    assert "three: line" in said
    assert "0-None: line" in said
    assert "Failed: nothing" in said


def test_other_errors_are_failures_of_their_row() -> None:
    @each_row("key", ["a", "b"], ids=["there", "not there"])
    def rows(key: str) -> None:
        assert {"a": 1}[key]

    assert failure(rows).startswith("1 of 2 rows failed: not there\n\nnot there: line ")
    assert "KeyError: 'b'" in failure(rows)


def test_two_tables_are_all_their_pairs() -> None:
    pairs = []

    @each_row("one", "ab")
    @each_row("other", lambda: (1, 2), ids="number {}".format)
    def rows(one: str, other: int) -> None:
        pairs.append((one, other))
        assert (one, other) != ("b", 2)

    said = failure(rows)
    assert said.startswith("1 of 2 rows failed: b\n")
    assert "1 of 2 rows failed: number 2\n\nnumber 2: line " in said
    assert pairs == [("a", 1), ("a", 2), ("b", 1), ("b", 2)]


def test_no_row_is_tried_after_one_that_took_all_the_time() -> None:
    @each_row("row", "abc")
    def rows(row: str) -> None:
        pytest.fail("Timeout (>300.0s) from pytest-timeout.")

    assert failure(rows).startswith("1 of 1 rows failed: a\n")


def test_a_table_without_rows_is_a_failure() -> None:
    @each_row("row", [])
    def rows(row: object) -> None: ...

    assert "is empty" in failure(rows)


def test_a_mark_of_a_row_is_refused() -> None:
    @each_row("row", [pytest.param(1, marks=pytest.mark.powershell)])
    def rows(row: object) -> None: ...

    assert "stays an item" in failure(rows)


def test_where_a_row_was_skipped_the_test_is() -> None:
    tried = []

    @each_row("row", "abc")
    def rows(row: str) -> None:
        tried.append(row)
        if row != "c":
            pytest.skip("no tool")

    with pytest.raises(pytest.skip.Exception, match="2 of 3 rows: no tool"):
        rows()
    assert tried == ["a", "b", "c"]


@each_row("row", "ab")
def test_a_row_has_its_own_folder_patches_and_output(
    row: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert not list(tmp_path.iterdir())
    (tmp_path / "file").touch()
    assert not hasattr(pytest, "of_a_row")
    monkeypatch.setattr(pytest, "of_a_row", row, raising=False)
    assert capsys.readouterr().out == ""
    print(row)  # noqa: T201
