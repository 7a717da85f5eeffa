"""Packages by name and version, from an archive on loopback: what is believed of it, and what not."""

import gzip
import hashlib
import lzma
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import pysequoia
import pytest

from tests.errors import raises
from tests.images.mirror import Mirror, Signer, served, signer
from winhost.offline.package_archive import (
    RELEASES,
    PackageSource,
    distribution_keys,
    fetch_signed_lists,
    package_sources,
)

DEBS = {"hello_1%3a2.0-1_amd64.deb": b"hello", "other_3.0_all.deb": b"other"}


def stanza(name: str, version: str, machine: str, data: bytes, path: str) -> str:
    hash_ = hashlib.sha256(data).hexdigest()
    return (
        f"Package: {name}\nVersion: {version}\nArchitecture: {machine}\nDescription: it\n says: much\n"
        f"Filename: {path}\nSize: {len(data)}\nSHA256: {hash_}\n"
    )


@dataclass
class Archive:
    """Signed by its key, anew with each change. flat: without suites; lists: the text of each component's."""

    mirror: Mirror
    key: Signer
    flat: bool = False
    base: str = "/debian"
    suite: str = "noble"
    lists: dict[str, str] = field(default_factory=dict)
    ending: str = ".xz"

    @property
    def source(self) -> PackageSource:
        armoured = self.key.public
        base = f"{self.mirror.url}{self.base}"
        if self.flat:
            return PackageSource(base, "/", (), (armoured,))
        return PackageSource(base, self.suite, tuple(self.lists), (armoured,))

    def publish(self) -> None:
        sums = []
        top = self.base if self.flat else f"{self.base}/dists/{self.suite}"
        for component, text in self.lists.items():
            place = "Packages" if self.flat else f"{component}/binary-amd64/Packages"
            packed = {".xz": lzma.compress, ".gz": gzip.compress, "": bytes}[self.ending](text.encode())
            self.mirror.files[f"{top}/{place}{self.ending}"] = packed
            sums.append(f" {hashlib.sha256(packed).hexdigest()} {len(packed):>16} {place}{self.ending}")
        release = "\n".join(["Origin: test", "SHA256:", *sums, ""]).encode()
        self.mirror.files[f"{top}/InRelease"] = signed(self.key, release)

    def find(self, *wanted: str) -> dict[str, str]:
        return {each.name: each.cached_as for each in fetch_signed_lists(self.source, wanted, "amd64").packages}


def signed(key: Signer, data: bytes) -> bytes:
    return bytes(pysequoia.sign(key.tsk.signer(), data, mode=pysequoia.SignatureMode.CLEAR))


@pytest.fixture
def archive() -> Iterator[Archive]:
    with served(Mirror()) as mirror:
        made = Archive(mirror, signer("an archive"))
        for path, data in DEBS.items():
            mirror.files[f"/debian/pool/{path}"] = data
        made.lists = {
            "main": stanza("hello", "1:2.0-1", "amd64", DEBS["hello_1%3a2.0-1_amd64.deb"], "pool/h.deb"),
            "universe": stanza("other", "3.0", "all", b"other", "pool/o.deb")
            + "\n"
            + stanza("other", "2.0", "all", b"older", "pool/o2.deb"),
        }
        made.publish()
        yield made


WANTED = ("hello=1:2.0-1", "other=3.0")


@pytest.mark.parametrize("ending", [".xz", ".gz", ""])
def test_they_are_found_by_name_and_version(archive: Archive, ending: str) -> None:
    archive.mirror.files.clear()
    archive.ending = ending
    archive.publish()
    assert archive.find(*WANTED) == {"hello": "hello_1%3a2.0-1_amd64.deb", "other": "other_3.0_all.deb"}
    assert archive.find("other=2.0") == {"other": "other_2.0_all.deb"}
    assert archive.find("hello=2.0-1") == {}


def test_an_archive_without_suites_is_read_alike(archive: Archive) -> None:
    archive.flat, archive.lists = True, {"": archive.lists["main"].replace("pool/h.deb", "./h.deb")}
    archive.publish()
    (found,) = fetch_signed_lists(archive.source, WANTED, "amd64").packages
    assert (found.path, found.url) == ("h.deb", f"{archive.mirror.url}/debian/h.deb")


def test_what_somebody_else_signed_is_refused(archive: Archive) -> None:
    stranger = replace(archive, key=signer("a stranger"))
    stranger.publish()
    with raises("NotSignedByThem", match="no good signature by a key that is known"):
        fetch_signed_lists(archive.source, WANTED, "amd64")


@pytest.mark.parametrize("what", ["InRelease", "main/binary-amd64/Packages.xz"])
def test_what_was_changed_on_its_way_is_refused(archive: Archive, what: str) -> None:
    path = f"/debian/dists/noble/{what}"
    data = archive.mirror.files[path]
    at = data.index(b"test") if what == "InRelease" else len(data) // 2
    archive.mirror.files[path] = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
    with raises("NotSignedByThem", match="no good signature|another hash"):
        fetch_signed_lists(archive.source, WANTED, "amd64")


def test_a_text_without_a_signature_is_refused(archive: Archive) -> None:
    archive.mirror.files["/debian/dists/noble/InRelease"] = b"Origin: test\nSHA256:\n"
    with raises("NotSignedByThem"):
        fetch_signed_lists(archive.source, WANTED, "amd64")


@pytest.mark.parametrize("path", ["../../x.deb", "/etc/x.deb", "a b.deb", "a.txt", "https://elsewhere/x.deb/../y"])
def test_a_file_at_a_strange_place_is_not_taken(archive: Archive, path: str) -> None:
    archive.lists["main"] = archive.lists["main"].replace("pool/h.deb", path)
    archive.publish()
    assert archive.find(*WANTED) == {"other": "other_3.0_all.deb"}


def test_an_archive_that_is_not_there_is_told(archive: Archive) -> None:
    with raises("NoPackages", match="answered with 404"):
        fetch_signed_lists(replace(archive.source, suite="jammy"), WANTED, "amd64")
    with raises("NotSignedByThem", match="lists no packages in main/binary-arm64/"):
        fetch_signed_lists(archive.source, WANTED, "arm64")


def test_each_release_has_its_suites_and_known_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = distribution_keys()
    prints = {str(pysequoia.Cert.from_bytes(each).fingerprint).upper() for each in keys}
    assert prints == {
        "F6ECB3762474EDA9D21B7022871920D1991BC93C",
        "B8B80B5B623EAB6AD8775C45B7C5D7D6350947F8",
        "05AB90340C0C5E797F44A8C8254CF3B5AEC0A8F0",
        "04B54C3CDCA79751B16BC6B5225629DF75B188BD",
        "5E04A1E3223A19A20706E20F9904613D4CCE68C6",
    }
    for release in RELEASES:
        assert any(each.suite.endswith("-security") for each in package_sources(release, None))
        assert all(each.base.startswith("https://") for each in package_sources(release, None))
    mirrored = package_sources("debian-12", "https://mirror.example.com/debian/")
    assert {each.base for each in mirrored} == {
        "https://mirror.example.com/debian",
        "https://mirror.example.com/debian-security",
    }
