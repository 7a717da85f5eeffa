"""Rules of dual-boot (Ubuntu beside Windows) and bare-metal (Ubuntu instead of Windows)."""

from winhost.compat import common
from winhost.compat.rule import rule
from winhost.resources.host import HostFacts

# --- Beside Windows ------------------------------------------------------------------------------------------------


@rule("dual-boot.not-gpt")
def system_disk_not_gpt(facts: HostFacts) -> str | None:
    """The system disk is MBR, so Windows boots by BIOS; winhost sets up UEFI and converts no disks."""
    styles = {disk.state.style for disk in common.system_disks(facts)}
    if styles - {"GPT"}:
        return f"the system disk is {', '.join(sorted(styles))}"
    return None


# --- Instead of Windows --------------------------------------------------------------------------------------------
