"""Policies for WSL."""

from winhost.resources.base import ResourceType, State, resource


@resource(ResourceType("WslPolicy", title="policies for WSL", order=360))
class WslPolicy(State):
    """Group Policy for WSL (microsoft/WSL, intune/WSL.admx): null where nothing is configured, and then all is allowed.

    allow_wsl, allow_inbox: WSL at all, and the one that is part of Windows; the others: whether .wslconfig may set it.
    default_networking: 0 none, 1 NAT, 3 mirrored, 4 VirtioProxy, for whoever sets no mode.
    """

    allow_wsl: bool | None
    allow_inbox: bool | None
    allow_kernel: bool | None
    allow_kernel_command_line: bool | None
    allow_system_distro: bool | None
    allow_networking: bool | None
    allow_firewall: bool | None
    allow_nested: bool | None
    default_networking: int | None
