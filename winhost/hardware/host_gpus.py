"""Display devices: which ones can serve a model, drive a monitor or be partitioned, and what to call them."""

import re

from winhost.core.answers import NOT_READ, MissingFact, if_known
from winhost.hardware.gpus import GpuModel, find_model, find_model_by_name
from winhost.model.errors import visible
from winhost.model.facts import Instance
from winhost.model.units import Bytes
from winhost.resources.host import Gpu, HostFacts
from winhost.resources.windows.pci_device import PciDevice
from winhost.resources.windows.read_only import PartitionableGpu, is_paravirtual

NVIDIA = "VEN_10DE"
_NVIDIA_NAME = re.compile(r"\b(?:NVIDIA|GeForce|Quadro|Tesla)\b", re.IGNORECASE)
_OTHER_VENDOR_NAME = re.compile(r"\b(?:AMD|Radeon|Intel|Matrox|ASPEED|Microsoft)\b", re.IGNORECASE)
MANAGEMENT_VENDORS = ("VEN_1A03", "VEN_102B")  # ASPEED, Matrox: the screens of management controllers
# VMware SVGA, QEMU's standard VGA, QXL, virtio, VirtualBox: the screens that hypervisors make. Source: pci.ids.
VIRTUAL_SCREENS = ("VEN_15AD", "VEN_1234", "VEN_1B36", "VEN_1AF4", "VEN_80EE")


def is_compute_gpu(gpu: Gpu) -> bool:
    """Tell whether it is a GPU, and not the display adapter of a management controller or of a hypervisor."""
    return not gpu.pci.key["device"].upper().startswith((*MANAGEMENT_VENDORS, *VIRTUAL_SCREENS))


def runs_cuda(gpu: Gpu) -> bool:
    """Tell whether it is an NVIDIA GPU: serving needs CUDA.

    An imported GPU may lack ids, and then its name tells. Raises MissingFact where that does not name a maker either.
    """
    device = gpu.pci.key["device"]
    if device:
        return device.upper().startswith(NVIDIA)
    name = if_known(lambda: gpu.pci.state.name) or ""
    if _NVIDIA_NAME.search(name):
        return True
    if _OTHER_VENDOR_NAME.search(name):
        return False
    raise MissingFact(f"the maker of the GPU at {gpu.location}", NOT_READ)


def may_drive_display(gpu: Gpu) -> bool:
    """Tell whether it may be in use as a display: monitors are attached, or firmware boots on it."""
    return gpu.pci.state.post_path or gpu.pci.state.displays > 0


def sriov_gpu(facts: HostFacts, gpu: Gpu) -> PartitionableGpu | None:
    """The GPU as its vendor's driver splits it by SR-IOV, if it can be."""
    return next((offered.state for offered in _offered(facts, gpu) if not is_paravirtual(offered.key["gpu"])), None)


def paravirtual_gpu(facts: HostFacts, gpu: Gpu) -> PartitionableGpu | None:
    """The GPU as Windows' own driver shares it with guests (GPU-PV), which it does for ordinary ones."""
    return next((offered.state for offered in _offered(facts, gpu) if is_paravirtual(offered.key["gpu"])), None)


def _offered(facts: HostFacts, gpu: Gpu) -> list[Instance[PartitionableGpu]]:
    return facts.cached((_partitionable_gpus, gpu.location), _partitionable_gpus, facts, gpu)


def _partitionable_gpus(facts: HostFacts, gpu: Gpu) -> list[Instance[PartitionableGpu]]:
    """A partitionable GPU is keyed by its interface path, the instance id with another separator."""
    facts.add_inputs(PciDevice)
    path = gpu.pci.state.instance.replace("\\", "#").casefold()
    return [offered for offered in facts.all(PartitionableGpu) if path in offered.key["gpu"].casefold()]


def catalogue_entry(gpu: Gpu) -> GpuModel | None:
    """The GPU's entry in the catalogue, if any: by its ids, or by its name where what was imported has no ids."""
    device = gpu.pci.key["device"]
    return find_model(device) if device else find_model_by_name(if_known(lambda: gpu.pci.state.name) or "")


def gpu_memory(gpu: Gpu) -> Bytes:
    """Bytes of VRAM as the driver reports them, else from the catalogue. Raises MissingFact."""
    found = catalogue_entry(gpu)
    size = gpu.pci.state.vram or (found and found.memory)
    if not size:
        raise MissingFact(f"the memory of {gpu_name(gpu)}", NOT_READ)
    return size


def gpu_name(gpu: Gpu) -> str:
    """The model's name, from the catalogue for a dismounted GPU, for which Windows no longer reports it, and for one
    whose name was not read.
    """
    # Imported facts may lack the instance, and a name alone must not make a verdict unknown.
    dismounted = if_known(lambda: gpu.pci.state.dismounted)
    lost = find_model(gpu.pci.key["device"]) if dismounted or not if_known(lambda: gpu.pci.state.name) else None
    return visible(lost.name if lost else gpu.pci.state.name)


def gpu_label(gpu: Gpu) -> str:
    """Name and location: two GPUs of one model differ only in the second."""
    return f"{gpu_name(gpu)} at {gpu.location}"
