"""Every declaration is the same after its way through JSON: both interpreters read that."""

import json
from dataclasses import fields, is_dataclass
from typing import Any, get_args, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from winhost.core.rules import Condition, ResourceRules, as_json, from_json

JSON = st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["", "on", "off"])
TEXT = st.sampled_from(["", "state", "a b"])


def declarations(kind: Any) -> st.SearchStrategy[Any]:
    hints = get_type_hints(kind)
    return st.builds(kind, **{each.name: values(hints[each.name]) for each in fields(kind)})


def values(hint: Any) -> st.SearchStrategy[Any]:
    """Of any type that a declaration has; one that is new there fails here."""
    plain = {str: TEXT, int: st.integers(0, 9), bool: st.booleans(), Any: JSON}
    if hint in plain:
        return plain[hint]
    inner = get_args(hint)
    if type(None) in inner:
        return st.none() | values(inner[0])
    if is_dataclass(hint):
        return declarations(hint)
    if hint.__origin__ is tuple and inner[-1] is Ellipsis:
        return st.lists(values(inner[0]), max_size=2).map(tuple)
    if hint.__origin__ is tuple:
        return st.tuples(*map(values, inner))
    return st.dictionaries(TEXT, values(inner[1]), max_size=2)


@pytest.mark.costly
@given(rules=declarations(ResourceRules))
def test_what_is_written_is_what_is_read(rules: ResourceRules) -> None:
    assert from_json(ResourceRules, json.loads(json.dumps(as_json(rules)))) == rules


def test_what_a_declaration_does_not_say_is_not_written() -> None:
    assert as_json(Condition("state", one_of=("off",))) == {"property": "state", "one_of": ["off"]}


def test_a_word_that_no_declaration_has_is_refused() -> None:
    with pytest.raises(TypeError):
        from_json(Condition, {"proprety": "state"})
