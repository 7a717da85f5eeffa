"""A bundle's scripts are the same for every name there is; the plan carries it, and the readme shows it."""

import json
from collections.abc import Iterator
from functools import cache

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

from tests.engine.world import PLAYBOOK
from tests.hostile.hosts import TAKEN, called, with_taken
from winhost.bundle.bundle_files import SCRIPTS, bundle
from winhost.engine.planning import make_plan
from winhost.model.errors import visible
from winhost.model.plan import Plan, PlanRequest
from winhost.model.yamlfile import adapter
from winhost.paths.playbook import parse_request
from winhost.resources.host import HostFacts

NAME = "a-name-without-harm"
# rich, which prints our tables, brings this parser with it.
MARKDOWN = MarkdownIt("commonmark").enable(["table", "strikethrough"])


@cache
def plan_for(value: str) -> Plan:
    return make_plan(HostFacts(called(value).facts()), parse_request(PlanRequest("dda", PLAYBOOK, value)))


@cache
def bundle_for(value: str) -> dict[str, bytes]:
    return bundle(plan_for(value))


def harmless() -> dict[str, bytes]:
    return bundle_for(NAME)


def test_the_values_are_where_they_are_looked_for() -> None:
    """Or the tests below would compare what never had the name in it."""
    assert harmless()["README.md"].count(NAME.encode()) >= 4
    assert harmless()["plan.json"].count(NAME.encode()) >= 4


@pytest.mark.costly
@with_taken
def test_the_scripts_are_the_same_to_the_byte(value: str) -> None:
    made = bundle_for(value)
    assert made.keys() == harmless().keys()
    for script in SCRIPTS:
        assert made[script] == harmless()[script]


@with_taken
def test_the_plan_carries_the_value_unchanged(value: str) -> None:
    plan = plan_for(value)
    carried = bundle_for(value)["plan.json"].decode("utf-8")
    assert adapter(Plan).validate_python(json.loads(carried)) == plan
    assert json.loads(carried)["request"]["vm"] == value
    for line in carried.split("\n"):
        assert line.isprintable()


@pytest.mark.costly
@with_taken
def test_the_readme_shows_the_value_and_none_of_it_is_markup(value: str) -> None:
    readme = bundle_for(value)["README.md"]
    assert all(line.isprintable() for line in readme.decode("utf-8").split("\n"))
    shown = list(_pieces(readme))
    # What a page shows of several blanks, or of those at an end, is one or none.
    expected = [
        (kind, " ".join(text.replace(NAME, visible(value)).split())) for kind, text in _pieces(_harmless_readme())
    ]
    assert [(kind, " ".join(text.split())) for kind, text in shown] == expected


def test_what_would_be_markup_is_seen_by_these_tests() -> None:
    readme = _harmless_readme().decode()
    for value in (TAKEN["markdown"], TAKEN["html"], TAKEN["markdown-line"], TAKEN["markdown-table"]):
        assert [kind for kind, _ in _pieces(readme.replace(NAME, value).encode())] != [
            kind for kind, _ in _pieces(_harmless_readme())
        ]


def _harmless_readme() -> bytes:
    return harmless()["README.md"]


def _pieces(readme: bytes) -> Iterator[tuple[str, str]]:
    """Yield the parts of a page in order: each piece of markup, and the text between."""
    for token in MARKDOWN.parse(readme.decode("utf-8")):
        yield from _inline(token.children) if token.children else [(token.type, token.content)]


def _inline(children: list[Token]) -> Iterator[tuple[str, str]]:
    text = ""
    for child in children:
        if child.type == "text":
            text += child.content
            continue
        yield "text", text
        text = ""
        yield child.type, child.content
    yield "text", text
