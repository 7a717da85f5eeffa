"""What the classes of files share: the schema that `winhost schema` makes of them."""

import py_compile
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

from winhost.model.documents import json_schema

SOURCE = '''
from dataclasses import dataclass
from winhost.model.written import Written

@dataclass(frozen=True)
class Base(Written):
    """A base."""

    first: int = 1
    """The first
    key."""

@dataclass(frozen=True)
class Kept(Base):
    """A file."""

    second: int = 2
    """The second key."""
'''


def loaded(path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = spec_from_file_location("written_for_a_test", path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


def test_a_schema_describes_keys_and_needs_no_source_to_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, compiled = tmp_path / "source.py", tmp_path / "compiled.pyc"
    source.write_text(SOURCE, encoding="utf-8")
    py_compile.compile(str(source), cfile=str(compiled), doraise=True)

    schema = json_schema(loaded(source, monkeypatch).Kept)
    described = {name: entry.pop("description") for name, entry in schema["properties"].items()}
    assert described == {"first": "The first key.", "second": "The second key."}

    source.unlink()
    assert json_schema(loaded(compiled, monkeypatch).Kept) == schema
