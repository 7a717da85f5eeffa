"""A host's display devices: whether each can serve a model, drive a monitor or be partitioned, and its name."""

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
MANAGEMENT_VENDORS = ("VEN_1A03", "VEN_102B")  # ASPEED, Matrox: display adapters of management controllers
# VMware SVGA, QEMU's standard VGA, QXL, virtio, VirtualBox: display adapters of hypervisors. Source: pci.ids.
VIRTUAL_SCREENS = ("VEN_15AD", "VEN_1234", "VEN_1B36", "VEN_1AF4", "VEN_80EE")


def is_compute_gpu(gpu: Gpu) -> bool:
    """Tell whether it is not merely the display adapter of a management controller or of a hypervisor."""
    return not gpu.pci.key["device"].upper().startswith((*MANAGEMENT_VENDORS, *VIRTUAL_SCREENS))


def runs_cuda(gpu: Gpu) -> bool:
    """Tell whether it is an NVIDIA GPU, because serving needs CUDA.

    For an imported GPU without ids, the vendor in its name decides. Raises MissingFact if the name has none.
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
    """Tell whether it may be used as a display: monitors are attached, or firmware boots on it."""
    return gpu.pci.state.post_path or gpu.pci.state.displays > 0


def sriov_gpu(facts: HostFacts, gpu: Gpu) -> PartitionableGpu | None:
    """Return the GPU as its vendor's driver can partition it by SR-IOV, or None."""
    return next((each.state for each in _partitionable(facts, gpu) if not is_paravirtual(each.key["gpu"])), None)


def paravirtual_gpu(facts: HostFacts, gpu: Gpu) -> PartitionableGpu | None:
    """Return the GPU as Windows' own driver can share it with guests by paravirtualization (GPU-PV), or None."""
    return next((each.state for each in _partitionable(facts, gpu) if is_paravirtual(each.key["gpu"])), None)


def _partitionable(facts: HostFacts, gpu: Gpu) -> list[Instance[PartitionableGpu]]:
    return facts.cached((_find_partitionable, gpu.location), _find_partitionable, facts, gpu)


def _find_partitionable(facts: HostFacts, gpu: Gpu) -> list[Instance[PartitionableGpu]]:
    """Find the entries of a GPU among the partitionable GPUs.

    Their key is the interface path, which contains the instance id with another separator.
    """
    facts.add_inputs(PciDevice)
    path = gpu.pci.state.instance.replace("\\", "#").casefold()
    return [each for each in facts.all(PartitionableGpu) if path in each.key["gpu"].casefold()]


def catalogue_entry(gpu: Gpu) -> GpuModel | None:
    """Return the GPU's entry in the catalogue, or None: by its ids, or by its name if imported facts have no ids."""
    device = gpu.pci.key["device"]
    return find_model(device) if device else find_model_by_name(if_known(lambda: gpu.pci.state.name) or "")


def gpu_memory(gpu: Gpu) -> Bytes:
    """Return the bytes of VRAM that the driver reports, otherwise those in the catalogue. Raises MissingFact."""
    model = catalogue_entry(gpu)
    size = gpu.pci.state.vram or (model and model.memory)
    if not size:
        raise MissingFact(f"the memory of {gpu_name(gpu)}", NOT_READ)
    return size


def gpu_name(gpu: Gpu) -> str:
    """Return the GPU's name as Windows reports it; from the catalogue if the GPU is dismounted, because Windows no
    longer reports it then, or if the name was not read. Raises MissingFact.
    """
    # Imported facts may lack the instance. That alone must not make a verdict unknown.
    dismounted = if_known(lambda: gpu.pci.state.dismounted)
    has_name = bool(if_known(lambda: gpu.pci.state.name))
    model = find_model(gpu.pci.key["device"]) if dismounted or not has_name else None
    return visible(model.name if model else gpu.pci.state.name)


def gpu_label(gpu: Gpu) -> str:
    """Return name and location, which tell two GPUs of one model apart."""
    return f"{gpu_name(gpu)} at {gpu.location}"
