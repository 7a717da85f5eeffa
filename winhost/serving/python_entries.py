"""A Python environment on the Linux that serves, as entries of a playbook: its wheels, each by its hash, and itself."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

from winhost.core.answers import Json
from winhost.model.units import Bytes

_WHEELS = "/srv/winhost/wheels"


@dataclass(frozen=True)
class PythonWheels:
    """python: as 3.12; server: that has the files; files: `sha256:HASH SIZE PATH`, as ModelFiles has them."""

    python: str
    server: str
    files: tuple[str, ...]

    @property
    def _digest(self) -> str:
        return hashlib.sha256("\n".join((self.python, *self.files)).encode("ascii")).hexdigest()[:16]

    @property
    def folder(self) -> str:
        """Of the environment, named by what is in it."""
        return f"/opt/winhost/python-{self._digest}"

    @property
    def bytes(self) -> Bytes:
        return sum(int(line.split(" ")[1]) for line in self.files)

    def entries(self, whose: str) -> Iterator[Json]:
        source = f"{_WHEELS}/{self._digest}"
        files: dict[str, Json] = {"source": self.server, "revision": None, "files": [*self.files], "token": None}
        yield {
            "resource": "ModelFiles",
            "title": f"{whose}: wheels",
            "key": {"folder": source},
            "desired": files,
            "why": "Each by the hash that the lock has, and no other.",
        }
        wheels: list[Json] = []
        for line in self.files:
            hash_, _, path = line.split(" ", 2)
            wheels.append(f"{hash_} {path}")
        made: dict[str, Json] = {"python": self.python, "source": source, "wheels": wheels}
        yield {
            "resource": "PythonVenv",
            "title": f"{whose}: Python environment",
            "key": {"folder": self.folder},
            "desired": made,
            "why": "Its libraries, apart from those of the distribution.",
        }
