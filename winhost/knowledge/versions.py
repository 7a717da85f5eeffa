"""Which versions of Windows, VMs and GPU software are known, from where to where (versions.yaml)."""

from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

from packaging.version import Version

from winhost.core.dataclass import dataclass
from winhost.model.catalogue_file import load_catalogue
from winhost.model.once import once


@dataclass(frozen=True)
class WindowsBuild:
    """What a build is called on each kind of Windows; vm: the first and the newest configuration version that its
    Hyper-V starts, None where no page says so.
    """

    build: int
    client: str | None = None
    server: str | None = None
    azure_local: str | None = None
    vm: tuple[Version, Version] | None = None


@dataclass(frozen=True)
class Revision:
    """The cumulative update that brought something to a build."""

    name: str
    build: int
    revision: int
    brings: str
    evidence: str
    update: str | None = None

    def lacks(self, build: int, revision: int) -> bool:
        """Whether this very build is there without the update. Of other builds it says nothing."""
        return build == self.build and revision < self.revision

    def __str__(self) -> str:
        return f"{self.build}.{self.revision}" + (f" ({self.update})" if self.update else "")


@dataclass(frozen=True)
class Generation:
    """The least and the most that runs on a generation of GPUs, as far as that is known."""

    capability: Version
    evidence: str
    cuda: Version | None = None
    cuda_most: Version | None = None
    driver: int | None = None
    driver_most: int | None = None
    vllm: Version | None = None
    vllm_most: str | None = None
    nccl: Version | None = None


def windows_build(build: int) -> WindowsBuild | None:
    """None of a build that is not in the table."""
    return _windows().get(build)


def windows_builds() -> Sequence[WindowsBuild]:
    """All of them, the oldest first."""
    return tuple(_windows().values())


def revision(name: str) -> Revision:
    """What a rule decides by."""
    return _revisions()[name]


def revisions() -> Sequence[Revision]:
    """All of them."""
    return tuple(_revisions().values())


def generation(architecture: str | None) -> Generation | None:
    """What runs on GPUs of an architecture."""
    return _generations().get(architecture or "")


def feature(name: str) -> Version:
    """The least configuration version of VMs for it."""
    return next(Version(row["version"]) for row in table()["features"] if row["feature"] == name)


def checked(newest: object) -> str:
    """What is said of anything newer than the table."""
    return f"newer than winhost knows (checked up to {newest}, {table()['checked']})"


def known_range(what: str) -> tuple[Version, Version]:
    """The first version of which anything is known, and the newest that was looked into."""
    row = next(row for row in table()["ranges"] if row["what"] == what)
    return Version(row["first"]), Version(row["newest"])


@once
def table() -> Mapping[str, Any]:
    """The file as it is, for the page that is made of it."""
    read: Mapping[str, Any] = load_catalogue(files(__package__).joinpath("versions.yaml"))
    return read


@once
def _windows() -> Mapping[int, WindowsBuild]:
    rows = (dict(row) for row in table()["windows"])
    return {row["build"]: WindowsBuild(**{**row, "vm": _span(row.get("vm"))}) for row in rows}


def _span(written: Sequence[str] | None) -> tuple[Version, Version] | None:
    return (Version(written[0]), Version(written[1])) if written else None


@once
def _revisions() -> Mapping[str, Revision]:
    return {row["name"]: Revision(**row) for row in table()["revisions"]}


@once
def _generations() -> Mapping[str, Generation]:
    versions = ("capability", "cuda", "cuda_most", "vllm", "nccl")
    read: dict[str, dict[str, Any]] = {
        name: {key: Version(value) if key in versions else value for key, value in row.items()}
        for name, row in table()["least"].items()
    }
    return {name: Generation(**row) for name, row in read.items()}
