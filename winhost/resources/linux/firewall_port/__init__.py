"""Ports in the firewall of a Linux."""

from winhost.resources.base import ResourceType, State, resource
from winhost.resources.shared import ACCESS, CUTS_THE_WIRE, DISTROS
from winhost.resources.values import NETWORKS_IN_ORDER, or_nothing


@resource(
    ResourceType(
        "FirewallPort",
        title="ports in the firewall of Linux",
        order=36,
        key=("port",),
        sets={"allowed": or_nothing(NETWORKS_IN_ORDER)},
        after=("AptPackages", "DebianPackage"),
        requires=ACCESS,
        absent={"allowed": None, "by": None, "others": []},
        within=DISTROS,
        asks=("network",),
        risks=CUTS_THE_WIRE,
    )
)
class FirewallPort(State):
    """A TCP port, which only these networks reach, and the machine itself; an empty list: nobody else.

    allowed: null where winhost has no rule that holds now and with each start; by: what has the rule, ufw where that
    is enabled, or else a table `inet winhost` of nftables; others: chains of nftables that drop what they do not
    accept, and so perhaps this port as well. Rules of others stay, and a port of sshd is never limited.
    """

    allowed: tuple[str, ...] | None
    by: str | None
    others: tuple[str, ...]
