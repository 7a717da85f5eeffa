"""A Python environment on the Linux that serves, as an entry of a playbook: its wheels, each by its hash."""

import hashlib
from collections.abc import Iterator

from winhost.core.answers import Json
from winhost.core.dataclass import dataclass
from winhost.model.units import Bytes
from winhost.serving.entries import entry


@dataclass(frozen=True)
class PythonWheels:
    """python: as 3.12; server: that has the files; files: `sha256:HASH SIZE PATH`, as PythonVenv has them."""

    python: str
    server: str
    files: tuple[str, ...]

    @property
    def _digest(self) -> str:
        return hashlib.sha256("\n".join((self.python, *self.files)).encode("ascii")).hexdigest()[:16]

    @property
    def folder(self) -> str:
        """The folder of the environment, named by its content."""
        return f"/opt/winhost/python-{self._digest}"

    @property
    def site(self) -> str:
        """The folder of its packages."""
        return f"{self.folder}/lib/python{self.python}/site-packages"

    @property
    def bytes(self) -> Bytes:
        return sum(int(line.split(" ")[1]) for line in self.files)

    def entries(self, whose: str) -> Iterator[Json]:
        made: dict[str, Json] = {"python": self.python, "source": self.server, "wheels": [*self.files]}
        why = "Its libraries, each wheel by the hash in the lock, apart from those of the distribution."
        yield entry("PythonVenv", f"{whose}: Python environment", {"folder": self.folder}, made, why)
