"""The files that -o may overwrite: those of the same kind, and with --force any."""

import json
import re
from pathlib import Path
from typing import Literal, TypeAlias

from winhost.model.errors import UsageError, visible
from winhost.model.files import TooLarge, read_within
from winhost.model.units import Bytes, MiB

Kind: TypeAlias = Literal[
    "facts", "plan", "report", "lab's fleet", "workload", "rendered", "mended file", "install-plan"
]

_WORDS = {"facts": "a facts file", "plan": "a plan", "report": "a report", "lab's fleet": "the fleet file of a lab"}
_WORDS |= {"mended file": "a mended file", "install-plan": "a plan of winhost install"}
_WORDS |= {"fleet": "a fleet file", "playbook": "a playbook", "workload": "a workload", "host": "a host file"}
_WORDS |= {"rendered": "a file of winhost render"}
_FOREIGN = "a file that winhost did not write"
_MOST: Bytes = 16 * MiB  # of a file of ours; a larger one is another's
_HEAD = 4096
_REPORT = b'<meta name="generator" content="winhost '
_LAB = b"# Simulated hosts: "
_RENDERED = (b"# Written by winhost ", b'{\n  "description": "Written by winhost ')
_SCHEMA = re.compile(rb"^schema: *[\"']?winhost\.([a-z-]+)/", re.MULTILINE)


def refuse_other_kind(path: Path, kind: Kind, force: bool = False) -> None:
    """Raises UsageError (OtherKind) for a file that holds something else; an empty one may be written over."""
    if force or not path.is_file():
        return
    found = _kind(path)
    if found not in (None, kind):
        raise UsageError(
            "OtherKind",
            what=f"{visible(str(path))} is {_WORDS.get(found or '', found)}, not {_WORDS[kind]}",
            meaning="Nothing was written.",
            hint="Name another file with -o, or write over this one with --force.",
        )


def _kind(path: Path) -> str | None:
    try:
        data = read_within(path, _MOST)
    except (TooLarge, OSError):
        return _FOREIGN
    if not data:
        return None
    head = data[:_HEAD]
    if _REPORT in head:
        return "report"
    if head.startswith(_LAB):
        return "lab's fleet"
    if head.startswith(_RENDERED):
        return "rendered"
    return _schema(data) or _FOREIGN


def _schema(data: bytes) -> str | None:
    """`facts` of `winhost.facts/2`, in JSON or YAML."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        found = _SCHEMA.search(data)
        return found[1].decode() if found else None
    schema = document.get("schema") if isinstance(document, dict) else None
    found = re.match(rb"winhost\.([a-z-]+)/", schema.encode()) if isinstance(schema, str) else None
    return found[1].decode() if found else None
