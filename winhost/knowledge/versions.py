"""The ranges of versions of Windows, VMs and GPU software that are known (versions.yaml)."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from packaging.version import Version

from winhost.core.dataclass import dataclass
from winhost.model.catalogue_file import load_beside
from winhost.model.once import once
from winhost.model.reason import Evidence

WINDOWS, WINDOWS_SERVER = "Windows", "Windows Server"


@dataclass(frozen=True)
class WindowsBuild:
    """The names of a build on each kind of Windows. vm: the first and the newest configuration version that its
    Hyper-V starts; None where no page says so.
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
        """True if this is the same build without the update. Other builds are not judged."""
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
    vllm: Version | None = None
    nccl: Version | None = None


def windows_build(build: int) -> WindowsBuild | None:
    """The row of a build; None if it is not in the table."""
    return _windows().get(build)


def windows_builds() -> Sequence[WindowsBuild]:
    """All of them, the oldest first."""
    return tuple(_windows().values())


def revisions() -> Sequence[Revision]:
    """All of them."""
    return tuple(_revisions().values())


def generation(architecture: str | None) -> Generation | None:
    """The software that runs on GPUs of an architecture; None if it is not in the table."""
    return _generations().get(architecture or "")


@dataclass(frozen=True)
class Span:
    """The versions for which something was checked. what: as in the table's ranges; first: None where nobody says, as
    of a report or a source of one version; newest: what was looked into last.
    """

    what: str
    first: Version | None
    newest: Version

    def ends_before(self, version: Version) -> bool:
        """True if the version is of a newer line. A newer build of a known line counts as known."""
        numbers = _subject_of(self.what).line
        return version.release[:numbers] > self.newest.release[:numbers]

    def begins_after(self, version: Version) -> bool:
        """True if the version is older than the first one checked."""
        return self.first is not None and version.release[: len(self.first.release)] < self.first.release

    def __str__(self) -> str:
        return f"{self.what} {f'{self.first} to ' if self.first else 'up to '}{self.newest}"


ALWAYS = ("all", "all versions")
# As evidence writes it, where that is not the name in the table.
_WORDS = {"driver": "NVIDIA drivers", "drivers": "NVIDIA drivers", "toolkit": "nvidia-container-toolkit"}
_NUMBER = r"R?v?(\d+(?:\.\d+)*)"
_SOFTWARE = re.compile(
    r"(WSL(?! [12]$)|vLLM|(?:nvidia-container-)?toolkit|drivers?|Ubuntu|k3s)"
    rf" (?:up to {_NUMBER}|{_NUMBER}(?P<more> (?:(?:to|and) {_NUMBER}|and newer))?)"
)
_EDITION = r"(?:build )?[0-9]+(?:\.1)?(?: R2)?(?: [0-9]{2}H[12]| [0-9]{4})?"
_WINDOWS = re.compile(
    rf"(?:all )?(?P<kind>Windows Server|Azure Local|Windows)"
    rf"(?: (?P<first>{_EDITION}|[0-9]{{2}}H[12])(?: (?:to|and) (?:(?P<last>{_EDITION})|(?P<newer>newer)))?)?"
)


@once
def spans(holds: str) -> tuple[Span, ...]:
    """The ranges that a piece of evidence holds for, as it writes them: `WSL 2.5 to 2.9`, `vLLM 0.11 and newer`,
    `Windows 10 and 11`. What is open ends with the newest that was looked into; a single version, as of a report, ends
    with its line.
    """
    found = []
    for part in re.split(r"[,;] ", holds):
        if told := _SOFTWARE.fullmatch(part):
            what, first, last = _WORDS.get(told[1], told[1]), told[3] if told["more"] else None, told[2] or told[5]
            last = last or (None if told["more"] else told[3])
            newest = Version(last) if last else known_range(what)[1]
            found.append(Span(what, Version(first) if first else None, newest))
        elif windows := _WINDOWS.fullmatch(part):
            found += _builds(windows)
    return tuple(found)


def _builds(told: re.Match[str]) -> Iterator[Span]:
    """The builds that a name of Windows stands for, on clients, on servers, or on both where it says neither."""
    kind, first, last = told["kind"], told["first"], told["last"]
    server = kind != "Windows"
    for what in (WINDOWS_SERVER,) if server else (WINDOWS,) if first else (WINDOWS, WINDOWS_SERVER):
        newest = known_range(what)[1]
        begins = _named(kind, first) if first else []
        ends = [newest] if told["newer"] or not first else _named(kind, last or first)
        yield Span(what, min(begins, default=None), max(ends, default=newest))


def _named(kind: str, edition: str) -> list[Version]:
    """Builds by their name, as `11 24H2`, `2019` or `build 26200`; none of a Windows older than the table."""
    if edition.startswith("build "):
        return [Version(edition.removeprefix("build "))]
    columns = {"Windows": ("client",), "Windows Server": ("server",), "Azure Local": ("azure_local",)}[kind]
    names = [(each.build, getattr(each, column) or "") for each in windows_builds() for column in columns]
    return [Version(str(build)) for build, name in names if f"{name} ".startswith(f"{kind} {edition} ")]


@dataclass(frozen=True)
class OutOfReach:
    """A version of the host for which evidence does not hold. subject: of the table's ranges; older: than all of it;
    unread: it could not be read.
    """

    subject: str
    said: str
    older: bool = False
    unread: bool = False

    def __str__(self) -> str:
        return self.said


def beyond(
    evidence: Iterable[Evidence], host: Mapping[str, Version | None], older: Iterable[str] = ()
) -> OutOfReach | None:
    """The first version of the host for which no piece holds, of those that tell for which versions they hold. A
    version that could not be read (None) may be such a one. Evidence that holds for all versions always decides. older:
    subjects of which the finding is that the host's version is too old, so that its evidence begins later.
    """
    pieces = tuple(evidence)
    if any(piece.holds in ALWAYS for piece in pieces):
        return None
    told = [(span, piece.seen) for piece in pieces for span in spans(piece.holds)]
    for name, has in host.items():
        about = [(span, seen) for span, seen in told if _subject_of(span.what).name == name]
        if about and not (has and any(_reaches(span, has, name in older) for span, _ in about)):
            return _out_of_reach(name, has, about)
    return None


def _out_of_reach(name: str, has: Version | None, about: Sequence[tuple[Span, str]]) -> OutOfReach:
    what, build = subjects()[name].what, "build " if name in ("windows", "server") else ""
    last, seen = max(about, key=lambda each: each[0].newest)
    if has is None:
        said = f"a version of {what} that could not be read (checked up to {last.newest}, {seen})"
        return OutOfReach(name, said, unread=True)
    here = f"{what} {build}{has}"
    if ended := [each for each in about if each[0].ends_before(has)]:
        last, seen = max(ended, key=lambda each: each[0].newest)
        return OutOfReach(name, f"{here}, {checked(f'{build}{last.newest}', seen)}")
    begins = min(span.first or span.newest for span, _ in about)
    return OutOfReach(name, f"{here}, older than where this was seen ({build}{begins} and newer, {seen})", older=True)


def _reaches(span: Span, version: Version, older: bool) -> bool:
    return not span.ends_before(version) and (older or not span.begins_after(version))


@dataclass(frozen=True)
class Subject:
    """A subject of the table and its known range. name: for commands and workloads; line: how many numbers of a
    version name its line, None where evidence is not compared with it; evidence: the source of the range.
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
    """The subjects by name."""
    rows = (*map(_windows_subject, (WINDOWS, WINDOWS_SERVER)), *(Subject(**row) for row in table()["ranges"]))
    return {each.name: each for each in rows}


def _windows_subject(what: str) -> Subject:
    """Each build is a line."""
    builds = [str(each.build) for each in windows_builds() if (each.client if what == WINDOWS else each.server)]
    name = "windows" if what == WINDOWS else "server"
    return Subject(name, what, builds[0], builds[-1], "nothing is known of an older one", "windows-builds", line=1)


@once
def bounded() -> tuple[str, ...]:
    """Names of what a host or a workload has a version of that evidence may end before."""
    return tuple(name for name, subject in subjects().items() if subject.line)


@once
def _subject_of(what: str) -> Subject:
    return next(subject for subject in subjects().values() if subject.what == what)


def checked(newest: object, seen: str | None = None) -> str:
    """The words for a version that is newer than the table or a piece of evidence."""
    return f"newer than winhost knows (checked up to {newest}, {seen or table()['checked']})"


def newer_line(what: str, version: str) -> str | None:
    """The words for a chosen version whose line is newer than the table; None for any other."""
    subject = _subject_of(what)
    newer = Span(what, None, Version(subject.newest)).ends_before(Version(version))
    return f"{what} {version}, {checked(subject.newest)}" if newer else None


def known_range(what: str) -> tuple[Version, Version]:
    """The first version of which anything is known, and the newest that was looked into."""
    subject = _subject_of(what)
    return Version(subject.first), Version(subject.newest)


@once
def table() -> Mapping[str, Any]:
    """The file as it is, for the page that is made of it."""
    return load_beside(__package__, "versions.yaml")


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
