"""Facts files. Reading one checks every field, so that its users need not check again."""

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from winhost.model.documents import read_document
from winhost.model.facts import ORIGINS, Facts
from winhost.model.yamlfile import Mistake, refuse_mistakes
from winhost.resources.host import WrongState, typed_instance
from winhost.resources.registry import RESOURCE_TYPES


def read_facts(path: Path) -> Facts:
    """Read facts from a file.

    Raises UsageError: WrongDocument, or FileFaults with one sentence for each faulty record.
    """
    facts = read_document(path, Facts)
    refuse_mistakes(path, _mistakes(facts))
    return facts


def _mistakes(facts: Facts) -> Iterator[Mistake]:
    yield from origin_mistakes(facts.host, facts.origin, facts.read_at, "read_at")
    for name, answer in facts.resources.items():
        if name not in RESOURCE_TYPES or not isinstance(answer, tuple):
            continue  # resources that only another version of winhost knows are not checked
        if len(answer) > 1 and not RESOURCE_TYPES[name].key:
            yield ("resources", name), f"holds {len(answer)} records of what a host has once"
        for number, record in enumerate(answer):
            if set(record.key) != set(RESOURCE_TYPES[name].key):
                parts = ", ".join(RESOURCE_TYPES[name].key) or "none"
                yield ("resources", name, number, "key"), f"should have the parts: {parts}"
                continue
            try:
                typed_instance(RESOURCE_TYPES[name].state, record)
            except WrongState as error:
                yield ("resources", name, number, "state"), error.faults


def origin_mistakes(host: str, origin: str, read_at: str, name: str) -> Iterator[Mistake]:
    """Check the origin of facts or of a plan. name: the name of the field that holds the time."""
    if not host:
        yield ("host",), "is empty"
    if origin not in ORIGINS:
        yield ("origin",), f"should be one of: {', '.join(ORIGINS)}"
    if not is_time(read_at):
        yield (name,), "should be a time such as 2026-01-01T00:00:00+00:00"


def is_time(text: str) -> bool:
    """Tell whether a text is an ISO 8601 time with a time zone."""
    try:
        return datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        return False
