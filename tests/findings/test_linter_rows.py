"""Each row of a linter is found in its own case, with nothing beside it that the case does not name."""

from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

from tests.findings.linted import Case, Linted, in_autoinstall, in_recipe, in_wsl_file, linted_recipe
from tests.rows import each_row
from winhost.autoinstall import autoinstall_file
from winhost.findings.finding import Row
from winhost.knowledge.lint_codes import lint_codes
from winhost.recipes import recipe_rows
from winhost.wslconfig import rules as wslconfig_rules

ANY = {"text", "encoding", "line", "also", "words"}
OF_WSL = ANY | {"file", "wsl", "forbidden", "host"}
OF_AUTOINSTALL = ANY - {"encoding"} | {"section", "entries", "installer", "facts"}
OF_RECIPES = ANY | {"path", "vllm", "host", "gpu", "driver", "wsl", "linux", "fixed"}
# The plainest start in each form. Advice on it comes with every recipe, and no case names it.
PLAIN = [
    "vllm serve m --host 127.0.0.1",
    "docker run --gpus all vllm/vllm-openai:v0.33.0 m",
    "services:\n  llm:\n    image: vllm/vllm-openai:v0.33.0\n    gpus: all\n    command: m\n",
    "[Service]\nExecStart=/opt/vllm/bin/vllm serve m --host 127.0.0.1\n",
    "kind: Pod\nspec:\n  containers:\n  - image: vllm/vllm-openai:v0.33.0\n    args: [m]\n"
    "    resources: {limits: {nvidia.com/gpu: 1}}\n",
]


def rows() -> Iterator[tuple[str, Row, set[str], Callable[[Case], Linted]]]:
    """Each row of each linter, with the keys that its case may have, and its linter."""
    for row in wslconfig_rules.ROWS.values():
        yield f"wslconfig.{row.code}", row, OF_WSL, in_wsl_file
    for row in autoinstall_file.ROWS.values():
        yield f"autoinstall.{row.code}", row, OF_AUTOINSTALL, in_autoinstall
    for row in recipe_rows.ROWS.values():
        linter = linter_of(row)
        yield f"{linter}.{row.code}", row, OF_RECIPES, partial(in_recipe, linter=linter)


def linter_of(row: Row) -> str:
    """The linter of a row of recipes/: the first one, where several print its code."""
    return next(each for each in ("serve", "docker-daemon", "cdi") if f"{each}.{row.code}" in lint_codes())


@cache
def with_every_start() -> frozenset[str]:
    found = [each for text in PLAIN for each in linted_recipe({"text": text}).findings]
    found += linted_recipe({"text": "{}"}, "docker-daemon").findings
    return frozenset(each.code for each in found)


@each_row(("name", "row", "keys", "lint"), rows)
def test_a_row_is_found_in_its_case(name: str, row: Row, keys: set[str], lint: Callable[[Case], Linted]) -> None:
    case: dict[str, Any] = dict(row.case)
    assert case, "the row has no case"
    assert case.keys() <= keys
    found = lint(case)
    assert f"{case.get('line', 1)} {row.code}" in found.said
    linter = name.partition(".")[0]
    others = {each.code for each in found.findings if each.code not in with_every_start()}
    beside = {code.partition(".")[2] for code in others} - {row.code}
    assert beside == {*case.get("also", ())}
    assert [words for words in case.get("words", ()) if words not in found.told] == []
    mended = any(each.fixed for each in found.findings if each.code.partition(".")[2] == row.code)
    assert mended == ("fixed" in case), f"{linter}: `fixed` is what --fix makes of it: {found.mended!r}"
    if "fixed" in case:
        assert found.mended == case["fixed"].encode()
