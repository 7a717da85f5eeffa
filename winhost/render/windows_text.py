"""Describe the GPUs and disks of a Windows host in table rows. Disks have the names that settings take."""

from winhost.compat.target import driver_branch
from winhost.core.answers import MissingFact
from winhost.hardware.host_gpus import gpu_memory
from winhost.model.facts import Instance
from winhost.model.units import about, size
from winhost.paths.disks import partitions_on_disk
from winhost.render.fact_text import format_fact
from winhost.resources.host import Gpu, HostFacts
from winhost.resources.windows.disks import BASIC_DATA, DYNAMIC, EFI, LINUX, RECOVERY, RESERVED, STORAGE_SPACES
from winhost.resources.windows.read_only import Disk

GPU_COLUMNS = ("GPU", "memory", "driver", "mode", "assignment", "displays")
GPU_COLUMNS_WIDE = ("BARs", "location", "class", "device")
DISK_COLUMNS = ("disk", "size", "model", "bus", "table", "partitions", "state")
_PARTITION_KINDS = {
    EFI: "EFI",
    RESERVED: "reserved",
    BASIC_DATA: "data",
    RECOVERY: "recovery",
    LINUX: "Linux",
    STORAGE_SPACES: "Storage Spaces",
    **dict.fromkeys(DYNAMIC, "dynamic"),
}


def gpu_rows(host: HostFacts) -> list[tuple[str, ...]]:
    """Return rows with cells in the order of GPU_COLUMNS, then GPU_COLUMNS_WIDE. Raises MissingFact."""
    return [_gpu_row(host, gpu) for gpu in host.gpus]


def _gpu_row(host: HostFacts, gpu: Gpu) -> tuple[str, ...]:
    state = gpu.pci.state
    try:
        driver = " ".join(filter(None, (state.driver, state.driver_version))) or "none"
    except MissingFact:  # an nvidia-smi in WSL, for example, reports only NVIDIA's version number
        driver = format_fact(lambda: driver_branch(state.driver_version) or state.driver_version)
    return (
        state.name,
        format_fact(lambda: size(gpu_memory(gpu))),
        driver,
        format_fact(lambda: state.driver_model or "none"),
        format_fact(lambda: host.assignment(gpu.pci)),
        format_fact(lambda: state.displays),
        format_fact(lambda: " + ".join(size(each.length) for each in state.ranges) or "not readable now"),
        gpu.location,
        format_fact(lambda: state.device_class or "none"),
        gpu.pci.key["device"],
    )


def disk_rows(host: HostFacts) -> list[tuple[str, ...]]:
    """Return rows with cells in the order of DISK_COLUMNS. The GUID of its partition table names a disk, or else its
    unique id.
    """
    return [_disk_row(host, each) for each in host.all(Disk)]


def _disk_row(host: HostFacts, each: Instance[Disk]) -> tuple[str, ...]:
    disk = each.state
    return (
        format_fact(lambda: disk.guid or each.key["disk"]),
        about(disk.size),
        disk.model,
        disk.bus,
        "none" if disk.style == "RAW" else disk.style,
        format_fact(lambda: _format_partitions(host, disk)),
        format_fact(lambda: disk.health + ", offline" * disk.offline + ", read-only" * disk.read_only),
    )


def _format_partitions(host: HostFacts, disk: Disk) -> str:
    partitions = [part.state for part in partitions_on_disk(host, disk.guid)]
    names = (
        f"{part.letter}:" if part.letter else _PARTITION_KINDS.get(part.type, "another system's") for part in partitions
    )
    return ", ".join(names) or ("not read" if disk.style == "MBR" else "none")
