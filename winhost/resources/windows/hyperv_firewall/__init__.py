"""The Hyper-V firewall."""

from winhost.resources.base import ResourceType, State, resource
from winhost.resources.shared import CUTS_THE_WIRE, WAYS_IN
from winhost.resources.values import NETWORKS, Value, one_of, port

WSL = "40e0ac32-46a5-438a-a0b2-2b479e8f2e90"  # Microsoft: "Configure Hyper-V firewall", the VMCreatorId of WSL


@resource(
    ResourceType(
        "HyperVFirewall",
        title="the Hyper-V firewall",
        order=380,
        key=("creator",),
        sets={
            "inbound": one_of("allow", "block", "not-configured"),
            "ports": Value("a list of ports", lambda v: isinstance(v, list) and all(map(port, v))),
            "allowed": NETWORKS,
        },
        asks=("network",),
        risks=CUTS_THE_WIRE,
        dependents=WAYS_IN,
    )
)
class HyperVFirewall(State):
    """The inbound rules for VMs of one creator (`WSL`) in mirrored mode.

    ports: TCP, allowed by rules of winhost's; allowed: networks (CIDR) that may come to one of them, null: everybody.
    A rule of winhost's that somebody disabled opens nothing, so its port is not among them: to set `ports` replaces
    such a rule, to set `allowed` alone leaves it disabled.
    Windows 11 22H2 and later have it: elsewhere there is no instance. That `not-configured` means `block` for WSL is
    documented; that a rule lets in what the setting blocks, too.
    """

    inbound: str
    ports: tuple[int, ...]
    allowed: tuple[str, ...] | None
