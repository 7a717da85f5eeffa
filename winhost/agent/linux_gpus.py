# Part of the agent: the GPUs of NVIDIA, and their driver.
"""The GPUs on the PCI bus, in the kernel and in nvidia-smi. This part has to parse with Python 3.8."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from winhost.agent.linux_agent import describe_error, find_program, run, run_checked
from winhost.agent.linux_files import read_file, read_text

if TYPE_CHECKING:  # Python 3.8 cannot say these
    from collections.abc import Iterator

    from winhost.agent.linux_agent import State

RUNNING_DRIVER, RUNNING_MODULE = "/proc/driver/nvidia/version", "/sys/module/nvidia/version"
PCI = Path("/sys/bus/pci/devices")
FUNCTION = re.compile(r"([0-9a-f]{4,8}):([0-9a-f]{2}:[0-9a-f]{2}\.[0-7])")
MODULE = re.compile(r"^NVRM version: .* Kernel Module(?: for \S+)?  ([0-9.]+) ")
MEMORY_BAR, PREFETCHABLE_BAR = 0x200, 0x2000  # flags of a resource: IORESOURCE_MEM, IORESOURCE_PREFETCH
SMI_COLUMNS = "--query-gpu=pci.bus_id,uuid,name,memory.total"


def gpus() -> Iterator[tuple[str, State]]:
    """Yield the GPUs of NVIDIA by address, with what the PCI bus and nvidia-smi report."""
    on_bus = find_gpus_on_bus()
    listed, otherwise = read_listed_gpus()
    for address in sorted({*on_bus, *listed}):
        yield address, {**read_pci_device(on_bus.get(address)), **listed.get(address, otherwise)}


def find_gpus_on_bus() -> dict[str, Path]:
    """Find the folders of GPUs in sysfs, by address."""
    return {path.name: path for path in sorted(PCI.iterdir()) if is_gpu(path)} if PCI.is_dir() else {}


def is_gpu(path: Path) -> bool:
    """Tell whether this is a display controller of NVIDIA, VGA or 3D."""
    return sysfs_text(path, "vendor") == "0x10de" and sysfs_text(path, "class").startswith("0x03")


def has_nvswitches() -> bool:
    """Tell whether the PCI bus has bridges of NVIDIA. It has none for B200 boards, and none in a VM that has only the
    GPUs of a board.
    """
    return PCI.is_dir() and any(
        sysfs_text(path, "vendor") == "0x10de" and sysfs_text(path, "class").startswith("0x0680")
        for path in PCI.iterdir()
    )


def read_pci_device(path: Path | None) -> State:
    if path is None:
        return {"device": None, "driver": None, "numa": None, "bars": []}
    node, bound = int(sysfs_text(path, "numa_node") or -1), path / "driver"
    return {
        "device": sysfs_text(path, "vendor")[2:] + ":" + sysfs_text(path, "device")[2:],
        "driver": bound.resolve().name if bound.is_symlink() else None,
        "numa": node if node >= 0 else None,
        "bars": pci_bars(sysfs_text(path, "resource")),
    }


def pci_bars(text: str) -> list[State]:
    """Parse the BARs: the first six lines, each with start, end and flags."""
    found = []
    for index, line in enumerate(text.splitlines()[:6]):
        start, end, flags = (int(each, 16) for each in line.split())
        if flags & MEMORY_BAR and end > start:
            prefetchable = bool(flags & PREFETCHABLE_BAR)
            found.append({"index": index, "start": start, "size": end - start + 1, "prefetchable": prefetchable})
    return found


def sysfs_text(path: Path, name: str) -> str:
    """Read a file of a device, whose folder on the bus is a link; empty if there is none."""
    file = os.path.realpath(path) + "/" + name
    return read_file(file).decode("ascii").strip() if Path(file).exists() else ""


def read_listed_gpus() -> tuple[dict[str, State], State]:
    """Read the GPUs that nvidia-smi lists, by address, and the state of a GPU that is not listed."""
    names = ("name", "uuid", "vram")
    if find_program("nvidia-smi") is None:
        return {}, dict.fromkeys(names)
    try:
        output = run_checked("nvidia-smi", SMI_COLUMNS, "--format=csv,noheader,nounits", within=30)
    except Exception as error:  # noqa: BLE001 - the GPU exists even if nvidia-smi fails
        unknown = {"unknown": describe_error(error)}
        return {}, dict.fromkeys(names, unknown)
    return parse_smi_output(output), dict.fromkeys(names)


def parse_smi_output(text: str) -> dict[str, State]:
    found = {}
    for line in text.splitlines():
        address, uuid, name, memory = (part.strip() for part in line.split(",", 3))
        matched = FUNCTION.fullmatch(address.lower())
        if matched and memory.isdigit():
            # nvidia-smi writes the domain with eight digits, sysfs with four.
            normalized = f"{int(matched[1], 16):04x}:{matched[2]}"
            found[normalized] = {"name": name, "uuid": uuid, "vram": int(memory) << 20}
    return found


# ---- the driver


def loaded_driver() -> str | None:
    """Return the version of the loaded kernel module; None if none is loaded."""
    version = read_text(RUNNING_MODULE)
    if version is not None:
        return version.strip()
    # A module can be built without its version in sysfs; the driver's own file always has it.
    output = MODULE.search(read_text(RUNNING_DRIVER) or "")
    return output[1] if output else None


def driver_kind() -> str | None:
    """Return `open` or `proprietary`; None if no driver is loaded. The first line names the module, such as
    `NVIDIA UNIX Open Kernel Module for x86_64`.
    """
    text = read_text(RUNNING_DRIVER)
    return None if text is None else "open" if "Open Kernel Module" in text.split("\n")[0] else "proprietary"


def read_module_field(field: str) -> str | None:
    """Read a field of the module that would be loaded next; None if there is no module."""
    done = run("modinfo", f"--field={field}", "nvidia")
    return done.output.strip() or None
