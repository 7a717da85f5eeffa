"""Which image is taken: a dated one, by a sum that the right key signed; what Hyper-V cannot use is refused."""

import hashlib
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.errors import raises
from tests.images.mirror import Mirror, Signer, gpg, served, signers
from winhost.images import cloud_images
from winhost.images.cloud_images import SIGNING_KEY, CloudRelease, refuse_by_name, signed_sums
from winhost.images.download import RemoteImage, download, fetch_text
from winhost.model.errors import RefusedError

IMAGE = b"QFI\xfb and so on" * 10_000
SUM = hashlib.sha256(IMAGE).hexdigest()
NAME = "ubuntu-24.04-server-cloudimg-amd64.img"
SUMS = f"{SUM} *{NAME}\n{'1' * 64}  other.img\n# a word\n".encode()

needs_gpg = pytest.mark.skipif(
    not (shutil.which("gpg") and shutil.which("gpgv")), reason="gpg or gpgv is not installed"
)


@pytest.fixture(scope="module")
def keys() -> Iterator[list[Signer]]:
    with signers("right", "wrong") as made:
        yield made


def test_a_release_is_named_by_its_day() -> None:
    release = CloudRelease("noble", "20260814")
    assert release.url(release.image) == f"https://cloud-images.ubuntu.com/releases/noble/release-20260814/{NAME}"
    assert CloudRelease("resolute", "20260814.1").image == "ubuntu-26.04-server-cloudimg-amd64.img"


@pytest.mark.parametrize(
    ("series", "date", "says"),
    [
        ("jammy", "20260814", "no series 'jammy'"),
        ("../noble", "20260814", "no series"),
        ("noble", "current", "no day"),
        ("noble", "release", "no day"),
        ("noble", "20260814/../x", "no day"),
        ("noble", "20260814\n", "no day"),
    ],
)
def test_what_is_replaced_in_place_or_elsewhere_is_refused(series: str, date: str, says: str) -> None:
    with raises("NoSuchImage", match=says):
        CloudRelease(series, date)


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


@needs_gpg
def test_an_image_comes_from_a_signed_mirror(keys: list[Signer], tmp_path: Path) -> None:
    right, _ = keys
    with served(Mirror()) as mirror:
        release = CloudRelease("noble", "20260814", mirror.url)
        folder = "/noble/release-20260814/"
        mirror.files = {folder + NAME: IMAGE, f"{folder}SHA256SUMS": SUMS, f"{folder}SHA256SUMS.gpg": right.sign(SUMS)}
        texts = [fetch_text(release.url(name)) for name in ("SHA256SUMS", "SHA256SUMS.gpg")]
        sums = signed_sums(*texts, right.keyring, right.fingerprint)
        assert sums == {NAME: SUM, "other.img": "1" * 64}
        got = download(RemoteImage(release.url(release.image), sums[release.image]), tmp_path)
    assert got.read_bytes() == IMAGE


@needs_gpg
def test_no_other_signature_will_do(keys: list[Signer], tmp_path: Path) -> None:
    right, wrong = keys
    both = tmp_path / "both.keys"
    both.write_bytes(right.keyring.read_bytes() + wrong.keyring.read_bytes())
    good = right.sign(SUMS)
    for sums, signature, keyring, key in (
        (SUMS + b" ", good, right.keyring, right.fingerprint),
        (SUMS, wrong.sign(SUMS), both, right.fingerprint),
        (SUMS, good, wrong.keyring, right.fingerprint),
        (SUMS, good, right.keyring, SIGNING_KEY),
        (SUMS, b"", right.keyring, right.fingerprint),
        (SUMS, b"no signature", right.keyring, right.fingerprint),
        (SUMS, good[:-9], right.keyring, right.fingerprint),
    ):
        with raises("NotVerified"):
            signed_sums(sums, signature, keyring, key)
    assert signed_sums(SUMS, wrong.sign(SUMS) + good, right.keyring, right.fingerprint)
    assert signed_sums(SUMS, good, both, right.fingerprint)


@needs_gpg
def test_a_key_that_expired_signs_nothing_any_more() -> None:
    with signers("old") as (old,):
        signature = old.sign(SUMS)
        assert signed_sums(SUMS, signature, old.keyring, old.fingerprint)
        gpg(old.home, "--quick-set-expire", old.fingerprint, "seconds=1")
        old.keyring.write_bytes(gpg(old.home, "--export", old.fingerprint))
        time.sleep(2.1)  # gpg counts whole seconds
        with raises("NotVerified"):
            signed_sums(SUMS, signature, old.keyring, old.fingerprint)


@needs_gpg
def test_two_sums_of_one_name_are_refused(keys: list[Signer]) -> None:
    sums = SUMS + f"{'2' * 64} *{NAME}\n".encode()
    with raises("NotVerified", match="two sums"):
        signed_sums(sums, keys[0].sign(sums), keys[0].keyring, keys[0].fingerprint)


def test_without_gpgv_or_a_keyring_nothing_is_taken_on_trust(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cloud_images.shutil, "which", lambda _: None)
    with raises("NotVerified", match="gpgv is not installed"):
        signed_sums(SUMS, b"", tmp_path)
    monkeypatch.setattr(cloud_images.shutil, "which", lambda _: "/usr/bin/gpgv")
    with raises("NotVerified", match="no keyring at") as refused:
        signed_sums(SUMS, b"", tmp_path / "none")
    assert "SHA-256" in (refused.value.hint or "")
