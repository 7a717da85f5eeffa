"""config.json of models, under the names that they use."""

from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cases import read_cases
from tests.rows import each_row
from winhost.hub.draft import config_notes
from winhost.hub.model_config import model_config
from winhost.hub.weights import Weights

CASES: dict[str, Any] = read_cases(Path(__file__).parents[1] / "data/hub_configs.yaml")
WEIGHTS = Weights({"BF16": 1}, 2, False, 1)


@each_row("case", CASES.values(), ids=CASES)
def test_what_it_says_is_known_and_no_more(case: dict[str, Any]) -> None:
    assert case.keys() == {"config", "known", "look"}
    found = model_config(case["config"])
    known = {name: getattr(found, name) for name in case["known"]}
    assert {name: list(value) if isinstance(value, tuple) else value for name, value in known.items()} == case["known"]
    said = list(config_notes(found, WEIGHTS))
    assert len(said) == len(case["look"])
    for word, look in zip(sorted(case["look"]), sorted(said, key=lambda look: first_word(look, case)), strict=True):
        assert word in look


def first_word(look: str, case: dict[str, Any]) -> str:
    return next((word for word in sorted(case["look"]) if word in look), "")


NAMES = sorted({name for case in CASES.values() for name in case["config"]})
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES) | st.text(max_size=3), inner),
    max_leaves=8,
)


@settings(max_examples=50, deadline=None)
@given(st.dictionaries(st.sampled_from(NAMES), VALUES))
def test_whatever_it_holds_is_read(document: dict[str, Any]) -> None:
    found = model_config(document)
    assert all(look.isprintable() and look.isascii() for look in config_notes(found, None))
