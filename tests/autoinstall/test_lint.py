"""Files as people write them, and what Ubuntu's installer would make of them."""

from collections.abc import Iterator
from copy import deepcopy
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tests.autoinstall.layouts import MANIFEST
from tests.cases import read_cases
from tests.findings.linted import in_autoinstall
from tests.rows import each_row
from winhost.autoinstall.autoinstall_file import ROWS, Unreadable, bare, disk_of_manifest, parse_autoinstall, schema
from winhost.autoinstall.lint import lint_autoinstall
from winhost.findings.condition import find_mistake

ROOT = Path(__file__).parents[2]
CASES = read_cases(ROOT / "tests/data/autoinstall/lint.yaml")
MOST_OPTIONS = "most options, and a mirror of two disks for BIOS"


@each_row("name", CASES)
def test_the_file_is_read_as_the_installer_reads_it(name: str) -> None:
    case = CASES[name]
    found = in_autoinstall(case)
    assert sorted(found.said) == sorted(case["says"])
    assert [words for words in case.get("words", ()) if words not in found.told] == []
    assert "canary" not in found.told


def test_every_row_says_what_to_do_and_what_it_rests_on() -> None:
    assert [row.code for row in ROWS.values() if not (row.do and row.evidence)] == []


def test_a_row_asks_for_keys_that_the_installer_has() -> None:
    for row in filter(lambda row: row.find, ROWS.values()):
        assert all(map(is_key, ({row.find["key"], *row.when} - {"installer"}))), row.code
        assert find_mistake({**row.when, "value": row.find.get("value")}, lambda _: True) is None, row.code


def is_key(dotted: str) -> bool:
    *around, name = dotted.split(".")
    shapes: Any = {**schema()["sections"], "storage": {**schema()["sections"]["storage"], "layout": schema()["layout"]}}
    for part in around:
        shapes = {key.rstrip("!?"): shape for key, shape in shapes.items()}[part]
    return shapes == "map" or name in bare(shapes)  # what is in a map is not told


@given(st.text(alphabet=st.sampled_from("ab:{}[]&*!#'\"\n\t -?|>%@`,"), max_size=60))
def test_no_text_breaks_it(text: str) -> None:
    lint_autoinstall(text.encode())


def test_no_value_of_another_kind_breaks_it() -> None:
    whole = yaml.safe_load(read_cases(ROOT / "tests/data/working.yaml")[MOST_OPTIONS]["text"])
    for place in list(_places(whole)):
        for value in (7, [[1]]):
            changed = deepcopy(whole)
            *before, last = place
            reduce(lambda inner, key: inner[key], before, changed)[last] = value
            lint_autoinstall(yaml.safe_dump(changed).encode(), disks=[disk_of_manifest(MANIFEST)])


def _places(data: Any, before: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    keys = data.keys() if isinstance(data, dict) else range(len(data)) if isinstance(data, list) else ()
    for key in keys:
        yield (*before, key)
        yield from _places(data[key], (*before, key))


def test_a_small_file_of_many_values_is_refused() -> None:
    bomb = "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n"
    bomb += "".join(f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 9))
    with pytest.raises(Unreadable, match="more than 20,000"):
        parse_autoinstall(bomb)
