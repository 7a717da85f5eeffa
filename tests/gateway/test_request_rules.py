"""Fields of bodies: those that clients send are accepted, and those that a client could misuse are refused by name."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cases import read_cases
from tests.rows import each_row
from winhost.gateway.request_rules import (
    BOUNDS,
    COUNTS,
    FIELDS,
    RESERVED,
    BodyRules,
    ErrorAnswer,
    check,
    parse_rules,
)
from winhost.gateway.routes import COMPLETIONS
from winhost.gateway.settings_values import WrongSettings
from winhost.model.workload import BODY_BOUNDS

DATA = Path(__file__).parents[1] / "data/gateway"
CASES: dict[str, Any] = read_cases(DATA / "bodies.yaml")
OF_VLLM: dict[str, dict[str, str]] = read_cases(DATA / "vllm_fields.yaml")["fields"]
NONE = BodyRules()
HOSTS = parse_rules({"media": ["images.example.org", "media.example.org:9000"]}, "body")


def refused(body: dict[str, Any], route: str, rules: BodyRules = NONE) -> ErrorAnswer | None:
    try:
        check({"model": "m", **body}, f"/v1/{route}", rules)
    except ErrorAnswer as why:
        return why
    return None


def an_image(url: object) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}]}


@each_row("case", CASES["passes"], ids=lambda case: case["name"])
def test_what_clients_send_passes(case: dict[str, Any]) -> None:
    found = refused(case["body"], case["route"])
    assert found is None, (found.param, found.message)


@each_row("case", CASES["refused"], ids=lambda case: case["name"])
def test_what_could_be_misused_is_refused_by_its_name(case: dict[str, Any]) -> None:
    found = refused(case["body"], case["route"])
    assert found
    assert (found.status, found.code, found.param) == (400, case["code"], case["param"])
    assert "`body." in found.message or case["param"] in found.message


@each_row(
    "case", [each for each in CASES["refused"] if each["code"] == "unknown_parameter"], ids=lambda case: case["name"]
)
def test_a_model_may_allow_what_is_not_on_the_list(case: dict[str, Any]) -> None:
    """The message of a refusal says how to allow the field."""
    found = refused(case["body"], case["route"])
    assert found
    named = found.message.partition("`body.fields: [")[2].partition("]")[0]
    allowed = parse_rules({"fields": [named], "most": {"prompt_logprobs": 5}}, "body")
    again = refused(case["body"], case["route"], allowed)
    assert again is None or again.param != found.param


def test_all_fields_of_all_versions_are_decided() -> None:
    assert {f"/v1/{route.removeprefix('/v1/')}" for route in OF_VLLM} == COMPLETIONS == FIELDS.keys()
    for route, by_version in OF_VLLM.items():
        names = {name for words in by_version.values() for name in words.split()}
        assert names - FIELDS[route] - RESERVED.keys() == set(), route
        assert not FIELDS[route] & RESERVED.keys()


def test_bounds_can_be_changed_for_a_model() -> None:
    rules = parse_rules({"most": {"n": 32, "max_tokens": 100, "sequences": 40}}, "body")
    assert refused({"messages": [], "n": 32}, "chat/completions", rules) is None
    assert refused({"messages": [], "max_completion_tokens": 101}, "chat/completions", rules)
    assert refused({"prompt": ["a", "b"], "n": 32}, "completions", rules)
    assert refused({"prompt": ["a"] * 40}, "completions", rules) is None
    assert refused({"input": ["a"] * 2049}, "embeddings")
    assert refused({"input": list(range(3000))}, "embeddings") is None
    assert refused({"input": [{"role": "user", "content": "a"}] * 3000}, "responses") is None


@each_row("url", CASES["urls"]["good"])
def test_media_come_from_hosts_that_are_allowed(url: str) -> None:
    assert refused(an_image(url), "chat/completions", HOSTS) is None


@each_row("url", CASES["urls"]["bad"])
def test_media_come_from_nowhere_else(url: str) -> None:
    found = refused(an_image(url), "chat/completions", HOSTS)
    assert found
    assert found.code == "invalid_media_url"


@given(
    st.text(max_size=40),
    st.sampled_from(["{}", "http://{}", "http://images.example.org{}", "http://{}@images.example.org/"]),
)
def test_no_url_leads_to_another_host(text: str, form: str) -> None:
    url = form.format(text)
    if refused(an_image(url), "chat/completions", HOSTS) is None:
        host = url.partition("://")[2].partition("/")[0].lower()
        assert url.startswith("data:") or host in (
            "images.example.org",
            "images.example.org:80",
            "media.example.org:9000",
        )


def test_a_deep_body_is_looked_through_without_recursion() -> None:
    part: Any = {"image_url": "http://10.0.0.1/"}
    for _ in range(50_000):
        part = [part]
    assert refused({"messages": part}, "chat/completions")


@each_row(
    ("value", "says"),
    [
        ({"field": []}, "'field' is no setting"),
        ({"fields": "priority"}, "body.fields: a list is expected"),
        ({"fields": ["a b"]}, "body.fields: 'a b' does not match"),
        ({"fields": ["*"]}, "body.fields: '*' does not match"),
        ({"media": ["https://example.org"]}, "body.media: 'https://example.org' does not match"),
        ({"media": ["10.0.0.1"]}, "body.media: '10.0.0.1' does not match"),
        ({"media": ["10.0.0.1:80"]}, "body.media: '10.0.0.1:80' does not match"),
        ({"media": ["localhost"]}, "body.media: 'localhost' does not match"),
        ({"media": ["*.example.org"]}, "does not match"),
        ({"media": ["EXAMPLE.org"]}, "does not match"),
        ({"most": {"temperature": 1}}, "'temperature' is no setting"),
        ({"most": {"n": 0}}, "body.most.n: a whole number from 1"),
        ({"most": {"n": True}}, "body.most.n: a whole number"),
    ],
)
def test_settings_are_checked(value: dict[str, Any], says: str) -> None:
    with pytest.raises(WrongSettings) as wrong:
        parse_rules(value, "body")
    assert says in str(wrong.value)


def test_each_bound_is_of_a_field_and_one_of_a_workload() -> None:
    assert {*BOUNDS, *COUNTS} == {*BODY_BOUNDS}
    every = {name for names in FIELDS.values() for name in names} | RESERVED.keys()
    assert {*BOUNDS, *COUNTS} - {"sequences", "inputs"} <= every
