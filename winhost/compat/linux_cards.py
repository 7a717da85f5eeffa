"""GPUs of a Linux of its own as rules of capabilities read them: by PCI id, name and memory, and nothing of Windows."""

from typing import Any

from winhost.core.answers import NOT_THERE, MissingFact
from winhost.hardware.gpus import known
from winhost.model.facts import Instance
from winhost.resources.host import Card, HostFacts
from winhost.resources.linux.linux_gpu import LinuxGpu
from winhost.resources.windows.pci_device import DISPLAY, PciDevice


def linux_cards(facts: HostFacts) -> tuple[Card, ...]:
    """NVIDIA's, in the order of their addresses. What only Windows tells of a GPU is missing. Raises MissingFact."""
    return tuple(map(_card, facts.all(LinuxGpu)))


def _card(gpu: Instance[LinuxGpu]) -> Card:
    vendor, _, device = (gpu.state.device or "10de:").upper().partition(":")
    untold: dict[str, Any] = dict.fromkeys(PciDevice.__annotations__, NOT_THERE)
    told = {"name": _name(gpu.state), "vram": _memory(gpu.state), "driver": gpu.state.driver, "base_class": DISPLAY}
    key = {"location": gpu.key["address"], "device": f"VEN_{vendor}&DEV_{device}"}
    return Card(Instance(key, PciDevice(**{**untold, **told})))


def _name(gpu: LinuxGpu) -> str:
    card = known(gpu.device or "")
    return _told(gpu, "name") or (card.name if card else f"GPU {gpu.device}")


def _memory(gpu: LinuxGpu) -> Any:
    """None where nobody tells: the catalogue is asked for it then."""
    return _told(gpu, "vram")


def _told(gpu: LinuxGpu, name: str) -> Any:
    """What nvidia-smi says, where it could be asked."""
    try:
        return getattr(gpu, name)
    except MissingFact:
        return None
