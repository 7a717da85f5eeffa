"""Packages of Debian and Ubuntu by name and version, from archives whose lists somebody known has signed.

What is fetched is checked by the hash in the list, the list by that in `InRelease`, and that by its signature.
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

_SIGNED = "InRelease"
_RELEASE: Bytes = 16 * MiB
_LIST: Bytes = 128 * MiB
_UNPACKED: Bytes = 1024 * MiB
_SUM = re.compile(r" ([0-9a-f]{64}) +([0-9]{1,12}) (\S+)")
_FIELDS = {  # with their usual form, because they become the name of a file
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
    """base: of a URL; suite: such as noble-updates, or / of an archive without suites; keys: armoured, any of which may
    have signed it.
    """

    base: str
    suite: str
    components: tuple[str, ...]
    keys: tuple[bytes, ...]

    @property
    def folder(self) -> str:
        """The folder of its Release file."""
        base = self.base.rstrip("/")
        return base + (f"/{self.suite.strip('/')}".rstrip("/") if self.suite.endswith("/") else f"/dists/{self.suite}")


@dataclass(frozen=True)
class PackageFile:
    """A .deb. url: where it is; path: below the base of its source."""

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
    """files: the content of what a source says of itself, by path below its folder; packages: those that are wanted."""

    files: dict[str, bytes]
    packages: tuple[PackageFile, ...]


# The archives of a release, and the suites in each.
RELEASES: dict[str, tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...]] = {
    **{
        f"ubuntu-{version}": (
            (
                "https://archive.ubuntu.com/ubuntu",
                (name, f"{name}-updates", f"{name}-security"),
                ("main", "universe"),
            ),
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


def known_keys() -> tuple[bytes, ...]:
    return tuple(_KEYS.findall(files(__package__).joinpath("distribution_keys.asc").read_bytes()))


def sources_of(release: str, mirror: str | None) -> tuple[PackageSource, ...]:
    """mirror: of the first archive; that of Debian's security updates is beside it."""
    keys = known_keys()
    found: list[PackageSource] = []
    for number, (base, suites, components) in enumerate(RELEASES[release]):
        own = base if mirror is None else mirror.rstrip("/") + "-security" * number
        found += [PackageSource(own, suite, components, keys) for suite in suites]
    return tuple(found)


def signed_lists(source: PackageSource, wanted: Collection[str], machine: str) -> SignedLists:
    """wanted: NAME=VERSION; machine: as Debian calls it, amd64. Raises WinhostError: NoPackages."""
    data = _asked(f"{source.folder}/{_SIGNED}", _RELEASE)
    release = signed_text(data, source.keys)
    if release is None:
        raise _not_theirs(source, f"its {_SIGNED} has no good signature by a key that is known")
    kept, packages = {_SIGNED: data}, dict[str, PackageFile]()
    for path, size, hash_ in _lists(source, release.decode("utf-8", "replace"), machine):
        data = _asked(f"{source.folder}/{path}", min(size, _LIST))
        if sha256(data).hexdigest() != hash_:
            raise _not_theirs(source, f"{path} has another hash than its Release says")
        kept[path] = data
        for each in _packages(source, path, data):
            if f"{each.name}={each.version}" in wanted:
                packages.setdefault(f"{each.name}={each.version}", each)
    return SignedLists(kept, tuple(packages.values()))


def _lists(source: PackageSource, release: str, machine: str) -> Iterator[tuple[str, Bytes, str]]:
    """The smallest form of each component's list: its path, size and hash."""
    sums = {found[3]: (int(found[2]), found[1]) for line in release.splitlines() if (found := _SUM.fullmatch(line))}
    flat = source.suite.endswith("/")
    for folder in [""] if flat else [f"{each}/binary-{machine}/" for each in source.components]:
        names = [f"{folder}Packages{ending}" for ending in (".xz", ".gz", "")]
        path = next((name for name in names if name in sums), None)
        if path is None:
            raise _not_theirs(source, f"it lists no packages in {folder or source.suite} for {machine}")
        yield path, *sums[path]


def _packages(source: PackageSource, path: str, data: bytes) -> Iterator[PackageFile]:
    try:
        text = _unpacked(path, data).decode("utf-8", "replace")
    except (OSError, lzma.LZMAError, EOFError, ValueError) as error:
        raise _not_theirs(source, f"{path} cannot be read: {error}") from None
    for stanza in text.split("\n\n"):
        fields = (line.partition(": ") for line in stanza.splitlines())
        found = {name: value for name, separator, value in fields if name in _FIELDS and separator}
        at = found["Filename"] = found.get("Filename", "").removeprefix("./")
        if found.keys() == _FIELDS.keys() and all(re.fullmatch(_FIELDS[name], found[name]) for name in _FIELDS):
            base = source.base.rstrip("/") if not source.suite.endswith("/") else source.folder
            machine, version = found["Architecture"], found["Version"]
            size = int(found["Size"])
            yield PackageFile(found["Package"], version, machine, f"{base}/{at}", at, found["SHA256"], size)


def _unpacked(path: str, data: bytes) -> bytes:
    """Unpack up to a limit: a list of nothing but zeros would take all memory. Raises ValueError."""
    if path.endswith(".xz"):
        text = lzma.LZMADecompressor(memlimit=256 * MiB).decompress(data, _UNPACKED)
    elif path.endswith(".gz"):
        with gzip.open(io.BytesIO(data)) as file:
            text = file.read(_UNPACKED)
    else:
        text = data
    if len(text) >= _UNPACKED:
        raise ValueError("it is longer than any list of packages")
    return text


def _asked(url: str, most: Bytes) -> bytes:
    try:
        answer = fetch(url, most)
    except NotAnswered as error:
        raise _not_there(url, str(error)) from None
    if answer.status != 200:
        raise _not_there(url, f"is answered with {answer.status}")
    return answer.body


_HINT = "Name a mirror of the distribution with --archive https://…, or leave --release out"


def _not_there(url: str, why: str) -> WinhostError:
    return WinhostError("NoPackages", what=f"{visible(url)} {visible(why)}", hint=_HINT)


def _not_theirs(source: PackageSource, why: str) -> WinhostError:
    return WinhostError("NotSignedByThem", what=f"{visible(source.folder)}: {visible(why)}", hint=_HINT)
