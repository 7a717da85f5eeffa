"""`nvidia-smi -q -x`: NVIDIA's GPUs, as their driver on Windows or Linux knows them.

The table of plain `nvidia-smi` has no PCI ids, and cuts long names.
"""

import re
from xml.etree.ElementTree import Element

from winhost.imports.observation import (
    FileObservations,
    Misread,
    Observation,
    PciAddress,
    SeenFunction,
    Unreported,
    Value,
    Worth,
    text_at,
    tree,
)
from winhost.model.units import MiB, size

WINDOWS_MODELS = ("WDDM", "TCC", "MCDM")
_ADDRESS = re.compile(r"([0-9A-F]{4,8}):([0-9A-F]{2}):([01][0-9A-F])\.([0-7])", re.IGNORECASE)
_IDS = re.compile(r"(?:0x)?([0-9A-F]{4})([0-9A-F]{4})", re.IGNORECASE)
_MEMORY = re.compile(r"(\d{1,12}) MiB")


TABLE = re.compile(r"^\| +NVIDIA-SMI +(?P<own>\S+).*Driver Version: +(?P<driver>[\d.]+)", re.MULTILINE)
_ROW = re.compile(  # | 0  NVIDIA GeForce RTX 4090      WDDM  |   00000000:01:00.0  On |
    r"^\|\s+\d+\s+(?P<name>\S.*?)\s+(?P<mode>WDDM|TCC|MCDM|On|Off|N/A)\s*\|\s*(?P<address>[0-9A-F]{4,8}:\S+)\s+\S+\s*\|"
    r"[^\n]*\n\|[^|\n]*\|[^|\n]*/\s*(?P<memory>\d+)MiB\s*\|",
    re.MULTILINE | re.IGNORECASE,
)
_CUT = "..."  # behind a name that was too long for the table


def read(text: str) -> FileObservations:
    """Raises Misread."""
    table = TABLE.search(text)
    return _of_table(text, table["driver"], wsl=table["own"] != table["driver"]) if table else _of_log(text)


def _of_table(text: str, driver: str, *, wsl: bool) -> FileObservations:
    """wsl: nvidia-smi is of another version than the driver, which only Windows has."""
    rows = list(_ROW.finditer(text))
    if not rows:
        raise Misread("is a table of nvidia-smi without a GPU that can be read")
    advice = "the table of nvidia-smi has no PCI ids, and cuts long names: nvidia-smi -q -x tells more"
    return FileObservations(functions=tuple(_gpu_of_row(row, driver, wsl=wsl) for row in rows), advice=advice)


def _gpu_of_row(row: re.Match[str], driver: str, *, wsl: bool) -> SeenFunction:
    windows = row["mode"] in WINDOWS_MODELS
    cut = row["name"].endswith(_CUT)
    state: dict[str, Value] = {
        "name": Observation(row["name"], Worth.ROUGH if cut else Worth.DRIVER),
        "kind": Observation("display"),
        "driver_model": Observation(row["mode"]) if windows else _not_told(wsl=wsl),
        "driver_version": _windows_driver(driver) if windows or wsl else _not_told(wsl=wsl),
        "ranges": Unreported("the table of nvidia-smi does not name them; lspci -vv or the host itself tells all"),
        "vram": Observation(int(row["memory"]) * MiB, Worth.ROUGH),
    }
    return SeenFunction(ids="", state=state, address=_address(row["address"]))


def _of_log(text: str) -> FileObservations:
    log = tree(text)
    if log.tag != "nvidia_smi_log":
        raise Misread(f"holds <{log.tag}>, not <nvidia_smi_log>")
    driver = text_at(log, "driver_version")
    return FileObservations(functions=tuple(_gpu(gpu, driver) for gpu in log.findall("gpu")))


def _gpu(gpu: Element, driver: str | None) -> SeenFunction:
    device = _IDS.fullmatch(text_at(gpu, "pci/pci_device_id") or "")
    if device is None:
        raise Misread(f"has a GPU without its PCI ids ({gpu.get('id', 'unnamed')})")
    name = text_at(gpu, "product_name")
    return SeenFunction(
        ids=_ids(gpu, device),
        state=_state(gpu, name or "NVIDIA GPU", driver),
        address=_address(text_at(gpu, "pci/pci_bus_id") or gpu.get("id") or ""),
    )


def _ids(gpu: Element, device: re.Match[str]) -> str:
    """nvidia-smi writes the device before the vendor: `233510DE`."""
    subsystem = _IDS.fullmatch(text_at(gpu, "pci/pci_sub_system_id") or "")
    known = f"VEN_{device[2]}&DEV_{device[1]}".upper()
    return known + (f"&SUBSYS_{subsystem[1]}{subsystem[2]}".upper() if subsystem else "")


def _address(written: str) -> PciAddress:
    found = _ADDRESS.fullmatch(written)
    if found is None:
        raise Misread(f"has a GPU at '{written}', which is no bus address")
    domain, bus, device, function = (int(part, 16) for part in found.groups())
    return PciAddress(domain, bus, device, function)


def _state(gpu: Element, name: str, driver: str | None) -> dict[str, Value]:
    model = text_at(gpu, "driver_model/current_dm") or text_at(gpu, "driver_model/driver_model_current")
    windows = model in WINDOWS_MODELS
    wsl = not windows and _of_windows_alone(driver)
    state: dict[str, Value] = {
        "name": Observation(name, Worth.DRIVER),
        "kind": Observation("display"),  # it lists nothing else
        "base_class": _base_class(gpu),
        "driver_model": Observation(model) if windows else _not_told(wsl=wsl),
        "driver_version": _windows_driver(driver) if windows or wsl else _not_told(wsl=wsl),
        "ranges": _ranges(gpu),
        "vram": _vram(gpu, Worth.EXACT if windows else Worth.DRIVER),
    }
    # `Yes` does not say how many, and GPUs without outputs say it, too.
    if windows and text_at(gpu, "display_attached") == "No":
        state["displays"] = Observation(0, Worth.DRIVER)
    return state


def _base_class(gpu: Element) -> Value:
    written = text_at(gpu, "pci/pci_base_class") or ""
    return (
        Observation(int(written, 16))
        if re.fullmatch("[0-9A-Fa-f]{1,2}", written)
        else Unreported("not told by this driver")
    )


def _not_told(*, wsl: bool) -> Unreported:
    """Values of Windows, which an nvidia-smi elsewhere does not know."""
    if wsl:
        return Unreported("nvidia-smi ran in WSL, which does not show it")
    return Unreported("nvidia-smi ran on Linux, and Windows has a driver of its own")


def _of_windows_alone(driver: str | None) -> bool:
    """The drivers of a branch are called 550.* on Linux, and 551.* to 553.* or the like on Windows."""
    found = re.fullmatch(r"(\d{3})\.\d{2}", driver or "")
    return found is not None and int(found[1]) % 5 != 0


def _windows_driver(driver: str | None) -> Value:
    """NVIDIA's number is the end of Windows' (`591.59` of `32.0.15.9159`); how that begins, only Windows knows."""
    found = re.fullmatch(r"(\d)(\d{2})\.(\d{2})", driver or "")
    return (
        Observation(f"1{found[1]}.{found[2]}{found[3]}", Worth.DRIVER)
        if found
        else Unreported(f"NVIDIA calls it {driver}")
    )


def _ranges(gpu: Element) -> Unreported:
    bar1 = _bytes(text_at(gpu, "bar1_memory_usage/total"))
    names = f" ({size(bar1)})" if bar1 else ""
    return Unreported(f"nvidia-smi names the size of BAR1 alone{names}; lspci -vv or the host itself tells all")


def _vram(gpu: Element, worth: Worth) -> Value:
    total = _bytes(text_at(gpu, "fb_memory_usage/total"))
    return Unreported("nvidia-smi does not tell it of this GPU") if total is None else Observation(total, worth)


def _bytes(written: str | None) -> int | None:
    found = _MEMORY.fullmatch(written or "")
    return int(found[1]) * MiB if found else None
