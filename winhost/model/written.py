"""Base classes and types for the formats of files that people write: classes whose fields are the keys of a mapping.

A field has a type, a default, and a docstring that `winhost schema` shows. Unknown keys and null are refused: omit a
key to leave it unset.
"""

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass as eager
from inspect import cleandoc, getsource
from itertools import pairwise
from textwrap import dedent
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, PlainValidator, StringConstraints, WithJsonSchema
from pydantic_core import PydanticKnownError, PydanticOmit, core_schema

from winhost.model import durations

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler

T = TypeVar("T")


class Closed(BaseModel):
    """A mapping without unknown keys. Its validator is built when the first file is read."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: Any, handler: "GetJsonSchemaHandler") -> dict[str, Any]:
        reference = handler(schema)
        _describe(handler.resolve_ref_schema(reference)["properties"], cls, Closed)
        return reference


class Written:
    """A mapping in a file. `winhost schema` shows its docstring and those of its fields, which state the defaults."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: Any, handler: "GetJsonSchemaHandler") -> dict[str, Any]:
        reference = handler(schema)
        definition = handler.resolve_ref_schema(reference)
        definition["description"] = cleandoc(cls.__doc__ or "")
        for entry in definition.get("properties", {}).values():
            entry.pop("default", None)
        _describe(definition["properties"], cls, Written)
        return reference


class WrittenModel(Written, Closed):
    """A mapping in a file that records which keys are set: `model_fields_set`."""

    model_config = ConfigDict(hide_input_in_errors=True)  # an invalid secret reference may be the secret itself


def _describe(properties: dict[str, Any], kind: type, base: type) -> None:
    """Add the docstrings of fields of a class, and of its base classes up to `base`."""
    for each in reversed(kind.__mro__):
        for name, text in _docstrings(each) if issubclass(each, base) and each is not base else ():
            if name in properties:
                properties[name]["description"] = text


def _docstrings(kind: type) -> Iterator[tuple[str, str]]:
    """Yield the docstrings of a class's own fields, from its source, because Python does not store them."""
    try:
        source = getsource(kind)
    except OSError:  # made by pydantic's create_model
        return
    (definition,) = ast.parse(dedent(source)).body
    assert isinstance(definition, ast.ClassDef)
    for field, docstring in pairwise(definition.body):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(docstring, ast.Expr):
            yield field.target.id, " ".join(ast.literal_eval(docstring.value).split())


class _Omittable:
    """Refuses null in a file; `None` is a key that was omitted."""

    def __get_pydantic_core_schema__(self, source: Any, handler: "GetCoreSchemaHandler") -> Any:
        schema: Any = handler(source)
        if schema["type"] != "nullable":
            return schema
        return core_schema.json_or_python_schema(schema["schema"], schema)


Omittable: TypeAlias = Annotated[T | None, _Omittable()]


class _NotWritten:
    """A field that winhost fills in. In a file it is an unknown key."""

    def __get_pydantic_core_schema__(self, source: Any, handler: "GetCoreSchemaHandler") -> Any:
        in_file = core_schema.no_info_plain_validator_function(self._refuse)
        return core_schema.json_or_python_schema(in_file, handler(source))

    def __get_pydantic_json_schema__(self, schema: Any, handler: "GetJsonSchemaHandler") -> dict[str, Any]:
        raise PydanticOmit

    def _refuse(self, value: object) -> object:
        raise PydanticKnownError("unexpected_keyword_argument")


NOT_WRITTEN = _NotWritten()


@eager(frozen=True)
class WrittenAs:
    """Declares that a file has a value of another type (`kind`), which `meaning` converts."""

    kind: Any
    meaning: Callable[[Any], Any]

    def __get_pydantic_core_schema__(self, source: Any, handler: "GetCoreSchemaHandler") -> Any:
        return core_schema.no_info_after_validator_function(self.meaning, handler.generate_schema(self.kind))


def _check_printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("holds control or invisible characters: in double quotes \\\\ is one backslash")
    return text


def text_schema(pattern: str) -> dict[str, Any]:
    """Return the JSON Schema of text that matches a pattern as a whole."""
    return {"type": "string", "pattern": f"^{pattern}$"}


@eager(frozen=True)
class Matching:
    """Text that matches a pattern as a whole. what: a description of such text, for the error."""

    pattern: str
    what: str

    def check(self, text: str) -> str:
        """Return the text if it matches. Raises ValueError."""
        if re.fullmatch(self.pattern, text):
            return text
        raise ValueError(f"is not {self.what}")

    def __get_pydantic_core_schema__(self, source: Any, handler: "GetCoreSchemaHandler") -> Any:
        return core_schema.no_info_after_validator_function(self.check, handler(source))

    def __get_pydantic_json_schema__(self, schema: Any, handler: "GetJsonSchemaHandler") -> dict[str, Any]:
        return text_schema(self.pattern)


Text = Annotated[str, StringConstraints(min_length=1), AfterValidator(_check_printable)]
Duration = Annotated[
    int,
    PlainValidator(durations.parse_duration),
    WithJsonSchema(
        {"anyOf": [text_schema(durations.PATTERN), {"type": "integer", "minimum": 1, "maximum": durations.MAX_SECONDS}]}
    ),
]
