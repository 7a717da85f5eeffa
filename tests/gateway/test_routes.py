"""Published routes, and paths that must not reach any other route, however they are written."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cases import read_cases
from tests.rows import each_row
from winhost.gateway.request_rules import ErrorAnswer
from winhost.gateway.routes import COMPLETIONS, encode_for_engine, find_route, method_of, needs_key, parse_body

MODELS = {"org/tiny": 0}
TARGETS: list[str] = read_cases(Path(__file__).parents[1] / "data/gateway/targets.yaml")
PLAIN = [*sorted(COMPLETIONS), "/v1/models", "/v1/models/org/tiny", "/health", "/ready", "/metrics"]


@each_row("target", TARGETS)
def test_nothing_else_is_published(target: str) -> None:
    assert find_route(target, MODELS) is None


@each_row("target", [*PLAIN, "/v1/models/org%2Ftiny", "/v1/completions?api-version=1"])
def test_a_route_is_found_by_its_target(target: str) -> None:
    assert find_route(target, MODELS) is not None


@given(st.sampled_from(PLAIN), st.data())
def test_no_other_writing_of_a_route_leads_to_it(path: str, data: st.DataObject) -> None:
    at = data.draw(st.integers(1, len(path) - 1))
    change = data.draw(st.sampled_from(["escape", "case", "slash", "dots", "insert"]))
    char = path[at]
    written = {
        "escape": f"%{ord(char):02x}",
        "case": char.swapcase(),
        "slash": f"/{char}",
        "dots": f"/../{char}",
        "insert": data.draw(st.text(min_size=1, max_size=3).filter(lambda text: "?" not in text)) + char,
    }[change]
    target = path[:at] + written + path[at + 1 :]
    escaped = {f"/v1/models/org%2{f}tiny" for f in "Ff"}
    assert target == path or target in PLAIN or target in escaped or find_route(target, MODELS) is None


@given(st.text())
def test_a_target_is_published_word_for_word_or_not_at_all(target: str) -> None:
    route = find_route(target, MODELS)
    assert route is None or target.partition("?")[0] in {*PLAIN, "/v1/models/org%2Ftiny"}


def test_only_health_and_readiness_need_no_key() -> None:
    assert [path for path in [*PLAIN, None] if not needs_key(path)] == ["/health", "/ready"]
    assert {method_of(route) for route in COMPLETIONS} == {"POST"}


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(), _JSON, max_size=4))
def test_an_engine_gets_what_the_client_said(request: dict[str, Any]) -> None:
    body = json.dumps({**request, "model": "org/tiny"}).encode()
    try:
        passed = encode_for_engine(parse_body(body), "tiny")
    except ErrorAnswer:
        assert any(0xD800 <= ord(char) < 0xE000 for char in str(request))  # half a character
    else:
        assert json.loads(passed) == {**request, "model": "tiny"}


@each_row(
    "body",
    [b"", b"[]", b"{}", b'{"model": 1}', b'{"model": null}', b"\xff", b"\xef\xbb\xbf{}", b'{"model": "a", "t": NaN}',
     b'{"model": "a", "t": 1e999}', b"[" * 100_000, b'{"model": "a", "t": ' + b"[" * 100_000, b'{"model": "a"} x',
     '{"model": "a"}'.encode("utf-16"), b'{"model": "a", "t": "\\ud800"}'],
)  # fmt: skip
def test_a_body_that_could_be_misread_is_not_passed_on(body: bytes) -> None:
    with pytest.raises(ErrorAnswer) as caught:
        encode_for_engine(parse_body(body), "tiny")
    assert (caught.value.status, caught.value.code) == (400, "body")


def test_of_two_models_the_engine_gets_the_one_that_was_chosen_by() -> None:
    found = parse_body(b'{"model": "secret", "model": "org/tiny"}')
    assert (found["model"], encode_for_engine(found, "tiny")) == ("org/tiny", b'{"model":"tiny"}')
