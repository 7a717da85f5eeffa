"""Discrete Device Assignment: what the host says, before any card or VM."""

from winhost.compat import common
from winhost.compat.builds import SERVER_2016, SERVER_2025
from winhost.compat.common import ask
from winhost.compat.rule import BLOCKS, NOTES, Finding, degraded, note, rule, unsupported, unverified
from winhost.model.units import GiB, size
from winhost.resources.host import HostFacts
from winhost.resources.windows import ClusterService
from winhost.resources.windows.firmware import DMA_PROTECTION
from winhost.resources.windows.hyperv import INSTALLED, PENDING
from winhost.resources.windows.operating_system import OsFamily

FIRST_HIGH_ADDRESS = 64 * GiB  # the high window begins just below it, so a card's BARs come to lie above


@rule("dda", unknown=BLOCKS)
def client_sku(facts: HostFacts) -> Finding | None:
    """On client Windows dismount and add succeed; Start-VM fails with 0xC035001E."""
    if facts.os.family is OsFamily.CLIENT:
        return unsupported("dda.client-sku", observed=facts.os.named)
    return None


@rule("dda", unknown=BLOCKS)
def multi_session(facts: HostFacts) -> Finding | None:
    """Enterprise multi-session calls itself product type 3, yet is a client."""
    if facts.os.family is OsFamily.MULTI_SESSION:
        return unsupported("dda.multi-session", observed=facts.os.named)
    return None


@rule("dda", unknown=BLOCKS)
def product_type_altered(facts: HostFacts) -> Finding | None:
    """Tools that unlock DDA on a client flip the product type; the edition keeps telling the truth."""
    os = facts.os
    if os.family is OsFamily.ALTERED:
        types = f"product type {os.product_type}, ProductOptions {os.product_options}"
        return unsupported("dda.product-type-altered", observed=f"{os.named}, {types}")
    return None


@rule("dda", unknown=BLOCKS)
def azure_local(facts: HostFacts) -> Finding | None:
    """Azure Local can do it, through its own cluster tools."""
    if facts.os.family is OsFamily.AZURE_LOCAL:
        return unverified("dda.azure-local", observed=facts.os.named)
    return None


@rule("dda", unknown=BLOCKS)
def server_too_old(facts: HostFacts) -> Finding | None:
    """DDA came with Windows Server 2016."""
    if facts.os.family is OsFamily.SERVER and facts.os.build < SERVER_2016:
        return unsupported("dda.server-too-old", observed=facts.os.named)
    return None


ask("dda.domain-controller", common.domain_controller, note, unknown=NOTES)


@rule("dda", unknown=BLOCKS)
def role_missing(facts: HostFacts) -> Finding | None:
    """The role can be installed; that restarts the host."""
    if facts.role.role == "available":
        return note("dda.role-missing", observed="the Hyper-V role is not installed")
    return None


@rule("dda", unknown=BLOCKS)
def role_pending(facts: HostFacts) -> Finding | None:
    """Installed, but it works only after the restart."""
    if facts.role.role == PENDING:
        return note("dda.role-pending", observed="the Hyper-V role waits for a restart")
    return None


@rule("dda", unknown=BLOCKS)
def role_leaving(facts: HostFacts) -> Finding | None:
    """Somebody is taking the role away: that is a decision to ask about, not to overrule."""
    if facts.role.role == "uninstall-pending":
        return unverified("dda.role-leaving", observed="the Hyper-V role is being removed and waits for a restart")
    return None


@rule("dda", unknown=BLOCKS)
def role_removed(facts: HostFacts) -> Finding | None:
    """Without its files on disk the role needs a source to install from."""
    if facts.role.role == "removed":
        return unsupported("dda.role-removed", observed="the files of the Hyper-V role are not on this Windows")
    return None


@rule("dda", unknown=BLOCKS)
def tools_missing(facts: HostFacts) -> Finding | None:
    """The role without its PowerShell module cannot be managed."""
    if facts.role.role == INSTALLED and facts.role.tools != INSTALLED:
        return note("dda.tools-missing", observed=f"the Hyper-V module for PowerShell is {facts.role.tools}")
    return None


@rule("dda", unknown=BLOCKS)
def management_stopped(facts: HostFacts) -> Finding | None:
    """VMs can be read and changed only while vmms runs."""
    if facts.hyperv.service.casefold() != "running":
        return unverified("dda.management-stopped", observed=f"the service vmms is {facts.hyperv.service}")
    return None


ask("dda.virtualization-off", common.virtualization_off, unsupported, unknown=BLOCKS)
ask("dda.virtual-machine", common.virtual_machine, unverified, unknown=BLOCKS)


@rule("dda", unknown=BLOCKS)
def no_second_level_translation(facts: HostFacts) -> Finding | None:
    """Hyper-V needs EPT or NPT."""
    firmware = facts.firmware
    if not firmware.hypervisor_present and not firmware.second_level_translation:
        return unsupported("dda.no-slat", observed=f"{firmware.manufacturer} {firmware.model}")
    return None


@rule("dda", unknown=BLOCKS)
def iommu_not_seen(facts: HostFacts) -> Finding | None:
    """Windows has no word for the IOMMU itself; DMA protection is the nearest one before the role is there."""
    properties = facts.firmware.security_properties
    if DMA_PROTECTION not in properties:
        seen = ", ".join(map(str, properties)) or "none"
        return unverified("dda.iommu-not-seen", observed=f"Device Guard's available properties: {seen}")
    return None


ask("dda.sriov-refused", common.sriov_refused, note, unknown=NOTES)


@rule("dda", unknown=NOTES)
def narrow_addresses(facts: HostFacts) -> Finding | None:
    """No Windows interface tells the width, so a real host answers unknown; a lab and some tools do tell it."""
    width = facts.firmware.address_width
    if 1 << width <= FIRST_HIGH_ADDRESS:
        return unsupported("dda.narrow-addresses", observed=f"{width} address bits reach {size(1 << width)}")
    return None


@rule("dda", unknown=NOTES)
def policy_requires_secure(facts: HostFacts) -> Finding | None:
    """The owner's decision: read, never changed."""
    if facts.policy.require_secure:
        observed = f"RequireSecureDeviceAssignment is {facts.policy.require_secure}"
        return unverified("dda.policy-requires-secure", observed=observed)
    return None


@rule("dda", unknown=NOTES)
def policy_requires_supported(facts: HostFacts) -> Finding | None:
    """The owner's decision: read, never changed."""
    if facts.policy.require_supported:
        observed = f"RequireSupportedDeviceAssignment is {facts.policy.require_supported}"
        return unverified("dda.policy-requires-supported", observed=observed)
    return None


@rule("dda", unknown=NOTES)
def cluster_before_2025(facts: HostFacts) -> Finding | None:
    """A VM with a device cannot be highly available before Server 2025."""
    if facts.the(ClusterService).state == "running" and facts.os.build < SERVER_2025:
        return degraded("dda.cluster-before-2025", observed=f"a cluster node of build {facts.os.build}")
    return None


ask("dda.reboot-pending", common.reboot_pending, note, unknown=NOTES)
ask("dda.not-administrator", common.not_administrator, unverified, unknown=BLOCKS)


@rule("dda", unknown=BLOCKS)
def language_mode(facts: HostFacts) -> Finding | None:
    """Constrained endpoints refuse method calls and types, which the agent is made of."""
    if facts.session.language_mode != "FullLanguage":
        return unsupported("dda.language-mode", observed=f"PowerShell runs in {facts.session.language_mode}")
    return None


@rule("dda", unknown=BLOCKS)
def powershell_32bit(facts: HostFacts) -> Finding | None:
    """A 32-bit process sees another registry and another System32."""
    if not facts.session.is_64bit:
        return unsupported("dda.powershell-32bit", observed=f"PowerShell {facts.session.powershell}, 32-bit")
    return None


ask("dda.no-card", common.no_card, unsupported, unknown=BLOCKS)
