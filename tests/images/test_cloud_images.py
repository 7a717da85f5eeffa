"""Which image is taken: a dated one, by a sum that the right key signed; what Hyper-V cannot use is refused."""

from hashlib import sha256
from pathlib import Path

import pytest

from tests.errors import raises
from tests.images.mirror import Mirror, Signer, served, signed_release, signer
from winhost.images import signed_sums as sums_module
from winhost.images.signed_sums import SIGNING_KEY, canonicals_key, signed_sums
from winhost.images.ubuntu_releases import CloudRelease, refuse_by_name, release_named
from winhost.model.errors import RefusedError

IMAGE = b"QFI\xfb and so on" * 10_000
SUM = sha256(IMAGE).hexdigest()
NAME = "ubuntu-24.04-server-cloudimg-amd64.img"
SUMS = f"{SUM} *{NAME}\n{'1' * 64}  other.img\n# a word\n".encode()
REAL = Path(__file__).parents[1] / "data" / "images" / "noble-20260725"


@pytest.fixture(scope="module")
def right() -> Signer:
    return signer("right")


@pytest.fixture(scope="module")
def wrong() -> Signer:
    return signer("wrong")


@pytest.fixture
def trusted(right: Signer, monkeypatch: pytest.MonkeyPatch) -> Signer:
    """Ours in the place of Canonical's."""
    trust(monkeypatch, right.public, right.fingerprint)
    return right


def trust(monkeypatch: pytest.MonkeyPatch, key: bytes, fingerprint: str) -> None:
    monkeypatch.setattr(sums_module, "canonicals_key", lambda: key)
    monkeypatch.setattr(sums_module, "SIGNING_KEY", fingerprint)


def test_what_canonical_signed_is_believed_by_the_key_that_winhost_brings() -> None:
    sums, signature = ((REAL / name).read_bytes() for name in ("SHA256SUMS", "SHA256SUMS.gpg"))
    assert signed_sums(sums, signature)[NAME] == "d1940f7d69d343355e183dff1e08a59852d32e7309baa7a4bad8365b11b005ac"
    with raises("NotVerified", match=SIGNING_KEY):
        signed_sums(sums.replace(b"d1940", b"d1941"), signature)


def test_a_release_is_named_by_its_day() -> None:
    release = release_named("ubuntu-24.04@20260814")
    assert release.source(release.image) == f"https://cloud-images.ubuntu.com/releases/noble/release-20260814/{NAME}"
    assert release_named("ubuntu-26.04@20260814.1").image == "ubuntu-26.04-server-cloudimg-amd64.img"


@pytest.mark.parametrize(
    "name",
    ["ubuntu-22.04@20260814", "noble", "ubuntu-24.04@current", "ubuntu-24.04@20260814/../x", "ubuntu-24.04@20260814\n"],
)
def test_what_is_replaced_in_place_or_elsewhere_is_refused(name: str) -> None:
    with raises("NoSuchImage", match="knows no image"):
        release_named(name)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("ubuntu-24.04-minimal-cloudimg-amd64.img", "initrd"),
        ("https://example.org/noble-MINIMAL-cloudimg-amd64.img", "initrd"),
        ("ubuntu-24.04-server-cloudimg-amd64-azure.vhd.tar.gz", "Azure"),
        ("C:\\images\\livecd.ubuntu-cpc.azure.vhd", "Azure"),
        ("ubuntu-24.04-server-cloudimg-arm64.img", "another processor"),
    ],
)
def test_images_that_would_not_start_or_listen_are_refused(name: str, why: str) -> None:
    with raises("ImageRefused") as refused:
        refuse_by_name(name)
    assert isinstance(refused.value, RefusedError)
    assert why in (refused.value.meaning or "")


@pytest.mark.parametrize("name", [NAME, "/srv/minimal/azure/ours.img", "minimalist.img"])
def test_others_are_not(name: str) -> None:
    refuse_by_name(name)


def test_the_newest_release_of_a_signed_mirror_is_taken(trusted: Signer) -> None:
    with served(Mirror(signed_release(trusted, IMAGE))) as mirror:
        release = release_named("ubuntu-24.04", mirror.url)
        assert release == CloudRelease("24.04", "20260814", mirror.url)
        assert release.signed_sha256() == SUM


def test_a_copy_of_the_releases_in_a_folder_will_do(trusted: Signer, tmp_path: Path) -> None:
    for path, content in signed_release(trusted, IMAGE).items():
        if not path.endswith("/"):
            (tmp_path / path[1:]).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path[1:]).write_bytes(content)
    (tmp_path / "noble" / "release").mkdir()
    release = release_named("ubuntu-24.04", str(tmp_path))
    assert (release.date, release.signed_sha256()) == ("20260814", SUM)
    with raises("NoSuchImage", match="cannot be read: No such file"):
        release_named("ubuntu-24.04@20260101", str(tmp_path)).signed_sha256()
    with raises("NoSuchImage", match="lists no release"):
        release_named("ubuntu-26.04", str(tmp_path))


def test_no_other_signature_will_do(right: Signer, wrong: Signer, monkeypatch: pytest.MonkeyPatch) -> None:
    good, real = right.sign(SUMS), canonicals_key()
    for sums, signature, key, fingerprint in (
        (SUMS + b" ", good, right.public, right.fingerprint),
        (SUMS, wrong.sign(SUMS), right.public, right.fingerprint),
        (SUMS, wrong.sign(SUMS), wrong.public, right.fingerprint),
        (SUMS, good, wrong.public, right.fingerprint),
        (SUMS, good, right.public, SIGNING_KEY),
        (SUMS, good, real, SIGNING_KEY),
        (SUMS, b"", right.public, right.fingerprint),
        (SUMS, b"no signature", right.public, right.fingerprint),
        (SUMS, good[:-9], right.public, right.fingerprint),
        (SUMS, good, b"no key", right.fingerprint),
    ):
        trust(monkeypatch, key, fingerprint)
        with raises("NotVerified"):
            signed_sums(sums, signature)
    trust(monkeypatch, right.public, right.fingerprint)
    assert signed_sums(SUMS, wrong.sign(SUMS) + good) == {NAME: SUM, "other.img": "1" * 64}


def test_two_sums_of_one_name_are_refused(trusted: Signer) -> None:
    sums = SUMS + f"{'2' * 64} *{NAME}\n".encode()
    with raises("NotVerified", match="two sums"):
        signed_sums(sums, trusted.sign(sums))
