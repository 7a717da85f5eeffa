"""Network adapters."""

import ipaddress

from winhost.core.dataclass import dataclass
from winhost.resources.base import ResourceType, State, resource

ETHERNET, WIFI, TEAM, VIRTUAL, VPN = "ethernet", "wifi", "team", "virtual", "vpn"


@dataclass(frozen=True)
class Address:
    """origin: manual, dhcp or router-advertisement. Raises ValueError for what is no address with its prefix."""

    address: str
    prefix: int
    origin: str

    def __post_init__(self) -> None:
        try:
            ipaddress.ip_interface(f"{self.address}/{self.prefix}")
        except ValueError:
            raise ValueError("should be an IP address with the length of its prefix") from None


@resource(ResourceType("NetworkAdapter", title="network adapters", order=120, key=("adapter",)))
class NetworkAdapter(State):
    """A network adapter by its interface GUID, which survives renaming.

    kind: ethernet, wifi, team, virtual (of a switch), vpn or other, by what its driver reports (NdisPhysicalMedium,
    InterfaceType, ComponentID; which products say so is in part inferred); status: up, disconnected, disabled or down;
    speed: bits per second; vlan: null where the driver has none; profile: public, private, domain, or null without a
    network; switch: the virtual switch that is bound to it; management: a WinRM session goes over it now, of whomever;
    filters: names of those bound to it that are not Windows' own.
    """

    name: str
    description: str
    mac: str | None
    kind: str
    status: str
    speed: int | None
    vlan: int | None
    addresses: tuple[Address, ...]
    gateway: str | None
    dns: tuple[str, ...]
    profile: str | None
    switch: str | None
    management: bool
    filters: tuple[str, ...]
