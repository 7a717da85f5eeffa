"""The seed of a guest: the content of a CD called CIDATA, which cloud-init reads when the guest first starts.

Sources: cloud-init's documentation of NoCloud, of its module `ssh`, and of network configuration version 2. On Hyper-V
there is no other way to configure a guest before somebody can log on to it. Names with a dash need Rock Ridge or
Joliet; the CD has both.

The template that is made here contains no secret. It has placeholders for the id of the VM and for the guest's own SSH
key, by which winhost recognizes the guest from its first answer on. The host generates the key and fills in both, so
that no private key is sent over a wire or stored in a plan. Nothing else of the CD changes: files on it have no
checksums.
"""

import io
import json
import re
from ipaddress import IPv4Address, IPv4Interface, IPv6Address, IPv6Interface
from time import gmtime, strftime, strptime, struct_time
from typing import Any

import yaml

from winhost.core.dataclass import dataclass
from winhost.model.errors import UsageError, visible
from winhost.model.once import once

INSTANCE = b"00000000-0000-0000-0000-000000000000"
"""The placeholder for the id of the VM. The id never changes: with another one, cloud-init would make other keys."""
HOST_KEYS = b"{host-keys%s}" % (b"." * 1013)
"""The placeholder for `ssh_keys` of cloud-init: JSON, which is also YAML, padded with blanks."""

# Images have no lists of packages, without which no driver could be chosen. cloud-init's `package_update` has no time
# limit: without a route, apt tries each address of each mirror. apt ends with 0 if it cannot fetch a list; it fails if
# another apt has the lock, such as the daily one of a first start.
_LISTS_S = 180
LISTS = (
    f"timeout --kill-after=10 {_LISTS_S} sh -c 'until apt-get -q -o Acquire::Retries=1 -o Acquire::http::Timeout=20 "
    "-o Acquire::https::Timeout=20 update; do sleep 5; done' "
    f"|| echo 'winhost: no lists of packages within {_LISTS_S} s. Does a mirror of Ubuntu answer this guest?'"
)
"""The command with which a guest fetches lists of packages on its first start. The start continues without them."""

_HOSTNAME = re.compile(r"(?!-)[a-z0-9-]{1,63}(?<!-)")  # RFC 1123, a single label
_ADMIN = re.compile(r"[a-z_][a-z0-9_-]{0,31}")  # as useradd takes them
_MAC = re.compile(r"(?:[0-9a-f]{2}[:-]?){5}[0-9a-f]{2}", re.IGNORECASE)
_PUBLIC = re.compile(r"[a-z0-9@.-]+ [A-Za-z0-9+/]+={0,2}(?: [^\x00-\x1f\x7f]+)?")

Interface = IPv4Interface | IPv6Interface
Address = IPv4Address | IPv6Address


@dataclass(frozen=True)
class GuestAddress:
    """An address with its network, as 192.0.2.10/24, its gateway and its resolvers."""

    interface: Interface
    gateway: Address
    resolvers: tuple[Address, ...] = ()


@dataclass(frozen=True)
class GuestSeed:
    """The settings for the first start of the guest. mac: of its one network adapter, as Hyper-V or Linux writes it;
    address: None for DHCP. Raises UsageError (SeedUnusable).
    """

    hostname: str
    admin: str
    admin_keys: tuple[str, ...]
    mac: str
    address: GuestAddress | None = None

    def __post_init__(self) -> None:
        _check(_HOSTNAME, self.hostname, "host name", "1 to 63 lower-case letters, digits and dashes between them")
        _check(_ADMIN, self.admin, "user", "1 to 32 lower-case letters, digits, _ and -, with a letter or _ first")
        _check(_MAC, self.mac, "MAC address", "12 hexadecimal digits, as 00155D010203 or 00:15:5d:01:02:03")
        if self.admin == "root":
            raise _seed_error("'root' cannot be the user: Ubuntu locks it out of SSH")
        if not self.admin_keys:
            raise _seed_error("nobody could log on: there is no public key")
        for key in self.admin_keys:
            _check(_PUBLIC, key, "public key", "one line of a .pub file, as ssh-ed25519 AAAA…")
        if self.address is not None:
            gateway, network = self.address.gateway, self.address.interface.network
            if gateway not in network and not (gateway.version == network.version == 6 and gateway.is_link_local):
                raise _seed_error(f"the gateway {gateway} is not in the network {network}")


def _check(pattern: re.Pattern[str], text: str, what: str, should: str) -> None:
    if re.search("PRIVATE KEY", text):  # a private key in place of a public one is never shown
        raise _seed_error(f"there is a private key in place of the {what}")
    if not pattern.fullmatch(text):
        raise _seed_error(f"'{visible(text[:100])}' is no {what}: {should}")


def _seed_error(why: str) -> UsageError:
    return UsageError("SeedUnusable", what=f"no guest can be set up like this: {why}")


def seed_template(seed: GuestSeed) -> bytes:
    """Make the CD without the id of the VM and without keys. The bytes are the same each time."""
    files = {
        "user-data": b"#cloud-config\n" + _yaml(user_data(seed)) + b"ssh_keys: " + HOST_KEYS + b"\n",
        "meta-data": _yaml({"instance-id": INSTANCE.decode("ascii"), "local-hostname": seed.hostname}),
        "network-config": _yaml(network_config(seed)),
    }
    iso = _pycdlib().PyCdlib()
    iso.new(interchange_level=3, sys_ident="LINUX", vol_ident="CIDATA", joliet=3, rock_ridge="1.09")
    for name, content in files.items():
        iso_path = f"/{name.replace('-', '').upper()}.;1"
        iso.add_fp(io.BytesIO(content), len(content), iso_path, rr_name=name, joliet_path=f"/{name}")
    image = io.BytesIO()
    iso.write_fp(image)
    iso.close()
    return image.getvalue()


def fill_template(template: bytes, instance: str, private: str, public: str) -> bytes:
    """Fill in the id and the key of one guest, which make the CD secret. The script on the host does the same."""
    keys = json.dumps({"ed25519_private": private, "ed25519_public": public}).encode("ascii")
    return template.replace(INSTANCE, instance.encode("ascii")).replace(HOST_KEYS, keys.ljust(len(HOST_KEYS)))


class _Epoch:
    """The epoch in place of the time with which pycdlib stamps files: a seed that is made twice must be the same."""

    time = staticmethod(lambda: 0.0)
    gmtime = localtime = staticmethod(gmtime)
    strftime, strptime, struct_time = strftime, strptime, struct_time


@once
def _pycdlib() -> Any:
    import pycdlib

    stamping: tuple[Any, ...] = (pycdlib.pycdlib, pycdlib.headervd, pycdlib.dates, pycdlib.utils)
    for module in stamping:
        module.time = _Epoch
    return pycdlib


def _yaml(document: dict[str, Any]) -> bytes:
    return yaml.safe_dump(document, sort_keys=False, allow_unicode=False).encode("ascii")


def user_data(seed: GuestSeed) -> dict[str, Any]:
    """Return the user data for cloud-init, without keys of the host."""
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
        "runcmd": [LISTS],
        "ssh_deletekeys": True,
        "ssh": {"emit_keys_to_console": False},
    }


def network_config(seed: GuestSeed) -> dict[str, Any]:
    """Configure only the guest's own adapter, not devices that are assigned to it later."""
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
