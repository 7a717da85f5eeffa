"""Folders of a Linux machine whose files winhost writes all together."""

import re
from collections.abc import Mapping

from winhost.core.answers import Json
from winhost.core.rules import UndoRule
from winhost.resources.base import ResourceType, State, resource
from winhost.resources.shared import ACCESS, DISTROS, PLAIN_HTTP, UNITS
from winhost.resources.values import FLAG, Value, or_nothing


def _texts(value: Json) -> bool:
    return (
        isinstance(value, Mapping)
        and bool(value)
        and all(re.fullmatch(r"[a-z_]+\.py", name) and isinstance(text, str) for name, text in value.items())
    )


@resource(
    ResourceType(
        "LinuxFolder",
        title="folders of a program in Linux",
        order=31,
        key=("path",),
        sets={
            "files": or_nothing(Value("texts by the names of files, as name.py", _texts)),
            "only_root": or_nothing(FLAG),
        },
        requires=ACCESS,
        asks=("network",),
        risks=(PLAIN_HTTP,),
        rests=(UNITS,),
        within=DISTROS,
        undo=UndoRule(whole=True),
    )
)
class LinuxFolder(State):
    """The files of a program of winhost's, all of them at once: nobody ever sees a part of them.

    files: their texts by their names, null where the folder is not there, and unknown where others put something into
    it; only_root: nobody else can change what is in it.
    """

    files: Mapping[str, str] | None
    only_root: bool | None
