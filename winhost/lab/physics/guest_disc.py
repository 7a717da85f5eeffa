"""The disc that a guest finds on its first start, read as cloud-init does: the label, three files, their YAML."""

import io
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from winhost.core.dataclass import dataclass
from winhost.model.once import once


@dataclass(frozen=True)
class GuestDisc:
    """private, public: the host key; address: with its network, None for DHCP."""

    instance: str
    hostname: str
    user: str
    keys: Sequence[str]
    private: str
    public: str
    mac: str
    address: str | None


_LABEL = slice(16 * 2048 + 40, 16 * 2048 + 72)
"""Of ISO 9660, where its first volume descriptor has it."""


def is_for_cloud_init(image: bytes) -> bool:
    """NoCloud recognizes its disc by the label alone."""
    return image[_LABEL].rstrip() == b"CIDATA"


@once
def read_disc(image: bytes) -> GuestDisc:
    """Raises what its libraries raise where it is none for NoCloud."""
    files = _files(image)
    meta, user_data = files["meta-data"], files["user-data"]
    (adapter,) = files["network-config"]["ethernets"].values()
    (user,) = user_data["users"]
    return GuestDisc(
        instance=meta["instance-id"],
        hostname=meta["local-hostname"],
        user=user["name"],
        keys=tuple(user["ssh_authorized_keys"]),
        private=user_data["ssh_keys"]["ed25519_private"],
        public=user_data["ssh_keys"]["ed25519_public"],
        mac=adapter["match"]["macaddress"],
        address=next(iter(adapter.get("addresses", ())), None),
    )


def _files(image: bytes) -> Mapping[str, Any]:
    import pycdlib

    assert is_for_cloud_init(image)
    iso = pycdlib.PyCdlib()
    iso.open_fp(io.BytesIO(image))
    found = {}
    for name in ("meta-data", "user-data", "network-config"):
        content = io.BytesIO()
        iso.get_file_from_iso_fp(content, rr_path=f"/{name}")
        found[name] = yaml.safe_load(content.getvalue())
    iso.close()
    return found
