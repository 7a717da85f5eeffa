"""Find packages of Debian and Ubuntu by name and version in archives whose lists are signed by a known key.

A package is checked by the hash in its list, the list by the hash in `InRelease`, and that by its signature.
"""

import gzip
import io
import lzma
import re
from collections.abc import Collection, Iterator
from hashlib import sha256
from importlib.resources import files

from winhost.core.dataclass import dataclass
from winhost.images.signed_sums import signed_text
from winhost.model.errors import WinhostError, visible
from winhost.model.units import Bytes, MiB
from winhost.web.http_client import NotAnswered, fetch

_IN_RELEASE = "InRelease"
_MAX_RELEASE: Bytes = 16 * MiB
_MAX_LIST: Bytes = 128 * MiB
_MAX_UNPACKED: Bytes = 1024 * MiB
_SUM = re.compile(r" ([0-9a-f]{64}) +([0-9]{1,12}) (\S+)")
_FIELDS = {  # with their valid form, because file names are made of them
    "Package": r"[a-z0-9][a-z0-9+.-]{0,100}",
    "Version": r"[A-Za-z0-9.+:~-]{1,100}",
    "Architecture": r"[a-z0-9-]{1,20}",
    "Filename": r"(?!/)(?!.*(?:^|/)\.\.?(?:/|$))[A-Za-z0-9._+~%:/-]{1,400}\.deb",
    "Size": r"[0-9]{1,12}",
    "SHA256": r"[0-9a-f]{64}",
}
_KEYS = re.compile(rb"-----BEGIN PGP PUBLIC KEY BLOCK-----.*?-----END PGP PUBLIC KEY BLOCK-----\n", re.DOTALL)


@dataclass(frozen=True)
class PackageSource:
    """A package source. base: the URL of the archive; suite: such as noble-updates, or / for an archive without suites;
    keys: armoured, any of which may have signed it.
    """

    base: str
    suite: str
    components: tuple[str, ...]
    keys: tuple[bytes, ...]

    @property
    def folder(self) -> str:
        """The URL of the folder with the Release file."""
        base = self.base.rstrip("/")
        return base + (f"/{self.suite.strip('/')}".rstrip("/") if self.suite.endswith("/") else f"/dists/{self.suite}")


@dataclass(frozen=True)
class PackageFile:
    """A .deb file. path: below the base of its source."""

    name: str
    version: str
    machine: str
    url: str
    path: str
    sha256: str
    bytes: Bytes

    @property
    def cached_as(self) -> str:
        """The file's name in /var/cache/apt/archives."""
        return f"{self.name}_{self.version.replace(':', '%3a')}_{self.machine}.deb"


@dataclass(frozen=True)
class SignedLists:
    """The lists of a source. files: their content by path below the source's folder; packages: the requested ones."""

    files: dict[str, bytes]
    packages: tuple[PackageFile, ...]


# The archives of a release, and the suites in each.
RELEASES: dict[str, tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...]] = {
    **{
        f"ubuntu-{version}": (
            ("https://archive.ubuntu.com/ubuntu", (name, f"{name}-updates", f"{name}-security"), ("main", "universe")),
        )
        for version, name in (("22.04", "jammy"), ("24.04", "noble"))
    },
    **{
        f"debian-{version}": (
            ("https://deb.debian.org/debian", (name, f"{name}-updates"), ("main",)),
            ("https://deb.debian.org/debian-security", (f"{name}-security",), ("main",)),
        )
        for version, name in (("12", "bookworm"), ("13", "trixie"))
    },
}


def distribution_keys() -> tuple[bytes, ...]:
    return tuple(_KEYS.findall(files(__package__).joinpath("distribution_keys.asc").read_bytes()))


def package_sources(release: str, mirror: str | None) -> tuple[PackageSource, ...]:
    """Return the package sources of a release. mirror: of the first archive; Debian's security updates are next
    to it.
    """
    keys = distribution_keys()
    sources: list[PackageSource] = []
    for number, (base, suites, components) in enumerate(RELEASES[release]):
        own_base = base if mirror is None else mirror.rstrip("/") + "-security" * number
        sources += [PackageSource(own_base, suite, components, keys) for suite in suites]
    return tuple(sources)


def fetch_signed_lists(source: PackageSource, wanted: Collection[str], machine: str) -> SignedLists:
    """Fetch the lists of a source, check their signature, and find packages in them. wanted: NAME=VERSION; machine: the
    architecture as in Debian, amd64. Raises WinhostError: NoPackages, NotSignedByThem.
    """
    data = _fetch(f"{source.folder}/{_IN_RELEASE}", _MAX_RELEASE)
    release = signed_text(data, source.keys)
    if release is None:
        raise _not_signed_error(source, f"its {_IN_RELEASE} has no good signature by a key that is known")
    files, packages = {_IN_RELEASE: data}, dict[str, PackageFile]()
    for path, size, hash_ in _smallest_lists(source, release.decode("utf-8", "replace"), machine):
        data = _fetch(f"{source.folder}/{path}", min(size, _MAX_LIST))
        if sha256(data).hexdigest() != hash_:
            raise _not_signed_error(source, f"{path} has another hash than its Release says")
        files[path] = data
        for each in _packages(source, path, data):
            if f"{each.name}={each.version}" in wanted:
                packages.setdefault(f"{each.name}={each.version}", each)
    return SignedLists(files, tuple(packages.values()))


def _smallest_lists(source: PackageSource, release: str, machine: str) -> Iterator[tuple[str, Bytes, str]]:
    """Yield the path, size and hash of each component's list, in its smallest format."""
    sums = {match[3]: (int(match[2]), match[1]) for line in release.splitlines() if (match := _SUM.fullmatch(line))}
    flat = source.suite.endswith("/")
    for folder in [""] if flat else [f"{each}/binary-{machine}/" for each in source.components]:
        names = [f"{folder}Packages{ending}" for ending in (".xz", ".gz", "")]
        path = next((name for name in names if name in sums), None)
        if path is None:
            raise _not_signed_error(source, f"it lists no packages in {folder or source.suite} for {machine}")
        yield path, *sums[path]


def _packages(source: PackageSource, path: str, data: bytes) -> Iterator[PackageFile]:
    try:
        text = _unpack(path, data).decode("utf-8", "replace")
    except (OSError, lzma.LZMAError, EOFError, ValueError) as error:
        raise _not_signed_error(source, f"{path} cannot be read: {error}") from None
    for stanza in text.split("\n\n"):
        fields = (line.partition(": ") for line in stanza.splitlines())
        values = {name: value for name, separator, value in fields if name in _FIELDS and separator}
        path_ = values["Filename"] = values.get("Filename", "").removeprefix("./")
        if values.keys() == _FIELDS.keys() and all(re.fullmatch(_FIELDS[name], values[name]) for name in _FIELDS):
            base = source.base.rstrip("/") if not source.suite.endswith("/") else source.folder
            machine, version = values["Architecture"], values["Version"]
            size = int(values["Size"])
            yield PackageFile(values["Package"], version, machine, f"{base}/{path_}", path_, values["SHA256"], size)


def _unpack(path: str, data: bytes) -> bytes:
    """Unpack a list up to a limit, because a list of zeros could fill the memory. Raises ValueError."""
    if path.endswith(".xz"):
        text = lzma.LZMADecompressor(memlimit=256 * MiB).decompress(data, _MAX_UNPACKED)
    elif path.endswith(".gz"):
        with gzip.open(io.BytesIO(data)) as file:
            text = file.read(_MAX_UNPACKED)
    else:
        text = data
    if len(text) >= _MAX_UNPACKED:
        raise ValueError("it is longer than any list of packages")
    return text


def _fetch(url: str, max_bytes: Bytes) -> bytes:
    try:
        answer = fetch(url, max_bytes)
    except NotAnswered as error:
        raise _no_packages_error(url, str(error)) from None
    if answer.status != 200:
        raise _no_packages_error(url, f"is answered with {answer.status}")
    return answer.body


_HINT = "Name a mirror of the distribution with --archive https://…, or leave --release out"


def _no_packages_error(url: str, why: str) -> WinhostError:
    return WinhostError("NoPackages", what=f"{visible(url)} {visible(why)}", hint=_HINT)


def _not_signed_error(source: PackageSource, why: str) -> WinhostError:
    return WinhostError("NotSignedByThem", what=f"{visible(source.folder)}: {visible(why)}", hint=_HINT)
