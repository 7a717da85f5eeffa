"""Network adapters and switches of a simulated host, as it keeps them."""

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from winhost.core.answers import Json, Record
from winhost.core.dataclass import dataclass
from winhost.lab.physics.host_state import known_or

ADDRESSING: tuple[str, ...] = ("addresses", "gateway", "dns", "profile")
# Every property, and what stands for one that could not be read.
BLANK: Mapping[str, Any] = {
    "name": "",
    "description": "",
    "mac": None,
    "kind": "other",
    "status": "up",
    "speed": None,
    "vlan": None,
    "addresses": (),
    "gateway": None,
    "dns": (),
    "profile": None,
    "switch": None,
    "management": None,
    "filters": (),
}


@dataclass
class Adapter:
    """A network interface.

    routes: beside the default one, as (destination, gateway); metric: where it is not Windows' own; fixed_dns: its name
    servers are not from DHCP; tag: of a port on a switch, its VLAN there.
    """

    guid: str
    index: int
    state: dict[str, Any]
    up_at: float = 0.0
    shows_at: float = 0.0
    routes: list[tuple[str, str]] = field(default_factory=list)
    metric: int | None = None
    fixed_dns: bool = False
    tag: int | None = None

    @property
    def addresses(self) -> list[dict[str, Json]]:
        """The addresses in the shape of the facts; changed in place."""
        found: list[dict[str, Json]] = self.state["addresses"]
        return found

    def manual(self) -> list[dict[str, Json]]:
        """The addresses that somebody gave it."""
        return [dict(each) for each in self.addresses if each["origin"] == "manual"]

    def add_address(self, address: str, prefix: int) -> None:
        """Add a manual address, which ends the lease of DHCP."""
        if all(each["address"] != address for each in self.addresses):
            self.addresses[:] = [*self.manual(), {"address": address, "prefix": prefix, "origin": "manual"}]

    def add_route(self, to: str, by: str) -> None:
        if to == "0.0.0.0/0":
            self.state["gateway"] = by
        elif (to, by) not in self.routes:
            self.routes.append((to, by))

    def all_routes(self) -> list[list[str]]:
        """The routes as (destination, gateway), the default one first."""
        default = [["0.0.0.0/0", str(self.state["gateway"])]] if self.state["gateway"] else []
        return [*default, *([to, by] for to, by in self.routes)]

    def name_servers(self) -> list[str]:
        """Those that somebody gave it: where addresses are, so are they."""
        return list(self.state["dns"]) if self.manual() or self.fixed_dns else []


@dataclass
class Switch:
    """bound: the GUID of its adapter, port: that of the host's own interface on it; dead: nothing comes through."""

    guid: str
    state: dict[str, Any]
    bound: str | None = None
    port: str | None = None
    dead: bool = False


def adapter_of(record: Record, index: int) -> Adapter:
    """Make an adapter from its record."""
    state = {name: known_or(record.state, name, blank) for name, blank in BLANK.items()}
    state["addresses"] = [dict(each) for each in state["addresses"]]
    return Adapter(record.key["adapter"], index, state)


def port_name(switch: str) -> str:
    """The name that Windows gives the host's own interface on a switch."""
    return f"vEthernet ({switch})"
