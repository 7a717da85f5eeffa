"""SHA256SUMS of Ubuntu's images, believed only with Canonical's signature.

The keys are the "UEC Image Automatic Signing Key" of cloud images, and the "Ubuntu CD Image Automatic Signing Key"
of 2012, of installation media; their fingerprints are what makes the files beside this one be those keys.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from typing import TYPE_CHECKING

from winhost.model.errors import UsageError

if TYPE_CHECKING:
    from pysequoia import Cert

SIGNING_KEY = "D2EB44626FDDC30B513D5BB71A5D6C4C7DB87C81"
MEDIA_KEY = "843938DF228D22F7B3742BC0D94AA3F0EFE21092"
_LINE = re.compile(r"([0-9a-f]{64}) [ *]([A-Za-z0-9._+-]+)")


def canonicals_key() -> bytes:
    return files(__package__).joinpath("ubuntu_cloud_images.asc").read_bytes()


def media_key() -> bytes:
    return files(__package__).joinpath("ubuntu_cd_images.asc").read_bytes()


def signed_sums(sums: bytes, signature: bytes, *, of_media: bool = False) -> Mapping[str, str]:
    """SHA-256 by file name, of sums with a good signature by this very key. Raises UsageError (NotVerified)."""
    key, fingerprint = (media_key(), MEDIA_KEY) if of_media else (canonicals_key(), SIGNING_KEY)
    if not any(_is_good(sums, each, key, fingerprint) for each in _signatures(signature)):
        raise _verification_error(f"SHA256SUMS has no good signature by {fingerprint}")
    found: dict[str, str] = {}
    for line in sums.decode("ascii", "replace").splitlines():
        if (match := _LINE.fullmatch(line)) and found.setdefault(match[2], match[1]) != match[1]:
            raise _verification_error(f"SHA256SUMS has two sums of {match[2]}")
    return found


def _verification_error(what: str) -> UsageError:
    hint = "Take another mirror; or give the SHA-256 of an image that you checked yourself"
    return UsageError("NotVerified", what=what, hint=hint)


def _signatures(text: bytes) -> Iterator[bytes]:
    """Yield the signatures, of which some may be by other keys."""
    from pysequoia.packet import PacketPile, Tag

    try:
        yield from (bytes(packet) for packet in PacketPile.from_bytes(text) if packet.tag == Tag.Signature)
    except Exception:  # noqa: BLE001 - the library has no class of its own for what is no OpenPGP
        return


def signed_text(data: bytes, keys: Sequence[bytes]) -> bytes | None:
    """Return the content of a signed text, where the signature is good and by one of these armoured keys."""
    import pysequoia

    try:
        known = [pysequoia.Cert.from_bytes(each) for each in keys]
        verified = pysequoia.verify(bytes=data, store=lambda ids: known)
    except Exception:  # noqa: BLE001 - as above
        return None
    ours = {str(each.fingerprint).lower() for each in known}
    good = any(str(each.certificate).lower() in ours for each in verified.valid_sigs)
    return bytes(verified.bytes) if good and verified.bytes is not None else None


def _is_good(sums: bytes, signature: bytes, key: bytes, fingerprint: str) -> bool:
    import pysequoia

    def store(ids: list[str]) -> "list[Cert]":
        return [known]

    try:
        known = pysequoia.Cert.from_bytes(key)
        verified = pysequoia.verify(bytes=sums, store=store, signature=pysequoia.Sig.from_bytes(signature))
    except Exception:  # noqa: BLE001 - as above: whatever it says, the sums are not verified
        return False
    return any(each.certificate == fingerprint.lower() for each in verified.valid_sigs)
