"""The network of a distro that has an address of its own: a file for systemd-networkd."""

import ipaddress
from typing import Self

from winhost.core.dataclass import dataclass

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


@dataclass(frozen=True)
class StaticAddress:
    """A static address of a bridged distro: with `dhcp=false` WSL leaves its adapter unconfigured."""

    address: ipaddress.IPv4Interface | ipaddress.IPv6Interface
    gateway: Address | None = None
    dns: tuple[Address, ...] = ()

    @classmethod
    def parse(cls, address: str, gateway: str | None = None, dns: tuple[str, ...] = ()) -> Self:
        """Parse an address. Raises ValueError for an address without prefix, or a gateway outside its network."""
        if "/" not in address:
            raise ValueError(f"{address!r} has no prefix length, as 192.0.2.10/24 has")
        found = ipaddress.ip_interface(address)
        outward = ipaddress.ip_address(gateway) if gateway else None
        if outward is not None and (outward not in found.network or outward == found.ip):
            raise ValueError(f"the gateway {outward} is not another address of {found.network}")
        return cls(found, outward, tuple(ipaddress.ip_address(each) for each in dns))


def network_file(static: StaticAddress) -> str:
    """The file for systemd-networkd. All distros of one WSL share their adapter: exactly one of them has this file."""
    lines = [
        "# Written by winhost.",
        "[Match]",
        "Name=eth0",
        "",
        "[Network]",
        f"Address={static.address.with_prefixlen}",
        *([f"Gateway={static.gateway}"] if static.gateway else []),
        *(f"DNS={each}" for each in static.dns),
        # Otherwise it waits for a router of IPv6, and all that wants the network waits for it: two minutes a boot.
        "IPv6AcceptRA=no",
    ]
    return "\n".join(lines) + "\n"
