"""What is found in recipes as people publish them, and what is written instead: tests/data/recipes."""

from typing import Any

import pytest

from tests.cases import read_cases
from tests.findings.linted import linted_recipe
from tests.findings.test_linter_rows import linter_of
from tests.rows import each_row
from tests.serving.situations import ROOT
from winhost.findings.condition import find_mistake
from winhost.knowledge.lint_codes import lint_codes
from winhost.model.reason import Category
from winhost.recipes.lint_docker_daemon import daemon_keys
from winhost.recipes.recipe_rows import FILE_KEYS, MENDS, ROWS, SELECTORS, is_question

FOLDER = ROOT / "tests/data/recipes"
CASES: dict[str, Any] = {
    f"{file.stem}: {name}": case for file in sorted(FOLDER.glob("*.yaml")) for name, case in read_cases(file).items()
}
KEYS = {
    "text",
    "path",
    "vllm",
    "host",
    "gpu",
    "driver",
    "linux",
    "wsl",
    "finds",
    "notes",
    "mended",
    "hides",
    "encoding",
}
LINTERS = {"daemon": "docker-daemon", "cdi": "cdi"}
EVERY = {name: (LINTERS.get(name.partition(":")[0], "serve"), case) for name, case in CASES.items()}
EVERY |= {f"row: {row.code}": (linter_of(row), row.case) for row in ROWS.values()}


@each_row("name", CASES)
def test_a_recipe(name: str) -> None:
    linter, case = EVERY[name]
    assert case.keys() <= KEYS
    found = linted_recipe(case, linter)
    more = [
        f"{each.line} {each.code.partition('.')[2]}"
        for each in found.findings
        if each.severity.category is Category.DEFECT
    ]
    assert more == case["finds"]
    assert {*case.get("notes", ())} <= {
        each.code for each in found.findings if each.severity.category is Category.ADVICE
    }
    if "mended" in case:
        assert found.mended.decode() == case["mended"]
    if "hides" in case:
        assert case["hides"] not in str(found.findings)


def test_there_are_as_many_as_were_promised() -> None:
    assert sum(not name.startswith(("daemon:", "cdi:")) for name in CASES) >= 60


def test_every_code_belongs_to_the_linter_that_prints_it() -> None:
    for name, (linter, case) in EVERY.items():
        for each in linted_recipe(case, linter).findings:
            assert each.code in lint_codes(), name


def test_every_row_says_what_to_do_and_what_it_rests_on() -> None:
    for row in ROWS.values():
        assert row.do
        assert row.evidence or row.code in ("unreadable", "a-template", "template-values")
        assert {*row.mend} <= {*MENDS}
        if of_daemon := FILE_KEYS & row.find.keys():
            assert is_asked({*row.when, *(row.find[each] for each in of_daemon)}), row.code
            assert find_mistake({**row.when, "value": row.find["value"]}, lambda _: True) is None
            continue
        assert {*row.find} <= {*SELECTORS}
        assert (
            find_mistake(
                {**row.when, "value": row.find.get("value")}, lambda asked: asked == "value" or is_question(asked)
            )
            is None
        )


def is_asked(questions: set[str]) -> bool:
    """Of daemon.json: each is a key that Docker has."""
    every = {key for kind in ("text", "flag", "list", "map", "number", "either") for key in daemon_keys()[kind].split()}
    return {question.partition(".")[0] for question in questions} <= {*every, "wsl"}


@pytest.mark.costly
@each_row("name", EVERY)
def test_what_is_mended_stays_mended(name: str) -> None:
    """Another round finds nothing that it would change, and nothing that was not found before the first."""
    linter, case = EVERY[name]
    case = {**case, "encoding": "utf-8"}
    first = linted_recipe(case, linter)
    second = linted_recipe({**case, "text": first.mended.decode()}, linter)
    assert second.mended == first.mended
    assert not [each for each in second.findings if each.fixed]
    before = linted_recipe(case, linter, mend=False)
    assert {each.code for each in second.findings} <= {each.code for each in before.findings}


@each_row(
    ("items", "found"),
    [
        ('- A="/models/x"', 1),
        ('- A="http://h:80/x"', 1),
        ('- A="value:"', 0),
        ('- A=" x "', 0),
        ('- A="a" and "b"', 0),
        ("A: '\"1.10\"'", 0),
    ],
)
def test_quotes_are_taken_away_only_where_yaml_reads_the_same_without_them(items: str, found: int) -> None:
    text = f"services:\n  llm:\n    image: vllm/vllm-openai:v0.33.0\n    environment:\n      {items}\n"
    assert sum(each.code == "serve.quotes-in-value" for each in linted_recipe({"text": text}).findings) == found
