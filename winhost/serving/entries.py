"""Entries of `resources` in a playbook, and those of a Python environment on the Linux that serves."""

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

from winhost.core.answers import Json
from winhost.core.dataclass import dataclass
from winhost.model.units import Bytes


def entry(resource: str, title: str, key: Mapping[str, str], desired: Mapping[str, Any], why: str) -> dict[str, Any]:
    return {"resource": resource, "title": title, "key": dict(key), "desired": dict(desired), "why": why}


def file_entry(title: str, path: str, text: str, why: str, mode: str = "0644") -> dict[str, Json]:
    return entry("LinuxFile", title, {"path": path}, {"text": text, "mode": mode, "owner": "root:root"}, why)


@dataclass(frozen=True)
class PythonWheels:
    """The wheels of a Python environment. python: its version, such as 3.12; server: of the files; files: `sha256:HASH
    SIZE PATH`, as in PythonVenv.
    """

    python: str
    server: str
    files: tuple[str, ...]

    @property
    def folder(self) -> str:
        """The folder of the environment, named by its content."""
        digest = hashlib.sha256("\n".join((self.python, *self.files)).encode("ascii")).hexdigest()
        return f"/opt/winhost/python-{digest[:16]}"

    @property
    def site(self) -> str:
        """The folder of its packages."""
        return f"{self.folder}/lib/python{self.python}/site-packages"

    @property
    def bytes(self) -> Bytes:
        return sum(int(line.split(" ")[1]) for line in self.files)

    def entries(self, owner: str) -> Iterator[Json]:
        desired: dict[str, Json] = {"python": self.python, "source": self.server, "wheels": [*self.files]}
        why = "Its libraries, each wheel by the hash in the lock, apart from those of the distribution."
        yield entry("PythonVenv", f"{owner}: Python environment", {"folder": self.folder}, desired, why)
