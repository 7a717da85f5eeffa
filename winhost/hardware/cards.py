"""Display devices: which ones can serve a model, drive a monitor or be partitioned, and what to call them."""

from winhost.core.answers import NOT_THERE, MissingFact
from winhost.hardware import bars
from winhost.hardware.gpus import known
from winhost.model.errors import visible
from winhost.model.facts import Instance
from winhost.model.units import Bytes
from winhost.resources.host import Card, HostFacts
from winhost.resources.windows.partitionable_gpu import PartitionableGpu, is_paravirtual
from winhost.resources.windows.pci_device import PciDevice

NVIDIA = "VEN_10DE"
MANAGEMENT_VENDORS = ("VEN_1A03", "VEN_102B")  # ASPEED, Matrox: the screens of management controllers
# VMware SVGA, QEMU's standard VGA, QXL, virtio, VirtualBox: the screens that hypervisors make. Source: pci.ids.
VIRTUAL_SCREENS = ("VEN_15AD", "VEN_1234", "VEN_1B36", "VEN_1AF4", "VEN_80EE")


def serves(card: Card) -> bool:
    """Tell whether it is a GPU, and not the display adapter of a management controller or of a hypervisor."""
    return not card.gpu.key["device"].upper().startswith((*MANAGEMENT_VENDORS, *VIRTUAL_SCREENS))


def runs_cuda(card: Card) -> bool:
    """Tell whether it is an NVIDIA GPU: serving needs CUDA. Raises MissingFact for an imported GPU without ids."""
    device = card.gpu.key["device"]
    if not device:
        raise MissingFact(f"the maker of the card at {card.location}", NOT_THERE)
    return device.upper().startswith(NVIDIA)


def shows(card: Card) -> bool:
    """Tell whether it may be in use as a display: monitors are attached, or firmware boots on it."""
    return card.gpu.state.post_path or card.gpu.state.displays > 0


def partitions(facts: HostFacts, card: Card) -> PartitionableGpu | None:
    """The card as a GPU that is split by SR-IOV with its vendor's driver, if it can be."""
    return next((gpu.state for gpu in _offered(facts, card) if not is_paravirtual(gpu.key["gpu"])), None)


def paravirtual(facts: HostFacts, card: Card) -> PartitionableGpu | None:
    """The card as a GPU that Windows' own driver shares with guests (GPU-PV), which it does for ordinary ones."""
    return next((gpu.state for gpu in _offered(facts, card) if is_paravirtual(gpu.key["gpu"])), None)


def _offered(facts: HostFacts, card: Card) -> list[Instance[PartitionableGpu]]:
    return facts.keep((_listed, card.location), _listed, facts, card)


def _listed(facts: HostFacts, card: Card) -> list[Instance[PartitionableGpu]]:
    """A partitionable GPU is keyed by its interface path, the instance id with another separator."""
    facts.rest_on(PciDevice)
    path = card.gpu.state.instance.replace("\\", "#").casefold()
    return [gpu for gpu in facts.all(PartitionableGpu) if path in gpu.key["gpu"].casefold()]


def memory_of(card: Card) -> Bytes:
    """Bytes of VRAM as the driver reports them, else from the catalogue. Raises MissingFact."""
    found = known(card.gpu.key["device"])
    size = card.gpu.state.vram or (found and found.memory)
    if not size:
        raise MissingFact(f"the memory of {card_name(card)}", NOT_THERE)
    return size


def card_name(card: Card) -> str:
    """The model's name, from the catalogue for a dismounted card, for which Windows no longer reports it."""
    lost = bars.listed_name(card.gpu.key["device"]) if _dismounted(card) else None
    return visible(lost or card.gpu.state.name)


def _dismounted(card: Card) -> bool:
    """False where imported facts lack the instance: a name alone must not make a verdict unknown."""
    try:
        return card.gpu.state.dismounted
    except MissingFact:
        return False


def card_label(card: Card) -> str:
    """Name and location: two cards of one model differ only in the second."""
    return f"{card_name(card)} at {card.location}"


def bars_of(card: Card) -> bars.CardBars:
    """The BARs of a card from the best source. Raises MmioRefused, MissingFact."""
    gpu = card.gpu.state
    return bars.card(card_name(card), ranges=gpu.ranges, device=card.gpu.key["device"], vram=gpu.vram)
