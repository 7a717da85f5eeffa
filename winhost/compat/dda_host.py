"""Rules of Discrete Device Assignment (DDA): the host, before any GPU or VM."""

from contextlib import suppress

from winhost.compat.common import SERVER_2016, SERVER_2025
from winhost.compat.rule import rule
from winhost.core.answers import MissingFact
from winhost.hardware.processors import DESKTOP, MOBILE, known_processor
from winhost.model.units import GiB, size
from winhost.paths.dda_mmio import address_width, width_by_model
from winhost.resources.host import HostFacts
from winhost.resources.windows.cluster_service import ClusterService
from winhost.resources.windows.firmware import DMA_PROTECTION
from winhost.resources.windows.hyperv_role import INSTALLED, PENDING
from winhost.resources.windows.operating_system import OsFamily
from winhost.resources.windows.processor import Processor

FIRST_HIGH_ADDRESS = 64 * GiB  # the high window begins just below it, so a card's BARs come to lie above


@rule("dda.client-sku")
def client_sku(facts: HostFacts) -> str | None:
    """On client Windows, dismounting and adding succeed, and Start-VM fails with 0xC035001E."""
    if facts.os.family is OsFamily.CLIENT:
        return facts.os.named
    return None


@rule("dda.multi-session")
def multi_session(facts: HostFacts) -> str | None:
    """Enterprise multi-session reports product type 3 like a server, but is a client edition."""
    if facts.os.family is OsFamily.MULTI_SESSION:
        return facts.os.named
    return None


@rule("dda.product-type-altered")
def product_type_altered(facts: HostFacts) -> str | None:
    """A tool changed the product type to a server's to unlock DDA; the edition still is a client's."""
    os = facts.os
    if os.family is OsFamily.ALTERED:
        types = f"product type {os.product_type}, ProductOptions {os.product_options}"
        return f"{os.named}, {types}"
    return None


@rule("dda.azure-local")
def azure_local(facts: HostFacts) -> str | None:
    """Azure Local assigns GPUs with the tools of its cluster; winhost's plan was never tried there."""
    if facts.os.family is OsFamily.AZURE_LOCAL:
        return facts.os.named
    return None


@rule("dda.server-too-old")
def server_too_old(facts: HostFacts) -> str | None:
    """DDA needs Windows Server 2016 or newer."""
    if facts.os.family is OsFamily.SERVER and facts.os.build < SERVER_2016:
        return facts.os.named
    return None


@rule("dda.role-missing")
def role_missing(facts: HostFacts) -> str | None:
    """The Hyper-V role is available and not installed; the plan installs it, which restarts the host."""
    if facts.role.role == "available":
        return "the Hyper-V role is not installed"
    return None


@rule("dda.role-pending")
def role_pending(facts: HostFacts) -> str | None:
    """The Hyper-V role is installed and takes effect with the next restart."""
    if facts.role.role == PENDING:
        return "the Hyper-V role is installed, restart pending"
    return None


@rule("dda.role-leaving")
def role_leaving(facts: HostFacts) -> str | None:
    """The Hyper-V role is being removed. winhost does not reverse what an administrator has decided."""
    if facts.role.role == "uninstall-pending":
        return "the Hyper-V role is being removed, restart pending"
    return None


@rule("dda.role-removed")
def role_removed(facts: HostFacts) -> str | None:
    """The role's files are not on disk, so installing it needs a source."""
    if facts.role.role == "removed":
        return "the role's files are not on disk"
    return None


@rule("dda.tools-missing")
def tools_missing(facts: HostFacts) -> str | None:
    """The Hyper-V role is installed without its PowerShell module, which winhost needs."""
    if facts.role.role == INSTALLED and facts.role.tools != INSTALLED:
        return f"the Hyper-V module for PowerShell is {facts.role.tools}"
    return None


@rule("dda.management-stopped")
def management_stopped(facts: HostFacts) -> str | None:
    """The service vmms does not run; without it VMs can be neither read nor changed."""
    if facts.hyperv.service.casefold() != "running":
        return f"the service vmms is {facts.hyperv.service}"
    return None


@rule("dda.no-slat")
def no_second_level_translation(facts: HostFacts) -> str | None:
    """The processor has neither EPT nor NPT, which Hyper-V needs."""
    firmware = facts.firmware
    if not firmware.hypervisor_present and not firmware.second_level_translation:
        return f"{firmware.manufacturer} {firmware.model}"
    return None


@rule("dda.iommu-not-seen")
def iommu_not_seen(facts: HostFacts) -> str | None:
    """Device Guard does not list DMA protection, the only sign of an IOMMU that Windows gives before Hyper-V runs."""
    properties = facts.firmware.security_properties
    if DMA_PROTECTION not in properties:
        seen = ", ".join(map(str, properties)) or "none"
        return f"Device Guard's available properties: {seen}"
    return None


@rule("dda.narrow-addresses")
def narrow_addresses(facts: HostFacts) -> str | None:
    """The physical address space ends at or below 64 GiB, where windows begin that are larger than the default one."""
    width = address_width(facts) or facts.firmware.address_width  # which says what is missing
    if 1 << width <= FIRST_HIGH_ADDRESS:
        return f"{width} address bits, {size(1 << width)}"
    return None


@rule("dda.width-by-model")
def width_of_the_model(facts: HostFacts) -> str | None:
    """Windows does not report the width of physical addresses; that of the processors' model is taken."""
    with suppress(MissingFact):
        _ = facts.firmware.address_width
        return None
    width, known = width_by_model(facts), ", ".join(_generations(facts))
    if width is None:
        return None
    return f"Firmware.address_width is not told; {width} bits by {known}"


@rule("dda.desktop-hardware")
def desktop_hardware(facts: HostFacts) -> str | None:
    """The processors are those of desktop computers or notebooks; Microsoft requires server-class hardware."""
    names = [each.state.name for each in facts.all(Processor)]
    if any((found := known_processor(name)) and found.hardware in (DESKTOP, MOBILE) for name in names):
        return ", ".join(dict.fromkeys(names))
    return None


@rule("dda.processor-unlisted")
def processor_unlisted(facts: HostFacts) -> str | None:
    """A processor is not in the catalogue, so neither its class nor the width of its addresses is known."""
    names = [each.state.name for each in facts.all(Processor) if known_processor(each.state.name) is None]
    return ", ".join(dict.fromkeys(names)) if names else None


def _generations(facts: HostFacts) -> list[str]:
    found = [known_processor(each.state.name) for each in facts.all(Processor)]
    return list(dict.fromkeys(f"{each.generation} ({each.kind})" for each in found if each))


@rule("dda.policy-requires-secure")
def policy_requires_secure(facts: HostFacts) -> str | None:
    """The policy RequireSecureDeviceAssignment is set. winhost reads it and never changes it."""
    if facts.policy.require_secure:
        return f"RequireSecureDeviceAssignment is {facts.policy.require_secure}"
    return None


@rule("dda.policy-requires-supported")
def policy_requires_supported(facts: HostFacts) -> str | None:
    """The policy RequireSupportedDeviceAssignment is set. winhost reads it and never changes it."""
    if facts.policy.require_supported:
        return f"RequireSupportedDeviceAssignment is {facts.policy.require_supported}"
    return None


@rule("dda.cluster-before-2025")
def cluster_before_2025(facts: HostFacts) -> str | None:
    """In a cluster before Windows Server 2025, a VM with an assigned device cannot be highly available."""
    if facts.the(ClusterService).state == "running" and facts.os.build < SERVER_2025:
        return f"a cluster node of build {facts.os.build}"
    return None
