"""What winhost keeps on a host of the switches that it makes there: a few small files."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from winhost.lab.physics.windows_files import FOLDER as DATA
from winhost.lab.physics.windows_files import Files

FOLDER = f"{DATA}\\switch"
SWITCHES, COMMIT, SNAPSHOT = (f"{FOLDER}\\{name}.json" for name in ("switches", "commit", "snapshot"))


class Records:
    """By the name of the switch; `files` are the host's."""

    def __init__(self, files: Files) -> None:
        self.files = files

    def read(self, path: str) -> Any:
        """What is in a file, or None where there is none."""
        content = self.files.read(path)
        return None if content is None else json.loads(content)

    def write(self, path: str, content: Mapping[str, Any]) -> None:
        self.files.write(path, json.dumps(content).encode())

    def all(self) -> list[dict[str, Any]]:
        """As they were left."""
        records: list[dict[str, Any]] = (self.read(SWITCHES) or {"records": []})["records"]
        return records

    def of(self, name: str) -> dict[str, Any] | None:
        """The one of this switch."""
        return found(self.all(), name)

    def believed(self) -> list[dict[str, Any]]:
        """None where others could have put them."""
        return self.all() if self.files.is_own(DATA) and self.files.is_own(FOLDER) else []

    def save(self, record: Mapping[str, Any]) -> None:
        """In the place of the one before. A switch that is gone for good is forgotten."""
        others = [each for each in self.all() if each["name"] != record["name"]]
        kept = record["phase"] != "settled" or record["make"]
        self.write(SWITCHES, {"records": [*others, *([dict(record)] if kept else [])]})


def found(records: Iterable[dict[str, Any]], name: str) -> dict[str, Any] | None:
    """The one of this switch."""
    return next((each for each in records if each["name"].casefold() == name.casefold()), None)


def in_flight(record: Mapping[str, Any] | None) -> bool:
    """Whether a task is at it, or waits to hear whether it may stay."""
    return record is not None and record["phase"] in ("pending", "awaiting")
