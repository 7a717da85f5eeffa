"""What is found in recipes as people publish them, and what is written instead: tests/data/recipes."""

from dataclasses import replace
from typing import Any

import pytest
from packaging.version import Version

from tests.cases import read_cases
from tests.rows import each_row
from tests.serving.situations import ROOT, linux, shipped
from winhost.compat.target import Target
from winhost.findings.condition import fault_of
from winhost.knowledge.lint_codes import lint_codes
from winhost.model.reason import Category
from winhost.recipes.lint_docker_daemon import daemon_keys
from winhost.recipes.lint_recipe import LintedRecipe, lint_cdi, lint_docker_daemon, lint_recipe
from winhost.recipes.recipe_case import RecipeTarget
from winhost.recipes.recipe_rows import FILE_KEYS, MENDS, ROWS, SELECTORS, answers
from winhost.resources.host import HostFacts

FOLDER = ROOT / "tests/data/recipes"
KEYS = {"text", "path", "vllm", "host", "linux", "wsl", "finds", "notes", "mended", "hides", "encoding"}
CASES: dict[str, Any] = {
    f"{file.stem}: {name}": case for file in sorted(FOLDER.glob("*.yaml")) for name, case in read_cases(file).items()
}
CASES |= {f"row: {row.code}": row.case for row in ROWS.values() if row.case}


def target_of(case: dict[str, Any]) -> RecipeTarget:
    stated = Version(str(case["vllm"])) if "vllm" in case else None
    path = case.get("path")
    versions = {"wsl": Version(case["wsl"])} if "wsl" in case else {}
    if "linux" in case:
        return RecipeTarget(path or "linux", stated, Target(linux(case["linux"]), "linux"))
    on = Target(host_with(**case["host"]), path or "wsl2", versions) if "host" in case else None
    return RecipeTarget(path, stated, on)


def host_with(base: str, gpu: str | None = None, driver: str | None = None) -> HostFacts:
    """A host of the examples, with other GPUs (by device id) or another driver of Windows."""
    document = shipped(base).document
    found: Any = document.resources["PciDevice"]
    records = tuple(_with_gpu(each, gpu, driver) if each.state["kind"] == "display" else each for each in found)
    return HostFacts(replace(document, resources={**document.resources, "PciDevice": records}))


def _with_gpu(record: Any, gpu: str | None, driver: str | None) -> Any:
    key = {**record.key, "device": f"VEN_10DE&DEV_{gpu}&SUBSYS_000010DE"} if gpu else record.key
    return replace(record, key=key, state={**record.state, "driver_version": driver or record.state["driver_version"]})


def linted(name: str, data: bytes, target: RecipeTarget) -> LintedRecipe:
    if name.startswith("daemon:"):
        return lint_docker_daemon(data, target, mend=True)
    return lint_cdi(data, target) if name.startswith("cdi:") else lint_recipe(data, target, mend=True)


@each_row("name", CASES)
def test_a_recipe(name: str) -> None:
    case = CASES[name]
    assert case.keys() <= KEYS
    found = linted(name, case["text"].encode(case.get("encoding", "utf-8")), target_of(case))
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


def test_every_code_has_its_case() -> None:
    cased = {said.split(" ")[1] for case in CASES.values() for said in case["finds"]}
    cased |= {note.partition(".")[2] for case in CASES.values() for note in case.get("notes", ())}
    assert cased == ROWS.keys()


def test_every_code_belongs_to_the_linter_that_prints_it() -> None:
    for name, case in CASES.items():
        for each in linted(name, case["text"].encode(case.get("encoding", "utf-8")), target_of(case)).findings:
            assert each.code in lint_codes(), name


def test_every_row_says_what_to_do_and_what_it_rests_on() -> None:
    for row in ROWS.values():
        assert row.do
        assert row.evidence or row.code in ("unreadable", "a-template", "template-values")
        assert {*row.mend} <= {*MENDS}
        if of_daemon := FILE_KEYS & row.find.keys():
            assert is_asked({*row.when, *(row.find[each] for each in of_daemon)}), row.code
            assert fault_of({**row.when, "value": row.find["value"]}, lambda _: True) is None
            continue
        assert {*row.find} <= {*SELECTORS}
        assert (
            fault_of({**row.when, "value": row.find.get("value")}, lambda asked: asked == "value" or answers(asked))
            is None
        )


def is_asked(questions: set[str]) -> bool:
    """Of daemon.json: each is a key that Docker has."""
    every = {key for kind in ("text", "flag", "list", "map", "number", "either") for key in daemon_keys()[kind].split()}
    return {question.partition(".")[0] for question in questions} <= {*every, "wsl"}


@pytest.mark.costly
@each_row("name", CASES)
def test_what_is_mended_stays_mended(name: str) -> None:
    """Another round finds nothing that it would change, and nothing new to find."""
    target = target_of(CASES[name])
    first = linted(name, CASES[name]["text"].encode(), target)
    second = linted(name, first.mended, target)
    assert second.mended == first.mended
    assert not [each for each in second.findings if each.fixed]
    assert {each.code for each in second.findings} <= {each.code for each in first.findings}


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
    assert (
        sum(each.code == "serve.quotes-in-value" for each in lint_recipe(text.encode(), target_of({})).findings)
        == found
    )
