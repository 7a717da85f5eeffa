"""Rules of Discrete Device Assignment (DDA): each GPU, and the chosen GPUs together with their VM."""

from collections.abc import Iterator
from contextlib import suppress

from winhost.compat.rule import (
    ASSIGNMENT,
    CARD,
    Finding,
    finding,
    rule,
)
from winhost.core.answers import MissingFact
from winhost.hardware.bars import MmioRefused
from winhost.hardware.cards import bars_of, paravirtual, partitions, runs_cuda, serves, shows
from winhost.hardware.gpus import NvLink, known
from winhost.model.units import Bytes, size
from winhost.paths.dda_mmio import windows
from winhost.paths.dda_selection import Selection
from winhost.resources.host import Card, HostFacts
from winhost.resources.linux.linux_gpu import LinuxGpu
from winhost.resources.windows.assignable_device import DISMOUNTED, owner
from winhost.resources.windows.pci_device import pci_id

# DEVPKEY_PciDevice_DeviceType and _BaseClass, and Configuration Manager problem codes.
EXPRESS_ENDPOINT, LEGACY_ENDPOINT, ROOT_COMPLEX_ENDPOINT, TREATED_AS_PCI = 2, 3, 4, 5
DISPLAY = 3
NO_PROBLEM, DISABLED, NO_DRIVER = 0, 22, 28

WITHOUT_NVSWITCH = ("Pascal", "Volta")  # of these only the DGX-2 has any, and no error 802 was reported of it

REFUSALS = {
    "mmio.address-width": "dda.window-address-width",
    "mmio.low-full": "dda.window-low-full",
    "mmio.unknown-bars": "dda.bars-unknown",
}


@rule("dda.management-display", each=CARD)
def management_display(facts: HostFacts, card: Card) -> str | None:
    """The display of a management controller or hypervisor (ASPEED, Matrox, QEMU, …) is no GPU to assign."""
    if not serves(card):
        return card.gpu.key["device"]
    return None


@rule("dda.no-cuda", each=CARD)
def no_cuda(facts: HostFacts, card: Card) -> str | None:
    """The GPU is not NVIDIA's: it can be assigned, but winhost serves with CUDA."""
    if serves(card) and not runs_cuda(card):
        return card.gpu.key["device"]
    return None


@rule("dda.consumer-card", each=CARD)
def consumer_card(facts: HostFacts, card: Card) -> str | None:
    """The GPU is of a line for desktop computers. It was reported to work, and Microsoft supports server hardware."""
    found = known(card.gpu.key["device"])
    if found and found.consumer:
        return found.name
    return None


@rule("dda.card-unlisted", each=CARD)
def unlisted_card(facts: HostFacts, card: Card) -> str | None:
    """No catalogue tells what kind of GPU it is: neither whether it is meant for servers, nor what it needs."""
    device = card.gpu.key["device"]
    if serves(card) and device and known(device) is None:
        return pci_id(device)
    return None


@rule("dda.dismounted", each=CARD)
def dismounted(facts: HostFacts, card: Card) -> str | None:
    """The GPU left the host and belongs to no VM, as after an attempt that was given up."""
    if facts.place(card.gpu) == DISMOUNTED:
        return "dismounted, and assigned to no VM"
    return None


@rule("dda.nvswitch-board", each=CARD)
def board_of_nvswitches(facts: HostFacts, card: Card) -> str | None:
    """The GPU is an SXM module or one like it, which waits for Fabric Manager and its NVSwitches."""
    found = known(card.gpu.key["device"])
    if found and found.nvlink is NvLink.BOARD and found.architecture not in WITHOUT_NVSWITCH:
        return found.name
    return None


@rule("dda.firmware-controls-pcie", each=CARD)
def firmware_controls_pcie(facts: HostFacts, card: Card) -> str | None:
    """Firmware controls PCI Express on the GPU's root bus, so Windows cannot dismount the GPU."""
    gpu = card.gpu.state
    if not gpu.pcie_control or gpu.device_type == TREATED_AS_PCI:
        kept = f"native PCI Express control {'granted' if gpu.pcie_control else 'kept by firmware'}"
        return f"{kept}, device type {gpu.device_type}"
    return None


@rule("dda.conventional-pci", each=CARD)
def conventional_pci(facts: HostFacts, card: Card) -> str | None:
    """The device is conventional PCI, or a legacy endpoint that is not a display device."""
    gpu = card.gpu.state
    express = gpu.device_type in (EXPRESS_ENDPOINT, ROOT_COMPLEX_ENDPOINT, TREATED_AS_PCI)
    if not express and (gpu.device_type, gpu.base_class) != (LEGACY_ENDPOINT, DISPLAY):
        return f"device type {gpu.device_type}, base class {gpu.base_class}"
    return None


@rule("dda.root-complex-endpoint", each=CARD)
def root_complex_endpoint(facts: HostFacts, card: Card) -> str | None:
    """The GPU is part of the root complex, where ACS does not apply."""
    if card.gpu.state.device_type == ROOT_COMPLEX_ENDPOINT:
        return f"device type {ROOT_COMPLEX_ENDPOINT}"
    return None


@rule("dda.tunneled", each=CARD)
def tunneled(facts: HostFacts, card: Card) -> str | None:
    """The GPU is reached over Thunderbolt or USB4. Before Windows Server 2025 the property does not exist; that is only
    a note, since GPUs in slots are the rule.
    """
    if card.gpu.state.tunneled:
        return "connected over Thunderbolt or USB4"
    return None


@rule("dda.shows-the-host", each=CARD)
def shows_the_host(facts: HostFacts, card: Card) -> str | None:
    """Firmware boots on this GPU, or displays are connected to it."""
    if shows(card):
        return _shown(card)
    return None


@rule("dda.only-display", each=ASSIGNMENT)
def only_display(facts: HostFacts, selection: Selection) -> str | None:
    """The selection takes every display that the host has in use."""
    shown = [card for card in selection.cards if shows(card)]
    chosen = {card.location for card in selection.cards}
    if shown and not any(_stays(card) for card in facts.cards if card.location not in chosen):
        return "; ".join(map(_shown, shown))
    return None


@rule("dda.partitions-in-use", each=CARD)
def partitions_in_use(facts: HostFacts, card: Card) -> str | None:
    """VMs use partitions of the GPU, so it cannot be assigned as a whole."""
    for parts in filter(None, (partitions(facts, card), paravirtual(facts, card))):
        if parts.used:
            return f"{parts.used} of {parts.partitions} partitions in use"
    return None


@rule("dda.partitioned", each=CARD)
def partitioned(facts: HostFacts, card: Card) -> str | None:
    """The GPU is split for GPU-P, and no VM uses a partition."""
    parts = partitions(facts, card)
    if parts and parts.partitions > 1 and not parts.used:
        return f"{parts.partitions} partitions, none in use"
    return None


@rule("dda.companions", each=CARD)
def companions(facts: HostFacts, card: Card) -> str | None:
    """The GPU's audio and USB functions are in its slot and IOMMU group, and leave the host with it."""
    if card.companions:
        kinds = ", ".join(function.state.kind for function in card.companions)
        return f"in the same slot: {kinds}"
    return None


@rule("dda.device-disabled", each=CARD)
def device_disabled(facts: HostFacts, card: Card) -> str | None:
    """The GPU is disabled, so Windows reports no memory resources for it."""
    gpu = card.gpu.state
    if not gpu.dismounted and gpu.problem == DISABLED:
        return f"problem code {DISABLED}"
    return None


@rule("dda.assigned-already", each=CARD)
def assigned_already(facts: HostFacts, card: Card) -> str | None:
    """A VM has the GPU already: DDA works here, and only the owner can release it."""
    vm = owner(facts.place(card.gpu))
    if vm:
        return f"assigned to VM {vm}"
    return None


@rule("dda.guest-bars", each=CARD)
def guest_sees_other_bars(facts: HostFacts, card: Card) -> str | None:
    """The guest that has the GPU sees another BAR1 than the host knows of it."""
    if owner(facts.place(card.gpu)) is None:
        return None
    try:
        listed = bars_of(card)
    except MmioRefused:
        return None  # nothing to hold it against
    expected = {each.aperture for each in (listed, listed.surveyed) if each}
    for seen in _seen_in_guest(facts, card):
        if seen not in expected:
            return f"BAR1 is {size(seen)} in the guest, {size(listed.aperture)} by the host"
    return None


def _seen_in_guest(facts: HostFacts, card: Card) -> Iterator[Bytes]:
    """The largest BAR of each GPU of this model: which is which cannot be told. Nothing of a guest that is not read."""
    with suppress(MissingFact):
        for gpu in facts.all(LinuxGpu):
            if gpu.state.bars and gpu.state.device == pci_id(card.gpu.key["device"]):
                yield max(bar.size for bar in gpu.state.bars)


@rule("dda.assigned-elsewhere", each=ASSIGNMENT)
def assigned_elsewhere(facts: HostFacts, selection: Selection) -> str | None:
    """A selected GPU belongs to another VM than the selected one."""
    if selection.vm is None:
        return None
    owners = [(card.location, owner(facts.place(card.gpu))) for card in selection.cards]
    theirs = [f"{location}: VM {vm}" for location, vm in owners if vm not in (None, selection.vm.key["vm"])]
    if theirs:
        return "; ".join(theirs)
    return None


@rule("dda.window-address-width", each=ASSIGNMENT)
def window_refused(facts: HostFacts, selection: Selection) -> Finding | None:
    """The MMIO windows that the selection needs are refused by the arithmetic in mmio, before any change."""
    try:
        windows(facts, selection)
    except MmioRefused as refused:
        return finding(REFUSALS[refused.code], refused.sentence)
    return None


@rule("dda.window-over-cap", each=ASSIGNMENT)
def window_over_cap(facts: HostFacts, selection: Selection) -> str | None:
    """The high MMIO window that the selection needs is larger than Hyper-V has been seen to accept."""
    try:
        above = windows(facts, selection).high.over_cap
    except MmioRefused:
        return None
    return above if above else None


@rule("dda.window-doubtful", each=ASSIGNMENT)
def window_doubtful(facts: HostFacts, selection: Selection) -> str | None:
    """The MMIO windows are sized from a table or from VRAM instead of the GPU's own BARs."""
    try:
        doubts = windows(facts, selection).high.doubts
    except MmioRefused:
        return None
    if doubts:
        return " ".join(doubts)
    return None


def _shown(card: Card) -> str:
    gpu = card.gpu.state
    booted = "firmware boots on it, " if gpu.post_path else ""
    return f"{card.location}: {booted}{gpu.displays} display(s) connected"


def _stays(card: Card) -> bool:
    return not card.gpu.state.dismounted and card.gpu.state.problem == NO_PROBLEM
