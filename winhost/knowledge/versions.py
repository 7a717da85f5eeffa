"""The known ranges of versions of Windows, VMs and GPU software (versions.yaml)."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from packaging.version import Version

from winhost.core.dataclass import dataclass
from winhost.model.catalogue_file import load_package_file
from winhost.model.once import once
from winhost.model.reason import Evidence

WINDOWS, WINDOWS_SERVER = "Windows", "Windows Server"


@dataclass(frozen=True)
class WindowsBuild:
    """The names of a build on each kind of Windows. vm: the first and the newest configuration version that its Hyper-V
    starts; None where no documentation says so.
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

    def is_missing_from(self, build: int, revision: int) -> bool:
        """True if this is the same build without the update. Other builds are not judged."""
        return build == self.build and revision < self.revision

    def __str__(self) -> str:
        return f"{self.build}.{self.revision}" + (f" ({self.update})" if self.update else "")


@dataclass(frozen=True)
class Generation:
    """The oldest software that runs on a generation of GPUs, and the newest CUDA, as far as they are known."""

    capability: Version
    evidence: str
    cuda: Version | None = None
    cuda_most: Version | None = None
    driver: int | None = None
    vllm: Version | None = None
    nccl: Version | None = None


def windows_build(build: int) -> WindowsBuild | None:
    """Return the row of a build; None if it is not in the table."""
    return _windows().get(build)


def windows_builds() -> Sequence[WindowsBuild]:
    """Return all known builds, the oldest first."""
    return tuple(_windows().values())


def revisions() -> Sequence[Revision]:
    return tuple(_revisions().values())


def generation(architecture: str | None) -> Generation | None:
    """Return what runs on GPUs of an architecture; None if it is not in the table."""
    return _generations().get(architecture or "")


@dataclass(frozen=True)
class Span:
    """The versions for which something was checked. what: a subject of the table's ranges; first: None where the source
    does not say, such as a report about one version; newest: the newest version that was checked.
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
# The table's names of subjects that evidence writes in another way.
_SUBJECT_NAMES = {"driver": "NVIDIA drivers", "drivers": "NVIDIA drivers", "toolkit": "nvidia-container-toolkit"}
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
    """Parse the ranges that a piece of evidence holds for: `WSL 2.5 to 2.9`, `vLLM 0.11 and newer`, `Windows 10 and
    11`. An open range ends with the newest known version; a single version, such as that of a report, ends with its
    line.
    """
    ranges = []
    for part in re.split(r"[,;] ", holds):
        if match := _SOFTWARE.fullmatch(part):
            what, first, last = (
                _SUBJECT_NAMES.get(match[1], match[1]),
                match[3] if match["more"] else None,
                match[2] or match[5],
            )
            last = last or (None if match["more"] else match[3])
            newest = Version(last) if last else known_range(what)[1]
            ranges.append(Span(what, Version(first) if first else None, newest))
        elif windows := _WINDOWS.fullmatch(part):
            ranges += _builds(windows)
    return tuple(ranges)


def _builds(match: re.Match[str]) -> Iterator[Span]:
    """Yield the builds that a name of Windows stands for: of clients, of servers, or of both where it names neither."""
    kind, first, last = match["kind"], match["first"], match["last"]
    server = kind != "Windows"
    for what in (WINDOWS_SERVER,) if server else (WINDOWS,) if first else (WINDOWS, WINDOWS_SERVER):
        newest = known_range(what)[1]
        begins = _builds_by_name(kind, first) if first else []
        ends = [newest] if match["newer"] or not first else _builds_by_name(kind, last or first)
        yield Span(what, min(begins, default=None), max(ends, default=newest))


def _builds_by_name(kind: str, edition: str) -> list[Version]:
    """Return the builds with a name such as `11 24H2`, `2019` or `build 26200`; none if it is older than the table."""
    if edition.startswith("build "):
        return [Version(edition.removeprefix("build "))]
    columns = {"Windows": ("client",), "Windows Server": ("server",), "Azure Local": ("azure_local",)}[kind]
    names = [(each.build, getattr(each, column) or "") for each in windows_builds() for column in columns]
    return [Version(str(build)) for build, name in names if f"{name} ".startswith(f"{kind} {edition} ")]


@dataclass(frozen=True)
class UncheckedVersion:
    """A version of the host for which evidence does not hold. subject: of the table's ranges; text: for people; older:
    older than all of the evidence; unread: the version could not be read.
    """

    subject: str
    text: str
    older: bool = False
    unread: bool = False

    def __str__(self) -> str:
        return self.text


def find_unchecked_version(
    evidence: Iterable[Evidence], host: Mapping[str, Version | None], older: Iterable[str] = ()
) -> UncheckedVersion | None:
    """Return the first version of the host for which no piece of evidence holds; None if there is none.

    Pieces that do not state versions are ignored, and a piece that holds for all versions settles it: None. A version
    that could not be read (None) counts as unchecked. older: subjects whose version the finding calls too old, so that
    its evidence begins with a newer one.
    """
    pieces = tuple(evidence)
    if any(piece.holds in ALWAYS for piece in pieces):
        return None
    checked = [(span, piece.seen) for piece in pieces for span in spans(piece.holds)]
    for name, version in host.items():
        about = [(span, seen) for span, seen in checked if _subject_of(span.what).name == name]
        if about and not (version and any(_covers(span, version, name in older) for span, _ in about)):
            return _describe_unchecked(name, version, about)
    return None


def _describe_unchecked(name: str, version: Version | None, about: Sequence[tuple[Span, str]]) -> UncheckedVersion:
    what, build = subjects()[name].what, "build " if name in ("windows", "server") else ""
    last, seen = max(about, key=lambda each: each[0].newest)
    if version is None:
        text = f"a version of {what} that could not be read (checked up to {last.newest}, {seen})"
        return UncheckedVersion(name, text, unread=True)
    own = f"{what} {build}{version}"
    if ended := [each for each in about if each[0].ends_before(version)]:
        last, seen = max(ended, key=lambda each: each[0].newest)
        return UncheckedVersion(name, f"{own}, {newer_than_checked(f'{build}{last.newest}', seen)}")
    begins = min(span.first or span.newest for span, _ in about)
    return UncheckedVersion(
        name, f"{own}, older than where this was seen ({build}{begins} and newer, {seen})", older=True
    )


def _covers(span: Span, version: Version, older: bool) -> bool:
    return not span.ends_before(version) and (older or not span.begins_after(version))


@dataclass(frozen=True)
class Subject:
    """A subject of the table and its known range. name: for commands and workloads; line: how many numbers of a version
    name its release line, None where evidence is not compared with it; evidence: the source of the range.
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
    rows = (*map(_windows_subject, (WINDOWS, WINDOWS_SERVER)), *(Subject(**row) for row in table()["ranges"]))
    return {each.name: each for each in rows}


def _windows_subject(what: str) -> Subject:
    """Return the subject of a kind of Windows, where each build is a line."""
    builds = [str(each.build) for each in windows_builds() if (each.client if what == WINDOWS else each.server)]
    name = "windows" if what == WINDOWS else "server"
    return Subject(name, what, builds[0], builds[-1], "nothing is known of an older one", "windows-builds", line=1)


@once
def subjects_with_lines() -> tuple[str, ...]:
    """Return the names of the subjects that have release lines, so that evidence may end before a version of theirs."""
    return tuple(name for name, subject in subjects().items() if subject.line)


@once
def _subject_of(what: str) -> Subject:
    return next(subject for subject in subjects().values() if subject.what == what)


def newer_than_checked(newest: object, seen: str | None = None) -> str:
    """Format the text for a version that is newer than the table or a piece of evidence."""
    return f"newer than winhost knows (checked up to {newest}, {seen or table()['checked']})"


def describe_newer_line(what: str, version: str) -> str | None:
    """Format the text for a version whose line is newer than the table; None for any other version."""
    subject = _subject_of(what)
    newer = Span(what, None, Version(subject.newest)).ends_before(Version(version))
    return f"{what} {version}, {newer_than_checked(subject.newest)}" if newer else None


def known_range(what: str) -> tuple[Version, Version]:
    """Return the first and the newest known version."""
    subject = _subject_of(what)
    return Version(subject.first), Version(subject.newest)


@once
def table() -> Mapping[str, Any]:
    """Return versions.yaml, from which a page of the docs is made."""
    return load_package_file(__package__, "versions.yaml")


@once
def _windows() -> Mapping[int, WindowsBuild]:
    rows = (dict(row) for row in table()["windows"])
    return {row["build"]: WindowsBuild(**{**row, "vm": _version_pair(row.get("vm"))}) for row in rows}


def _version_pair(written: Sequence[str] | None) -> tuple[Version, Version] | None:
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
