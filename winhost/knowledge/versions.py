"""Which versions of Windows, VMs and GPU software are known, from where to where (versions.yaml)."""

import re
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from typing import Any

from packaging.version import Version

from winhost.core.dataclass import dataclass
from winhost.model.catalogue_file import load_catalogue
from winhost.model.once import once
from winhost.model.reason import Evidence


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


@dataclass(frozen=True)
class Span:
    """The versions for which something was checked. what: as in the table's ranges; first: None where nobody says;
    newest: what was looked into last.
    """

    what: str
    first: Version | None
    newest: Version

    def ends_before(self, version: Version) -> bool:
        """Whether this version is of a newer line; a newer build of a line is taken for alike."""
        numbers = _subject_of(self.what).line
        return version.release[:numbers] > self.newest.release[:numbers]

    def __str__(self) -> str:
        return f"{self.what} {f'{self.first} to ' if self.first else 'up to '}{self.newest}"


_WORDS = {"drivers": "NVIDIA drivers"}  # as evidence writes it
_NUMBER = r"R?(\d+(?:\.\d+)*)"
_HOLDS = re.compile(
    rf"(WSL|vLLM|nvidia-container-toolkit|drivers) (?:up to {_NUMBER}|{_NUMBER} (?:(?:to|and) {_NUMBER}|and newer))"
)


@once
def spans(holds: str) -> tuple[Span, ...]:
    """The ranges that a piece of evidence holds for, as it writes them: `WSL 2.5 to 2.9`, `vLLM 0.11 and newer`. What
    is open ends with the newest that was looked into; a single version is a report, and no range.
    """
    found = []
    for part in re.split(r"[,;] ", holds):
        if told := _HOLDS.fullmatch(part):
            what = _WORDS.get(told[1], told[1])
            newest = told[2] or told[4]
            first = Version(told[3]) if told[3] else None
            found.append(Span(what, first, Version(newest) if newest else known_range(what)[1]))
    return tuple(found)


def beyond(evidence: Iterable[Evidence], host: Mapping[str, Version | None]) -> str | None:
    """What is said where all of this evidence ends before a line that the host has, or may have where its version could
    not be read (None). None where any piece reaches it: that one decides.
    """
    said = None
    for piece in evidence:
        last = {_subject_of(each.what).name: each for each in sorted(spans(piece.holds), key=lambda span: span.newest)}
        told = [(name, span) for name, span in last.items() if name in host]
        short = [(name, span) for name, span in told if not (has := host[name]) or span.ends_before(has)]
        if not short:
            return None
        name, span = short[0]
        has = host[name]
        unread = f"a version of {span.what} that could not be read (checked up to {span.newest}, {piece.seen})"
        said = said or (f"{span.what} {has}, {checked(span.newest, piece.seen)}" if has else unread)
    return said


@dataclass(frozen=True)
class Subject:
    """What the table knows of, from where to where. name: for commands and workloads; line: how many numbers of a
    version name its line, None where no evidence is held against it; evidence: what the range rests on.
    """

    name: str
    what: str
    first: str
    newest: str
    below: str
    evidence: str
    line: int | None = None


@once
def subjects() -> Mapping[str, Subject]:
    """By name."""
    first, *_, last = windows_builds()
    below, builds = "nothing is known of an older one", (f"build {first.build}", f"build {last.build}")
    windows = Subject("windows", "Windows", *builds, below, "windows-builds")
    return {each.name: each for each in (windows, *(Subject(**row) for row in table()["ranges"]))}


@once
def bounded() -> tuple[str, ...]:
    """Names of what a host or a workload has a version of that evidence may end before."""
    return tuple(name for name, subject in subjects().items() if subject.line)


@once
def _subject_of(what: str) -> Subject:
    return next(subject for subject in subjects().values() if subject.what == what)


def checked(newest: object, seen: str | None = None) -> str:
    """What is said of anything newer than the table, or than a piece of evidence."""
    return f"newer than winhost knows (checked up to {newest}, {seen or table()['checked']})"


def known_range(what: str) -> tuple[Version, Version]:
    """The first version of which anything is known, and the newest that was looked into."""
    subject = _subject_of(what)
    return Version(subject.first), Version(subject.newest)


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
