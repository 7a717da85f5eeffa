"""A version of vLLM is added to the tables of its options by a program, from what its own parser says."""

import json
from typing import Any

import pytest
import yaml

from tests.vllm.option_tables import OPTIONS, SHAPES, Read, added, as_read, options_text, parse, shapes_text

TEXTS = (OPTIONS.read_text("utf-8"), SHAPES.read_text("utf-8"))
TABLES = parse(*TEXTS)


def action(*names: str, kind: str = "str", nargs: object = None, choices: Any = (), default: Any = None) -> Any:
    return {"names": names, "nargs": nargs, "type": kind, "choices": choices, "default": default}


def read(version: str, *options: Any, **variables: Any) -> Read:
    return as_read({"version": version, "options": options, "variables": variables})


NEWEST = TABLES.versions[-1]
BEFORE = read(
    NEWEST,
    action("model_tag"),
    action("--seed", kind="int", default=0),
    action("--dtype", choices=["auto", "half"], default="auto"),
    action("--port", kind="int", default=8000),
    action("--watermark", kind="float", default=0.01),
    VLLM_USE_V2_MODEL_RUNNER=None,
    VLLM_ROCM_USE_AITER=False,
    LOCAL_RANK=0,
)
NEW = read(
    "99.0.0",
    action("model_tag"),
    action("--help", "-h", kind="_HelpAction", nargs=0),
    action("--seed", kind="int", default=7),
    action("--dtype", choices=["auto", "float8", "None"], default="auto"),
    action("--port", kind="port_or_name", default=8000),
    action("--watermark", kind="float", default=0.01),
    action("--sense", "--no-sense", "-sns", kind="EnableDisableAction", nargs=0, default=False),
    action("--steps", kind="int", nargs="+"),
    VLLM_USE_V2_MODEL_RUNNER=True,
    VLLM_ROCM_USE_AITER=True,
    VLLM_NEW=1,
    LOCAL_RANK=1,
)


def test_the_tables_are_as_the_program_writes_them() -> None:
    assert (options_text(TABLES), shapes_text(TABLES)) == TEXTS


def test_a_version_is_added_to_both_tables() -> None:
    tables = added(TABLES, BEFORE, NEW)
    assert parse(options_text(tables), shapes_text(tables)) == tables
    at = len(TABLES.versions)
    had, has = TABLES.known["options"], tables.known["options"]
    assert {name for name in has if at in has[name]} == NEW.options
    assert {name for name, positions in has.items() if positions - {at} != had.get(name, frozenset())} == set()
    assert at in tables.known["variables"]["VLLM_NEW"]
    assert "LOCAL_RANK" not in tables.known["variables"]

    def gained(kind: str) -> tuple[set[str], set[str]]:
        return {*tables.shapes[kind]} - TABLES.shapes[kind], {*TABLES.shapes[kind]} - tables.shapes[kind]

    assert gained("flags") == ({"--sense", "--no-sense"}, set())
    assert gained("several") == ({"--steps"}, set())
    assert gained("whole") == ({"--steps"}, {"--port"})  # --seed took a word in 0.11.0
    assert gained("number") == (set(), set())
    assert dict(tables.short.items() - TABLES.short.items()) == {"-sns": "--sense"}
    assert tables.choices["--dtype"] - TABLES.choices["--dtype"] == {"float8"}
    assert tables.defaults["--seed"] == {**TABLES.defaults["--seed"], "99.0.0": 7}
    assert tables.defaults["VLLM_USE_V2_MODEL_RUNNER"]["99.0.0"] is True
    assert tables.defaults.keys() == TABLES.defaults.keys()


def test_a_first_change_of_a_default_is_kept_with_what_it_was() -> None:
    after = read("99.0.0", action("--port", kind="int", default=9000))
    first = TABLES.versions[0]
    assert added(TABLES, BEFORE, after).defaults["--port"] == {first: 8000, "99.0.0": 9000}


@pytest.mark.parametrize(("before", "new"), [("0.11.0", "99.0.0"), (NEWEST, NEWEST), (NEWEST, "0.31.0")])
def test_only_what_follows_the_newest_is_added(before: str, new: str) -> None:
    with pytest.raises(ValueError, match=NEWEST):
        added(TABLES, BEFORE._replace(version=before), NEW._replace(version=new))


def test_what_a_value_has_beside_words_is_no_default() -> None:
    found = read("1.0", action("--config", default="{'level': 3}"), action("--list", default=["a"]), VLLM_X="a" * 25)
    assert found.defaults == {}
    assert yaml.safe_load(json.dumps(read("1.0", action("--cuda", default="12.8")).defaults)) == {"--cuda": "12.8"}
