"""Derives from the facts of a host the limits that its .wslconfig is checked against."""

from collections.abc import Callable, Mapping
from typing import TypeVar

from packaging.version import Version

from winhost.compat.assess import judge
from winhost.core.answers import MissingFact
from winhost.hardware.host_gpus import runs_cuda
from winhost.model.reason import Severity
from winhost.model.units import Bytes
from winhost.resources.host import HostFacts
from winhost.resources.windows.disks import DYNAMIC, STORAGE_SPACES, Partition
from winhost.resources.windows.distros import Wsl
from winhost.resources.windows.read_only import Disk, Processor, VmSwitch, WslPolicy
from winhost.resources.windows.vms import INSTALLED
from winhost.wslconfig.rules import HostLimits

T = TypeVar("T")
NETWORKING_MODES = ("mirrored", "bridged")
# Codes for which the lint has its own findings, because they depend on a version or policy that it checks itself.
_CODES_OF_LINT = ("wsl2.bridge-removed", "wsl2.policy-no-bridge", "wsl2.policy-no-mirror")


def wslconfig_limits(facts: HostFacts) -> HostLimits:
    """Return the host's limits for .wslconfig. `unknown` names the values that could not be read."""
    unknown: list[str] = []

    def read_or_note(what: str, read: Callable[[], T]) -> T | None:
        try:
            return read()
        except MissingFact:
            unknown.append(what)
            return None

    wsl = read_or_note("the version of WSL", lambda: facts.the(Wsl))
    return HostLimits(
        version=Version(wsl.version) if wsl and wsl.version else None,
        in_box=None if wsl is None else wsl.present and wsl.version is None,
        forbidden=read_or_note("the policies of WSL", lambda: forbidden_policies(facts)) or frozenset(),
        no_modes={mode: why for mode in NETWORKING_MODES if (why := _why_mode_unavailable(facts, mode))},
        switches=read_or_note("the switches", lambda: _switches(facts)),
        memory=read_or_note("the memory", lambda: facts.memory.total),
        processors=read_or_note("the processors", lambda: sum(each.state.threads for each in facts.all(Processor))),
        vram=_vram(facts),
        drives=read_or_note("the drives", lambda: _drives(facts)),
        unknown=tuple(unknown),
    )


def _why_mode_unavailable(facts: HostFacts, networking_mode: str) -> str | None:
    """Return the reason why a networking mode is not available, unless all modes have that reason."""
    common = {reason.code for reason in judge(facts, "wsl2/nat").every_reason}
    for reason in judge(facts, f"wsl2/{networking_mode}").every_reason:
        if reason.severity is Severity.UNSUPPORTED and reason.code not in (*common, *_CODES_OF_LINT):
            return f"{reason.sentence} [{reason.code}]"
    return None


def _switches(facts: HostFacts) -> dict[str, str]:
    """Return the kinds of the host's switches by name; empty without Hyper-V."""
    if facts.role.role != INSTALLED:
        return {}
    return {each.state.name: each.state.kind for each in facts.all(VmSwitch)}


def _vram(facts: HostFacts) -> Bytes | None:
    """Return the memory of the GPUs that WSL can use; None if unknown, which no rule reports."""
    try:
        return sum(gpu.pci.state.vram or 0 for gpu in facts.gpus if runs_cuda(gpu) and gpu.pci.state.driver_model)
    except MissingFact:
        return None


def _drives(facts: HostFacts) -> frozenset[str] | None:
    """Return the drive letters; None if a disk may have others than those of GPT partitions: MBR, dynamic, Storage
    Spaces.
    """
    partitions = [each.state for each in facts.all(Partition)]
    if any(each.state.style != "GPT" for each in facts.all(Disk)):
        return None
    if any(each.type.casefold() in (*DYNAMIC, STORAGE_SPACES) for each in partitions):
        return None
    return frozenset(each.letter.upper() for each in partitions if each.letter)


# By property of the resource: the value in HKLM\\SOFTWARE\\Policies\\WSL (microsoft/WSL, wslpolicies.h).
VALUES: Mapping[str, str] = {
    "allow_kernel": "AllowKernelUserSetting",
    "allow_kernel_command_line": "AllowKernelCommandLineUserSetting",
    "allow_system_distro": "AllowSystemDistroUserSetting",
    "allow_networking": "AllowNetworkingModeUserSetting",
    "allow_firewall": "AllowFirewallUserSetting",
    "allow_nested": "AllowNestedVirtualization",
}


def forbidden_policies(facts: HostFacts) -> frozenset[str]:
    """Return the names of the policies that are set to 0. Raises MissingFact."""
    policy = facts.the(WslPolicy)
    return frozenset(value for name, value in VALUES.items() if getattr(policy, name) is False)
