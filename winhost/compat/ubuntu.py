"""Ubuntu beside Windows, and instead of it."""

from winhost.compat.machine import is_domain_controller, is_virtual, is_x64, made_by, no_cuda, no_gpu
from winhost.compat.rule import BLOCKS, NOTES, Finding, note, rule, unsupported, unverified
from winhost.model.facts import Instance
from winhost.resources.host import HostFacts
from winhost.resources.windows import BitLocker, ClusterService, Disk, PendingReboot

PLAIN_BUSES = ("nvme", "sata", "ata")

# --- Beside Windows ------------------------------------------------------------------------------------------------


@rule("dual-boot", unknown=BLOCKS)
def dual_boot_untried(facts: HostFacts) -> Finding | None:
    """True on every host: the parts were tried on images, the whole not on a machine."""
    return unverified("dual-boot.untried", observed=facts.os.named)


@rule("dual-boot", unknown=BLOCKS)
def dual_boot_not_x64(facts: HostFacts) -> Finding | None:
    """What is installed is Ubuntu for x64."""
    return None if is_x64(facts) else unsupported("dual-boot.not-x64", observed=facts.os.architecture)


@rule("dual-boot", unknown=BLOCKS)
def system_disk_not_gpt(facts: HostFacts) -> Finding | None:
    """MBR means BIOS boot, and a conversion is not ours to make."""
    styles = {disk.state.style for disk in _system_disks(facts)}
    if styles - {"GPT"}:
        return unsupported("dual-boot.not-gpt", observed=f"the system disk is {', '.join(sorted(styles))}")
    return None


@rule("dual-boot", unknown=BLOCKS)
def system_disk_behind_a_layer(facts: HostFacts) -> Finding | None:
    """RAID, Storage Spaces, iSCSI, USB: Linux may see other disks than Windows does."""
    seen = _behind_a_layer(facts)
    return unverified("dual-boot.disk-bus", observed=seen) if seen else None


@rule("dual-boot", unknown=NOTES)
def windows_must_shrink(facts: HostFacts) -> Finding | None:
    """An empty disk of its own would leave Windows' alone."""
    others = [disk for disk in facts.all(Disk) if not (disk.state.system or disk.state.boot)]
    if not any(disk.state.style == "RAW" for disk in others):
        return note("dual-boot.shrinks-windows", observed=f"{len(others)} other disk(s), none of them empty")
    return None


@rule("dual-boot", unknown=BLOCKS)
def bitlocker_on(facts: HostFacts) -> Finding | None:
    """Changes at boot make BitLocker ask for its recovery key, and where that is kept is not on the host to be read."""
    volumes = _volumes(facts, "on")
    if volumes:
        return unverified("dual-boot.bitlocker", observed=f"protected: {', '.join(volumes)}")
    return None


@rule("dual-boot", unknown=NOTES)
def bitlocker_unsettled(facts: HostFacts) -> Finding | None:
    """Locked, or on its way in or out."""
    volumes = _volumes(facts, "unknown")
    if volumes:
        return unverified("dual-boot.bitlocker-unsettled", observed=f"protection not told: {', '.join(volumes)}")
    return None


@rule("dual-boot", unknown=NOTES)
def dual_boot_reboot_pending(facts: HostFacts) -> Finding | None:
    """Servicing finishes at the next start of Windows, which would be another system's."""
    why = facts.the(PendingReboot).reasons
    if why:
        return note("dual-boot.reboot-pending", observed=", ".join(why))
    return None


@rule("dual-boot", unknown=BLOCKS)
def dual_boot_in_a_vm(facts: HostFacts) -> Finding | None:
    """A second VM does the same without touching this one's disk."""
    if is_virtual(facts.firmware):
        return unverified("dual-boot.virtual-machine", observed=made_by(facts.firmware))
    return None


@rule("dual-boot", unknown=NOTES)
def dual_boot_of_a_domain_controller(facts: HostFacts) -> Finding | None:
    """The domain misses it, and after the tombstone lifetime it must not come back."""
    if is_domain_controller(facts):
        return note("dual-boot.domain-controller", observed=facts.os.named)
    return None


@rule("dual-boot", unknown=NOTES)
def dual_boot_of_a_cluster_node(facts: HostFacts) -> Finding | None:
    """The cluster counts votes."""
    state = facts.the(ClusterService).state
    return note("dual-boot.cluster-node", observed=f"the cluster service is {state}") if state == "running" else None


@rule("dual-boot", unknown=BLOCKS)
def dual_boot_without_card(facts: HostFacts) -> Finding | None:
    """There is nothing to serve with."""
    seen = no_gpu(facts)
    return unsupported("dual-boot.no-card", observed=seen) if seen else None


@rule("dual-boot", unknown=BLOCKS)
def dual_boot_without_cuda(facts: HostFacts) -> Finding | None:
    """What we serve with is CUDA."""
    seen = no_cuda(facts)
    return unsupported("dual-boot.no-cuda", observed=seen) if seen else None


# --- Instead of Windows --------------------------------------------------------------------------------------------


@rule("bare-metal", unknown=BLOCKS)
def bare_metal_untried(facts: HostFacts) -> Finding | None:
    """True on every host: Windows goes, and we have not done it on a machine."""
    return unverified("bare-metal.untried", observed=facts.os.named)


@rule("bare-metal", unknown=BLOCKS)
def bare_metal_not_x64(facts: HostFacts) -> Finding | None:
    """What is installed is Ubuntu for x64."""
    return None if is_x64(facts) else unsupported("bare-metal.not-x64", observed=facts.os.architecture)


@rule("bare-metal", unknown=BLOCKS)
def bare_metal_behind_a_layer(facts: HostFacts) -> Finding | None:
    """The installer may not see the disk that it is to take."""
    seen = _behind_a_layer(facts)
    return unverified("bare-metal.disk-bus", observed=seen) if seen else None


@rule("bare-metal", unknown=BLOCKS)
def bare_metal_in_a_vm(facts: HostFacts) -> Finding | None:
    """There is no metal."""
    if is_virtual(facts.firmware):
        return unverified("bare-metal.virtual-machine", observed=made_by(facts.firmware))
    return None


@rule("bare-metal", unknown=NOTES)
def bare_metal_of_a_domain_controller(facts: HostFacts) -> Finding | None:
    """It goes for good."""
    if is_domain_controller(facts):
        return note("bare-metal.domain-controller", observed=facts.os.named)
    return None


@rule("bare-metal", unknown=NOTES)
def bare_metal_of_a_cluster_node(facts: HostFacts) -> Finding | None:
    """The cluster counts votes."""
    state = facts.the(ClusterService).state
    return note("bare-metal.cluster-node", observed=f"the cluster service is {state}") if state == "running" else None


@rule("bare-metal", unknown=BLOCKS)
def bare_metal_without_card(facts: HostFacts) -> Finding | None:
    """There is nothing to serve with."""
    seen = no_gpu(facts)
    return unsupported("bare-metal.no-card", observed=seen) if seen else None


@rule("bare-metal", unknown=BLOCKS)
def bare_metal_without_cuda(facts: HostFacts) -> Finding | None:
    """What we serve with is CUDA."""
    seen = no_cuda(facts)
    return unsupported("bare-metal.no-cuda", observed=seen) if seen else None


def _behind_a_layer(facts: HostFacts) -> str | None:
    buses = sorted({disk.state.bus for disk in _system_disks(facts) if disk.state.bus.casefold() not in PLAIN_BUSES})
    return f"the system disk is on {', '.join(buses)}" if buses else None


def _volumes(facts: HostFacts, protection: str) -> list[str]:
    return [volume.key["volume"] for volume in facts.all(BitLocker) if volume.state.protection == protection]


def _system_disks(facts: HostFacts) -> list[Instance[Disk]]:
    return [disk for disk in facts.all(Disk) if disk.state.system or disk.state.boot]
