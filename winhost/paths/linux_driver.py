"""NVIDIA's driver for a Linux that has the GPUs to itself: which set of packages, by the PCI ids of the GPUs.

The GPUs need not be there yet: before they are assigned, a guest has no PCI bus to look at.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from winhost.core.answers import Json
from winhost.core.steps import DesiredResource
from winhost.hardware.gpus import OpenModules, known
from winhost.model.errors import UsageError

UNATTENDED_FILE = "/etc/apt/apt.conf.d/52winhost"
# A new kernel without its modules has no GPU, and modules fit one version of the rest of the driver alone.
UNATTENDED = """\
// Written by winhost: the kernel and the driver are upgraded together, and never by themselves.
Unattended-Upgrade::Package-Blacklist {
    "linux-(generic|headers|image|modules|virtual)";
    "libnvidia-";
    "nvidia-";
};
"""
_MODULES = "linux-modules-nvidia-"


@dataclass(frozen=True)
class DriverChoice:
    """packages: the key of the set; open: with NVIDIA's open kernel modules; unverified: GPUs of which nobody has
    shown that they take them.
    """

    packages: str
    open: bool
    why: str
    unverified: tuple[str, ...] = ()

    @property
    def desired(self) -> tuple[DesiredResource, ...]:
        """What is wanted of the Linux."""
        to_do: dict[str, Json] = {name: [] for name in ("to_add", "to_change", "to_change_foreign", "to_remove")}
        return (
            DesiredResource(
                *("LinuxFile", {"path": UNATTENDED_FILE}, {"text": UNATTENDED, "mode": "0644", "owner": "root:root"}),
                *("What unattended upgrades leave alone", "A kernel without modules of the driver would have no GPU."),
            ),
            DesiredResource(
                *("AptPackages", {"packages": self.packages}, {"installed": True, **to_do}),
                *("NVIDIA's driver", self.why),
            ),
        )


def choose_driver(devices: Sequence[str], sets: Sequence[str]) -> DriverChoice:
    """devices: ids as `VEN_10DE&DEV_26B9` or `10de:26b9`; sets: those that the Linux knows.

    Raises UsageError (NoDriver).
    """
    support = {device: card.open_modules if (card := known(device)) else None for device in devices}
    needed = [device for device, modules in support.items() if modules is OpenModules.NEEDED]
    impossible = [device for device, modules in support.items() if modules is OpenModules.IMPOSSIBLE]
    if needed and impossible:
        what = (
            f"no driver drives both {', '.join(needed)} (open modules only) and {', '.join(impossible)} (closed only)"
        )
        raise _no_driver(what, "Give them to two machines")
    open_ = not impossible
    ours = [each for each in sets if each.startswith(_MODULES) and ("-open-" in each.split(" ")[0]) is open_]
    if not ours:
        what = "this Linux has no prebuilt modules of NVIDIA's driver for its kernel"
        raise _no_driver(what, "Use Ubuntu with one of its own kernels")
    if needed:
        why = f"{', '.join(needed)} works with the open kernel modules alone."
    elif impossible:
        why = f"{', '.join(impossible)} does not work with the open kernel modules."
    else:
        why = "NVIDIA recommends the open kernel modules for GPUs from Turing on."
    unverified = tuple(device for device, modules in support.items() if modules is None)
    return DriverChoice(ours[0], open_, f"{why} Signed by Ubuntu, so that Secure Boot stays on.", unverified)


def _no_driver(what: str, hint: str) -> UsageError:
    return UsageError("NoDriver", what=what, hint=hint)
