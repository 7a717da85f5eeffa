# Part of the agent, which sends it along: the GPUs of NVIDIA's, and the driver that runs them.
"""The GPUs as the PCI bus, the kernel and nvidia-smi know them. Python 3.8 can read it."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from winhost.agent.linux_agent import describe_error, must, place_of, run
from winhost.agent.linux_files import content, text_of

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
    """NVIDIA's, as the PCI bus and nvidia-smi know them, by address."""
    on_bus = gpus_on_bus()
    listed, otherwise = listed_gpus()
    for address in sorted({*on_bus, *listed}):
        yield address, {**of_bus(on_bus.get(address)), **listed.get(address, otherwise)}


def gpus_on_bus() -> dict[str, Path]:
    """The GPUs' folders in sysfs by address."""
    return {path.name: path for path in sorted(PCI.iterdir()) if is_gpu(path)} if PCI.is_dir() else {}


def is_gpu(path: Path) -> bool:
    """Display controllers of NVIDIA: VGA and 3D."""
    return sysfs_text(path, "vendor") == "0x10de" and sysfs_text(path, "class").startswith("0x03")


def has_nvswitches() -> bool:
    """Bridges of NVIDIA on the PCI bus. Those of B200 boards are not there, nor those of a board whose GPUs alone were
    given to a VM.
    """
    return PCI.is_dir() and any(
        sysfs_text(path, "vendor") == "0x10de" and sysfs_text(path, "class").startswith("0x0680")
        for path in PCI.iterdir()
    )


def of_bus(path: Path | None) -> State:
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
    """Its first six lines are the BARs: start, end and flags."""
    found = []
    for index, line in enumerate(text.splitlines()[:6]):
        start, end, flags = (int(each, 16) for each in line.split())
        if flags & MEMORY_BAR and end > start:
            prefetchable = bool(flags & PREFETCHABLE_BAR)
            found.append({"index": index, "start": start, "size": end - start + 1, "prefetchable": prefetchable})
    return found


def sysfs_text(path: Path, name: str) -> str:
    """A file of a device, whose folder on the bus is a link; nothing where there is none."""
    file = os.path.realpath(path) + "/" + name
    return content(file).decode("ascii").strip() if Path(file).exists() else ""


def listed_gpus() -> tuple[dict[str, State], State]:
    """The listed GPUs by address, and the state of one that is not listed."""
    names = ("name", "uuid", "vram")
    if place_of("nvidia-smi") is None:
        return {}, dict.fromkeys(names)
    try:
        said = must("nvidia-smi", SMI_COLUMNS, "--format=csv,noheader,nounits", within=30)
    except Exception as error:  # noqa: BLE001 - a GPU is there, whatever nvidia-smi says
        why = {"unknown": describe_error(error)}
        return {}, dict.fromkeys(names, why)
    return smi_gpus(said), dict.fromkeys(names)


def smi_gpus(text: str) -> dict[str, State]:
    found = {}
    for line in text.splitlines():
        address, uuid, name, memory = (part.strip() for part in line.split(",", 3))
        matched = FUNCTION.fullmatch(address.lower())
        if matched and memory.isdigit():
            # It writes the domain with eight digits, sysfs with four.
            at = f"{int(matched[1], 16):04x}:{matched[2]}"
            found[at] = {"name": name, "uuid": uuid, "vram": int(memory) << 20}
    return found


# ---- the driver


def loaded_driver() -> str | None:
    """The version of the kernel module that runs; nothing where none does."""
    version = text_of(RUNNING_MODULE)
    if version is not None:
        return version.strip()
    # A module can be built without its version in sysfs; the driver itself always tells it.
    said = MODULE.search(text_of(RUNNING_DRIVER) or "")
    return said[1] if said else None


def driver_kind() -> str | None:
    """The first line names the module: `NVIDIA UNIX Open Kernel Module for x86_64  580.95.05 ...`."""
    text = text_of(RUNNING_DRIVER)
    return None if text is None else "open" if "Open Kernel Module" in text.split("\n")[0] else "proprietary"


def of_module(field: str) -> str | None:
    """Read a field of the module that would be loaded next; None if there is none."""
    done = run("modinfo", f"--field={field}", "nvidia")
    return done.output.strip() or None
