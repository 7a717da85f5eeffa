"""What the WSL2 path writes inside the distro: network, CDI, and where packages come from.

The way in is not here: it comes from the side of Windows (wsl_conf/inside.ps1), before anything else can.
"""

import base64
import binascii
import ipaddress
import re
from dataclasses import dataclass
from hashlib import sha1, sha256
from importlib.resources import files
from typing import Self

NETWORK_FILE = "/etc/systemd/network/10-winhost.network"
CDI_SERVICE_FILE = "/etc/systemd/system/winhost-cdi.service"
CDI_PATH_FILE = "/etc/systemd/system/winhost-cdi.path"

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

# ---- the network


@dataclass(frozen=True)
class StaticAddress:
    """An address of the distro where bridged WSL is told `dhcp=false`, which leaves its adapter unconfigured."""

    address: ipaddress.IPv4Interface | ipaddress.IPv6Interface
    gateway: Address | None = None
    dns: tuple[Address, ...] = ()

    @classmethod
    def parse(cls, address: str, gateway: str | None = None, dns: tuple[str, ...] = ()) -> Self:
        """From text. Raises ValueError: no address with its prefix, or a gateway beyond it."""
        if "/" not in address:
            raise ValueError(f"{address!r} has no prefix length, as 192.0.2.10/24 has")
        found = ipaddress.ip_interface(address)
        way_out = ipaddress.ip_address(gateway) if gateway else None
        if way_out is not None and (way_out not in found.network or way_out == found.ip):
            raise ValueError(f"the gateway {way_out} is not another address of {found.network}")
        return cls(found, way_out, tuple(ipaddress.ip_address(each) for each in dns))


def network_file(static: StaticAddress, interface: str = "eth0") -> str:
    """For systemd-networkd. All distros of one WSL share their adapter: exactly one of them has this file."""
    if re.fullmatch(r"[A-Za-z0-9_.-]{1,15}", interface) is None:
        raise ValueError(f"{interface!r} is not the name of an interface")
    lines = [
        "# Written by winhost.",
        "[Match]",
        f"Name={interface}",
        "",
        "[Network]",
        f"Address={static.address.with_prefixlen}",
        *([f"Gateway={static.gateway}"] if static.gateway else []),
        *(f"DNS={each}" for each in static.dns),
        # Otherwise it waits for a router of IPv6, and all that wants the network waits for it: two minutes a boot.
        "IPv6AcceptRA=no",
    ]
    return "\n".join(lines) + "\n"


# ---- CDI

# The driver store that WSL mounts changes with the driver of Windows, which a running distro never sees: /usr/lib/wsl
# is no file system that tells of changes (systemd.path), so each boot, and each new nvidia-ctk, writes the spec anew.
# nvidia-cdi-refresh, from nvidia-container-toolkit 1.20 on, writes the same file; the same device in two files would be
# a conflict. It goes first.
CDI_SERVICE = """\
# Written by winhost.
[Unit]
Description=CDI specification of the GPUs that Windows lends
ConditionPathExists=/dev/dxg
ConditionPathExists=/usr/bin/nvidia-ctk
After=nvidia-cdi-refresh.service
Before=docker.service containerd.service

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/bin/nvidia-ctk cdi generate --mode=wsl --format=yaml --output=/run/cdi/nvidia.yaml

[Install]
WantedBy=multi-user.target
"""

CDI_PATH = """\
# Written by winhost.
[Unit]
Description=A new nvidia-ctk writes another CDI specification

[Path]
PathChanged=/usr/bin/nvidia-ctk
Unit=winhost-cdi.service

[Install]
WantedBy=multi-user.target
"""


# ---- where packages come from


@dataclass(frozen=True)
class Repository:
    """A source of packages, with the key that signs it. fingerprint: of that key, and who tells it."""

    name: str
    title: str
    uri: str
    suite: str
    components: tuple[str, ...]
    key_file: str
    fingerprint: str
    told_by: str

    @property
    def key(self) -> str:
        """The armoured public key."""
        return files(__package__).joinpath("keys", self.key_file).read_text(encoding="ascii")

    @property
    def key_sha256(self) -> str:
        return sha256(self.key.encode("ascii")).hexdigest()


TOOLKIT = Repository(
    name="winhost-nvidia-container-toolkit",
    title="NVIDIA's packages for containers",
    uri="https://nvidia.github.io/libnvidia-container/stable/deb/$(ARCH)",
    suite="/",
    components=(),
    key_file="nvidia-container-toolkit.asc",
    fingerprint="C95B321B61E88C1809C4F759DDCAE044F796ECB0",
    told_by="NVIDIA/nvidia-docker, gpgkey",
)


def docker(codename: str) -> Repository:
    """Docker Engine for an Ubuntu by its code name (`noble`)."""
    return Repository(
        name="winhost-docker",
        title="Docker's packages",
        uri="https://download.docker.com/linux/ubuntu",
        suite=codename,
        components=("stable",),
        key_file="docker.asc",
        fingerprint="9DC858229FC7DD38854AE2D88D81803C0EBFCD88",
        told_by="docker/docs, engine/install",
    )


# Docker runs a container with this runtime where it is told `--gpus`, or `--runtime nvidia`.
DOCKER_FILE = "/etc/docker/daemon.json"
DOCKER_SETTINGS = """\
{
  "runtimes": {
    "nvidia": {
      "path": "nvidia-container-runtime",
      "runtimeArgs": []
    }
  }
}
"""


def fingerprint(armoured: str) -> str:
    """Of the primary key in an armoured public key, version 4, in upper case (RFC 4880, 12.2). Raises ValueError."""
    inside = re.search(r"-----BEGIN PGP PUBLIC KEY BLOCK-----\r?\n(?:\S.*\n)*\r?\n([^-]*)", armoured)
    if inside is None:
        raise ValueError("it is no armoured public key")
    body = re.sub(r"^=.*", "", inside[1], flags=re.MULTILINE)  # the check sum
    try:
        data = base64.b64decode("".join(body.split()), validate=True)
    except binascii.Error:
        raise ValueError("it is no armoured public key") from None
    key = _first_packet(data)
    if not key or key[0] != 4:
        raise ValueError("it is no public key of version 4")
    # SHA-1 is what this version of fingerprints is made of; to meet a given one is still out of reach.
    digest = sha1(b"\x99" + len(key).to_bytes(2, "big") + key, usedforsecurity=False)
    return digest.hexdigest().upper()


_PUBLIC_KEY = 6


def _first_packet(data: bytes) -> bytes:
    """The body of the first packet, which is the primary key (RFC 4880, 4.2)."""
    header = data[0] if data else 0
    if header & 0x40:
        tag, start, size = header & 0x3F, *_new_length(data)
    else:
        octets = 1 << (header & 3)
        tag, start, size = (header & 0x3F) >> 2, 1 + octets, int.from_bytes(data[1 : 1 + octets], "big")
    body = data[start : start + size]
    if not header & 0x80 or tag != _PUBLIC_KEY or len(body) != size:
        raise ValueError("it does not begin with a public key")
    return body


def _new_length(data: bytes) -> tuple[int, int]:
    first = data[1] if len(data) > 1 else 0
    if first < 192:
        return 2, first
    if first < 224:
        return 3, ((first - 192) << 8) + int.from_bytes(data[2:3], "big") + 192
    return 6, int.from_bytes(data[2:6], "big")
