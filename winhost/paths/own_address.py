"""The address that a Linux of winhost's own gets: a guest, or a system on the machine itself."""

from ipaddress import IPv4Address, IPv4Interface, ip_address
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, model_validator

from winhost.images.seed import GuestAddress
from winhost.model.written import Closed
from winhost.paths.setting_values import OfOneHost, address_value, refuse_gateway

DHCP = "dhcp"


def _listed(given: object) -> object:
    """`192.0.2.1,192.0.2.2` of a command line."""
    return [each.strip() for each in given.split(",")] if isinstance(given, str) else given


class OwnAddress(Closed):
    """The settings of an address of its own."""

    address: Annotated[str, AfterValidator(address_value), OfOneHost("address")] = DHCP
    """The address with its prefix, as 192.0.2.10/24. Behind NAT, where no DHCP server is, winhost chooses one."""
    gateway: IPv4Address | None = None
    dns: Annotated[tuple[IPv4Address, ...], BeforeValidator(_listed)] = ()
    """Name servers. Left out behind NAT: those of the host."""

    @model_validator(mode="after")
    def _agrees(self) -> "OwnAddress":
        if self.gateway is not None and self.address == DHCP:
            raise ValueError("a gateway goes with an address of its own; DHCP tells both")
        if self.gateway is not None:
            refuse_gateway(self.gateway, self.address)
        return self

    @property
    def of_seed(self) -> GuestAddress | None:
        """The address in the form that a seed takes; None for DHCP."""
        if self.address == DHCP or self.gateway is None:
            return None
        return GuestAddress(IPv4Interface(self.address), self.gateway, tuple(map(ip_address, self.dns)))
