"""Rules of dual-boot (Ubuntu beside Windows) and bare-metal (Ubuntu instead of Windows)."""

from winhost.compat import common
from winhost.compat.common import ask
from winhost.compat.rule import BLOCKS, NOTES, Finding, note, rule, unsupported, unverified
from winhost.resources.host import HostFacts

# --- Beside Windows ------------------------------------------------------------------------------------------------


@rule("dual-boot", unknown=BLOCKS)
def dual_boot_untried(facts: HostFacts) -> Finding | None:
    """Dual boot was tested on disk images, never on a machine. This holds on every host."""
    return unverified("dual-boot.untried", observed=facts.os.named)


ask("dual-boot.not-x64", common.not_x64, unsupported, unknown=BLOCKS)


@rule("dual-boot", unknown=BLOCKS)
def system_disk_not_gpt(facts: HostFacts) -> Finding | None:
    """The system disk is MBR, so Windows boots by BIOS; winhost sets up UEFI and converts no disks."""
    styles = {disk.state.style for disk in common.system_disks(facts)}
    if styles - {"GPT"}:
        return unsupported("dual-boot.not-gpt", observed=f"the system disk is {', '.join(sorted(styles))}")
    return None


ask("dual-boot.reboot-pending", common.reboot_pending, unsupported, unknown=NOTES)
ask("dual-boot.language-mode", common.language_mode, unsupported, unknown=NOTES)
ask("dual-boot.powershell-32bit", common.powershell_32bit, unsupported, unknown=NOTES)
ask("dual-boot.unsigned-scripts", common.unsigned_scripts, note, unknown=NOTES)
ask("dual-boot.virtual-machine", common.virtual_machine, unverified, unknown=BLOCKS)
ask("dual-boot.domain-controller", common.domain_controller, note, unknown=NOTES)
ask("dual-boot.cluster-node", common.cluster_node, note, unknown=NOTES)
ask("dual-boot.no-card", common.no_card, unsupported, unknown=BLOCKS)
ask("dual-boot.no-cuda", common.no_cuda, unsupported, unknown=BLOCKS)


# --- Instead of Windows --------------------------------------------------------------------------------------------


@rule("bare-metal", unknown=BLOCKS)
def bare_metal_untried(facts: HostFacts) -> Finding | None:
    """The installation replaces Windows, and winhost never ran it on a machine. This holds on every host."""
    return unverified("bare-metal.untried", observed=facts.os.named)


ask("bare-metal.not-x64", common.not_x64, unsupported, unknown=BLOCKS)
ask("bare-metal.language-mode", common.language_mode, unsupported, unknown=NOTES)
ask("bare-metal.powershell-32bit", common.powershell_32bit, unsupported, unknown=NOTES)
ask("bare-metal.unsigned-scripts", common.unsigned_scripts, note, unknown=NOTES)
ask("bare-metal.virtual-machine", common.virtual_machine, unverified, unknown=BLOCKS)
ask("bare-metal.domain-controller", common.domain_controller, note, unknown=NOTES)
ask("bare-metal.cluster-node", common.cluster_node, note, unknown=NOTES)
ask("bare-metal.no-card", common.no_card, unsupported, unknown=BLOCKS)
ask("bare-metal.no-cuda", common.no_cuda, unsupported, unknown=BLOCKS)
