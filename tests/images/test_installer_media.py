"""Installation media are taken by signed sums alone."""

from hashlib import sha256
from pathlib import Path

import pytest

from tests.errors import raises
from tests.images.mirror import Mirror, Signer, served, signer
from winhost.images import signed_sums
from winhost.images.signed_sums import MEDIA_KEY, media_key
from winhost.images.ubuntu_releases import InstallerRelease

ISO = b"not a whole ISO"
NAME = "ubuntu-24.04.4-live-server-amd64.iso"


@pytest.fixture
def canonical(monkeypatch: pytest.MonkeyPatch) -> Signer:
    key = signer("canonical")
    monkeypatch.setattr(signed_sums, "media_key", lambda: key.public)
    monkeypatch.setattr(signed_sums, "MEDIA_KEY", key.fingerprint)
    return key


def files(by: Signer, image: bytes = ISO) -> dict[str, bytes]:
    sums = f"{sha256(ISO).hexdigest()} *{NAME}\n".encode()
    return {NAME: image, "SHA256SUMS": sums, "SHA256SUMS.gpg": by.sign(sums)}


def test_an_image_comes_by_its_signed_sum(canonical: Signer, tmp_path: Path) -> None:
    with served(Mirror({f"/24.04.4/{name}": data for name, data in files(canonical).items()})) as mirror:
        assert InstallerRelease("24.04.4", mirror.url).fetched(tmp_path).read_bytes() == ISO


def test_a_folder_is_a_mirror_and_another_image_is_refused(canonical: Signer, tmp_path: Path) -> None:
    for name, data in files(canonical, b"another").items():
        (tmp_path / "24.04.4").mkdir(exist_ok=True)
        (tmp_path / "24.04.4" / name).write_bytes(data)
    with raises("NotThisImage"):
        InstallerRelease("24.04.4", str(tmp_path)).fetched(tmp_path)


def test_sums_of_another_key_and_of_another_release_are_refused(canonical: Signer, tmp_path: Path) -> None:
    folder = tmp_path / "24.04.3"
    folder.mkdir()
    for name, data in files(canonical).items():
        (folder / name).write_bytes(data)
    with raises("NotInRelease"):
        InstallerRelease("24.04.3", str(tmp_path)).signed_sha256()
    (folder / "SHA256SUMS.gpg").write_bytes(signer("somebody").sign((folder / "SHA256SUMS").read_bytes()))
    with raises("NotVerified"):
        InstallerRelease("24.04.3", str(tmp_path)).signed_sha256()


@pytest.mark.parametrize(
    ("version", "code"), [("24.04.1", "MediaTooOld"), ("24.04", "MediaTooOld"), ("22.04.5", "NoSuchMedia")]
)
def test_media_that_harm_are_refused_by_their_version(version: str, code: str) -> None:
    with raises(code):
        InstallerRelease(version)
    assert InstallerRelease("26.04").image == "ubuntu-26.04-live-server-amd64.iso"


def test_the_key_is_the_one_with_this_fingerprint() -> None:
    import pysequoia

    assert pysequoia.Cert.from_bytes(media_key()).fingerprint == MEDIA_KEY.lower()
