"""Models of what people write, with known keys alone; each is described in schemas by the text below it."""

import ast
import inspect
import textwrap
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from pydantic import BaseModel, ConfigDict


def described(schema: dict[str, Any], model: type[BaseModel]) -> None:
    """The text below each key. It is looked for when a schema is asked for: pydantic's own way, which reads all sources
    as soon as they are imported, would cost every command a tenth of its start.
    """
    texts = {name: text for known in reversed(model.__mro__) for name, text in _texts_below(known)}
    for name, field in model.model_fields.items():
        entry = schema["properties"].get(field.alias or name)
        if entry is not None and name in texts:
            entry.setdefault("description", texts[name])


def _texts_below(model: type[Any]) -> Iterator[tuple[str, str]]:
    if model is Closed or not issubclass(model, Closed):
        return
    (declared,) = ast.parse(textwrap.dedent(inspect.getsource(model))).body
    assert isinstance(declared, ast.ClassDef)
    for named, below in pairwise(declared.body):
        match named, below:
            case ast.AnnAssign(target=ast.Name(name)), ast.Expr(ast.Constant(str(text))):
                yield name, inspect.cleandoc(text)


class Closed(BaseModel):
    """A mapping with no unknown keys. What it takes to check one is built when the first one is read."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True, json_schema_extra=described)
