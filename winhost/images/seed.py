"""The seed of a guest: what cloud-init finds on a CD called CIDATA when the guest starts for the first time.

After cloud-init's documentation of NoCloud, of its module `ssh`, and of network configuration version 2. On Hyper-V
nothing else reaches a guest that nobody logs on to. Names with a dash need Rock Ridge or Joliet; the CD has both.

It holds a secret, the guest's own SSH key, by which winhost knows the guest from its first answer on. It is made in
memory, and nothing here writes it to disk; no error says anything of it.
"""

import io
import re
from binascii import Error, a2b_base64
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Interface, IPv6Address, IPv6Interface
from typing import Any
from uuid import UUID

import yaml

from winhost.model.errors import UsageError, visible
from winhost.model.secrets import Secret

_HOSTNAME = re.compile(r"(?!-)[a-z0-9-]{1,63}(?<!-)")  # RFC 1123, a single label
_ADMIN = re.compile(r"[a-z_][a-z0-9_-]{0,31}")  # as useradd takes them
_MAC = re.compile(r"(?:[0-9a-f]{2}[:-]?){5}[0-9a-f]{2}", re.IGNORECASE)
_PUBLIC = re.compile(r"[a-z0-9@.-]+ [A-Za-z0-9+/]+={0,2}(?: [^\x00-\x1f\x7f]+)?")
_HOST_PUBLIC = re.compile(r"ssh-ed25519 [A-Za-z0-9+/]+={0,2}(?: [^\x00-\x1f\x7f]+)?")
_PRIVATE = re.compile(  # one without a passphrase: cipher "none"
    r"-----BEGIN OPENSSH PRIVATE KEY-----\n(b3BlbnNzaC1rZXktdjEAAAAABG5vbmU[A-Za-z0-9+/=\n]+)\n"
    r"-----END OPENSSH PRIVATE KEY-----\n?"
)

Interface = IPv4Interface | IPv6Interface
Address = IPv4Address | IPv6Address


@dataclass(frozen=True)
class GuestAddress:
    """An address with its network, as 192.0.2.10/24, the gateway in that network, and resolvers."""

    interface: Interface
    gateway: Address
    resolvers: tuple[Address, ...] = ()


@dataclass(frozen=True)
class HostKey:
    """The guest's SSH key, ed25519. private: in OpenSSH's format; public: its line, by which the guest is known."""

    private: Secret
    public: str


@dataclass(frozen=True)
class GuestSeed:
    """What the guest is told. instance: which never changes, or cloud-init starts over with other keys; mac: of its
    one network adapter, as Hyper-V or Linux writes it; address: None for DHCP. Raises UsageError (SeedUnusable).
    """

    instance: UUID
    hostname: str
    admin: str
    admin_keys: tuple[str, ...]
    host_key: HostKey
    mac: str
    address: GuestAddress | None = None

    def __post_init__(self) -> None:
        _check(_HOSTNAME, self.hostname, "host name", "1 to 63 lower-case letters, digits and dashes between them")
        _check(_ADMIN, self.admin, "user", "1 to 32 lower-case letters, digits, _ and -, with a letter or _ first")
        _check(_MAC, self.mac, "MAC address", "12 hexadecimal digits, as 00155D010203 or 00:15:5d:01:02:03")
        if self.admin == "root":
            raise _unusable("'root' cannot be the user: Ubuntu locks it out of SSH")
        if not self.admin_keys:
            raise _unusable("nobody could log on: there is no public key")
        for key in self.admin_keys:
            _check(_PUBLIC, key, "public key", "one line of a .pub file, as ssh-ed25519 AAAA…")
        _check(_HOST_PUBLIC, self.host_key.public, "host key", "one line, ssh-ed25519 AAAA…")
        if not _is_pair(self.host_key):
            raise _unusable("the private host key is not OpenSSH's for this public one, without a passphrase")
        if self.address is not None:
            _check_gateway(self.address)


def _check_gateway(address: GuestAddress) -> None:
    gateway, network = address.gateway, address.interface.network
    if gateway not in network and not (gateway.version == network.version == 6 and gateway.is_link_local):
        raise _unusable(f"the gateway {gateway} is not in the network {network}")


def _is_pair(key: HostKey) -> bool:
    """The file of a private key holds the public one as well, in clear."""
    found = _PRIVATE.fullmatch(key.private.reveal())
    try:
        return found is not None and a2b_base64(key.public.split()[1]) in a2b_base64(found[1])
    except Error:
        return False


def _check(pattern: re.Pattern[str], text: str, what: str, should: str) -> None:
    if re.search("PRIVATE KEY", text):  # given as the wrong one: shown to nobody
        raise _unusable(f"a private key stands where the {what} should")
    if not pattern.fullmatch(text):
        raise _unusable(f"'{visible(text[:100])}' is no {what}: {should}")


def _unusable(why: str) -> UsageError:
    return UsageError("SeedUnusable", what=f"no guest can be set up like this: {why}")


def seed_iso(seed: GuestSeed) -> bytes:
    """The CD, ready for the guest's DVD drive. Secret."""
    import pycdlib

    iso = pycdlib.PyCdlib()
    iso.new(interchange_level=3, sys_ident="LINUX", vol_ident="CIDATA", joliet=3, rock_ridge="1.09")
    for name, content in _files(seed).items():
        iso_path = f"/{name.replace('-', '').upper()}.;1"
        iso.add_fp(io.BytesIO(content), len(content), iso_path, rr_name=name, joliet_path=f"/{name}")
    image = io.BytesIO()
    iso.write_fp(image)
    iso.close()
    return image.getvalue()


def _files(seed: GuestSeed) -> dict[str, bytes]:
    return {
        "user-data": b"#cloud-config\n" + _yaml(_user_data(seed)),
        "meta-data": _yaml({"instance-id": str(seed.instance), "local-hostname": seed.hostname}),
        "network-config": _yaml(_network(seed)),
    }


def _yaml(document: dict[str, Any]) -> bytes:
    return yaml.safe_dump(document, sort_keys=False, allow_unicode=False).encode("ascii")


def _user_data(seed: GuestSeed) -> dict[str, Any]:
    admin = {
        "name": seed.admin,
        "gecos": "winhost",
        "shell": "/bin/bash",
        "sudo": "ALL=(ALL) NOPASSWD:ALL",
        "lock_passwd": True,
        "ssh_authorized_keys": list(seed.admin_keys),
    }
    return {
        "users": [admin],  # without `default`, there is no user called ubuntu
        "disable_root": True,
        "ssh_pwauth": False,
        "ssh_deletekeys": True,
        "ssh_keys": {"ed25519_private": seed.host_key.private.reveal(), "ed25519_public": seed.host_key.public},
        "ssh": {"emit_keys_to_console": False},
    }


def _network(seed: GuestSeed) -> dict[str, Any]:
    """Only this adapter is named: what is assigned to the guest later is nobody's way in."""
    digits = re.sub("[:-]", "", seed.mac).lower()
    mac = ":".join(digits[at : at + 2] for at in range(0, 12, 2))  # netplan matches it in this form alone
    adapter: dict[str, Any] = {"match": {"macaddress": mac}, "set-name": "eth0"}
    if seed.address is None:
        adapter |= {"dhcp4": True, "dhcp-identifier": "mac"}
    else:
        everywhere = "0.0.0.0/0" if seed.address.gateway.version == 4 else "::/0"  # older cloud-init: not `default`
        adapter |= {
            "dhcp4": False,
            "addresses": [str(seed.address.interface)],
            "routes": [{"to": everywhere, "via": str(seed.address.gateway)}],
        }
        if seed.address.resolvers:
            adapter["nameservers"] = {"addresses": [str(each) for each in seed.address.resolvers]}
    return {"version": 2, "ethernets": {"guest": adapter}}
