"""Imported packages are declared, and declared ones are locked: a fresh machine gets what was tested."""

import ast
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator
from importlib.metadata import packages_distributions

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.house.tree import ROOT, sources

OURS = {"winhost", "winhost_weights", "tests", "bench"}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
RUNTIME = [Requirement(line) for line in PROJECT["project"]["dependencies"]]
EXTRAS = [Requirement(line) for lines in PROJECT["project"]["optional-dependencies"].values() for line in lines]
DEV = [Requirement(line) for line in PROJECT["dependency-groups"]["dev"]]
OF_THE_IMAGE = {"huggingface_hub"}  # what runs in pods finds it in vLLM's image
OF_VLLM = {"openai", "safetensors", "tokenizers", "torch", "transformers", "vllm"}  # of tests/vllm
LOCK = (ROOT / "requirements-dev.txt").read_text("utf-8").splitlines()


def imported(folders: Iterable[str]) -> Iterator[str]:
    for file in sources(*(ROOT / folder for folder in folders)):
        yield from (name.name.partition(".")[0] for node in file.every(ast.Import) for name in node.names)
        for node in file.every(ast.ImportFrom):
            if node.module and not node.level:
                yield node.module.partition(".")[0]


def undeclared(folders: Iterable[str], declared: Iterable[Requirement]) -> set[str]:
    names = {canonicalize_name(each.name) for each in declared}
    found = packages_distributions()
    foreign = set(imported(folders)) - OURS - sys.stdlib_module_names
    return {name for name in foreign if not names & {canonicalize_name(each) for each in found.get(name, [name])}}


def test_what_the_product_imports_is_declared() -> None:
    assert undeclared(["winhost"], [*RUNTIME, *EXTRAS]) == OF_THE_IMAGE
    others = [f"winhost/{path.name}" for path in (ROOT / "winhost").iterdir() if path.name != "cluster"]
    assert not OF_THE_IMAGE & set(imported(others))


def test_what_runs_in_an_engines_python_imports_what_is_there() -> None:
    assert set(imported(["winhost_weights"])) - sys.stdlib_module_names == {
        "nvidia",
        "torch",
        "vllm",
        "winhost_weights",
    }


def test_what_tests_import_is_declared() -> None:
    assert undeclared(["tests", "bench"], [*RUNTIME, *DEV]) == OF_VLLM
    others = [f"tests/{path.name}" for path in (ROOT / "tests").iterdir() if path.name != "vllm"]
    assert not OF_VLLM & set(imported(others))


def test_what_is_declared_is_locked_to_a_version_that_is_allowed() -> None:
    locked = {canonicalize_name(each.name): each for each in map(Requirement, LOCK)}
    for each in [*RUNTIME, *DEV]:
        (pin,) = locked[canonicalize_name(each.name)].specifier
        assert pin.operator == "=="
        assert pin.version in each.specifier


def test_the_lock_names_versions_and_no_place_to_get_them_from() -> None:
    assert [line for line in LOCK if not re.match(r"[a-z0-9-]+==[0-9.a-z]+( ; |$)", line)] == []
