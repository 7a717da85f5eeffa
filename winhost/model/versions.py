"""The version of each kind of file that this winhost reads. Files of other versions are refused, not converted."""

from collections.abc import Mapping
from typing import Any

from winhost.model.errors import UsageError, visible

# By schema: how to get a file of this version.
SUPPORTED_SCHEMAS: Mapping[str, str] = {
    "winhost.facts/3": "Read the host again: winhost detect HOST -o FOLDER",
    "winhost.plan/3": "Plan again: winhost plan HOST -o FILE",
    "winhost.journal/3": "Roll back with the winhost that wrote it, or plan from the host as it is: winhost plan HOST",
    "winhost.install-plan/1": "Plan again: winhost install plan FACTS -o FILE",
    "winhost.disk-manifest/1": "Read the host again: winhost detect HOST -o FOLDER",
    "winhost.fleet/1": "Write it anew, as this prints: winhost schema fleet",
    "winhost.workload/1": "Write it anew, as this prints: winhost schema workload",
    "winhost.playbook/2": "Start from the shipped playbook, or write it as this prints: winhost schema playbook",
    "winhost.host/2": "Write it anew, as this prints: winhost schema host",
}
_SCHEMAS_BY_KIND = {schema.rpartition("/")[0]: schema for schema in SUPPORTED_SCHEMAS}


_ANSWER_SCHEMAS = ("winhost.detection/", "winhost.planning/")


def refuse_other_kind(path: str, data: Any, schema: str, hint: str) -> None:
    """Raise UsageError (WrongDocument) for a document of another kind than the schema's. hint: how to create one."""
    found = data.get("schema") if isinstance(data, Mapping) else schema
    found = found if isinstance(found, str) else "missing"
    if found.rpartition("/")[0] != schema.rpartition("/")[0]:
        raise UsageError(
            "WrongDocument",
            what=f"{visible(path)}: schema is {visible(found)!r}, not {schema!r}",
            meaning="It is what --json printed: an answer that contains such a document, not the document itself."
            if found.startswith(_ANSWER_SCHEMAS)
            else "It is another kind of file.",
            hint=hint,
        )


def refuse_other_version(position: str, data: Any) -> None:
    """Raise UsageError (OtherVersion) for a document of another version. position: of its schema, such as
    `fleet.yaml:1`.
    """
    found = str(data.get("schema")) if isinstance(data, Mapping) else ""
    supported = _SCHEMAS_BY_KIND.get(found.rpartition("/")[0])
    if supported not in (None, found):
        raise UsageError(
            "OtherVersion",
            what=f"{visible(position)}: schema is {visible(found)!r}, and this winhost reads {supported!r}",
            meaning="Fields may mean something else in another version, so none of them was read.",
            hint=SUPPORTED_SCHEMAS[supported],
        )
