"""Each row of a linter is found in its own case, with nothing beside it that the case does not name."""

from collections.abc import Callable
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


@cache
def rows() -> dict[str, tuple[Row, set[str], Callable[[Case], Linted]]]:
    """Each row of each linter, with the keys that its case may have, and its linter."""
    every = {f"wslconfig.{code}": (row, OF_WSL, in_wsl_file) for code, row in wslconfig_rules.ROWS.items()}
    every |= {
        f"autoinstall.{code}": (row, OF_AUTOINSTALL, in_autoinstall) for code, row in autoinstall_file.ROWS.items()
    }
    for code, row in recipe_rows.ROWS.items():
        every[f"{linter_of(row)}.{code}"] = (row, OF_RECIPES, partial(in_recipe, linter=linter_of(row)))
    return every


def linter_of(row: Row) -> str:
    """The linter of a row of recipes/: the first one, where several print its code."""
    return next(each for each in ("serve", "docker-daemon", "cdi") if f"{each}.{row.code}" in lint_codes())


@cache
def with_every_start() -> frozenset[str]:
    found = [each for text in PLAIN for each in linted_recipe({"text": text}).findings]
    found += linted_recipe({"text": "{}"}, "docker-daemon").findings
    return frozenset(each.code for each in found)


@each_row("name", rows)
def test_a_row_is_found_in_its_case(name: str) -> None:
    row, keys, lint = rows()[name]
    case: dict[str, Any] = dict(row.case)
    assert case, "the row has no case"
    assert case.keys() <= keys
    found = lint(case)
    assert f"{case.get('line', 1)} {row.code}" in found.said
    others = {each.code for each in found.findings if each.code not in with_every_start()}
    assert {code.partition(".")[2] for code in others} - {row.code} == {*case.get("also", ())}
    assert [words for words in case.get("words", ()) if words not in found.told] == []
    mended = any(each.fixed for each in found.findings if each.code.partition(".")[2] == row.code)
    assert (found.mended if mended else None) == (case["fixed"].encode() if "fixed" in case else None)
