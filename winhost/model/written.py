"""What the files that people write have in common: closed models without null, clean text, durations."""

from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    ConfigDict,
    PlainValidator,
    StringConstraints,
    WithJsonSchema,
    field_validator,
)

from winhost.model import durations
from winhost.model.closed import Closed


def _without_null(schema: dict[str, Any]) -> None:
    """Leaving a key out is how nothing is said; null is refused, so editors shall not offer it."""
    for entry in schema.get("properties", {}).values():
        members = entry.pop("anyOf", [])
        kept = [member for member in members if member != {"type": "null"}]
        if len(kept) == 1:
            entry.update(kept[0] | entry)
        elif kept:
            entry["anyOf"] = kept
        if "default" in entry and entry["default"] is None:
            del entry["default"]


class Written(Closed):
    """A mapping in a file: no unknown keys, and no null."""

    model_config = ConfigDict(json_schema_extra=_without_null)

    @field_validator("*")
    @classmethod
    def _is_given(cls, value: object) -> object:
        if value is None:
            raise ValueError("is empty: give it a value, or leave the key out")
        return value


def _clean(text: str) -> str:
    if not text.isprintable():
        raise ValueError("holds control or invisible characters: in double quotes \\\\ is one backslash")
    return text


def text_schema(pattern: str) -> dict[str, Any]:
    """The JSON Schema of text that matches as a whole."""
    return {"type": "string", "pattern": f"^{pattern}$"}


Text = Annotated[str, StringConstraints(min_length=1), AfterValidator(_clean)]
Duration = Annotated[
    int,
    PlainValidator(durations.parse_duration),
    WithJsonSchema(
        {"anyOf": [text_schema(durations.PATTERN), {"type": "integer", "minimum": 1, "maximum": durations.LONGEST}]}
    ),
]
