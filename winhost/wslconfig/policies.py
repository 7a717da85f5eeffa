"""Which settings of .wslconfig the policies of a host forbid."""

from collections.abc import Mapping

from winhost.resources.host import HostFacts
from winhost.resources.windows.wsl_policy import WslPolicy

# Property of the resource to the value below HKLM\\SOFTWARE\\Policies\\WSL (microsoft/WSL, wslpolicies.h).
VALUES: Mapping[str, str] = {
    "allow_kernel": "AllowKernelUserSetting",
    "allow_kernel_command_line": "AllowKernelCommandLineUserSetting",
    "allow_system_distro": "AllowSystemDistroUserSetting",
    "allow_networking": "AllowNetworkingModeUserSetting",
    "allow_firewall": "AllowFirewallUserSetting",
    "allow_nested": "AllowNestedVirtualization",
}


def forbidden(facts: HostFacts) -> frozenset[str]:
    """Names of the policies that are set to 0. Raises MissingFact."""
    policy = facts.the(WslPolicy)
    return frozenset(value for name, value in VALUES.items() if getattr(policy, name) is False)
