"""nvidia-smi: NVIDIA's GPUs, as their driver on Windows or Linux knows them.

Its XML (`-q -x`) has most; people paste its table, `-q` without `-x`, a CSV or `-L`, which tell less.
"""

import re
import textwrap
from collections.abc import Mapping
from dataclasses import replace
from xml.etree.ElementTree import Element, SubElement

from winhost.imports.observation import (
    FileObservations,
    Misread,
    Observation,
    PciAddress,
    SeenFunction,
    Unreported,
    Value,
    Worth,
    document,
    observed,
    sections,
    text_at,
    tree,
)
from winhost.model.units import MiB, size

WINDOWS_MODELS = ("WDDM", "TCC", "MCDM")
FIRST_IN_WSL = 450  # the first branch whose Windows drivers serve WSL
_BUS_ID = r"[0-9A-F]{4,8}:[0-9A-F]{2}:[01][0-9A-F]\.[0-7]"
_ADDRESS = re.compile(r"([0-9A-F]{4,8}):([0-9A-F]{2}):([01][0-9A-F])\.([0-7])", re.IGNORECASE)
_IDS = re.compile(r"(?:0x)?([0-9A-F]{4})([0-9A-F]{4})", re.IGNORECASE)
_MEMORY = re.compile(r"(\d{1,12}) MiB")


TABLE = re.compile(r"^[ \t]*\| +NVIDIA-SMI +(?P<own>\S+).*(?:Driver|KMD) Version: +(?P<driver>[\d.]+)", re.MULTILINE)
"""The head of the table; since 610 it says KMD Version."""
LOG = re.compile(r"^[ \t]*=+NVSMI LOG=+\s*$", re.MULTILINE)
LIST = re.compile(r"^[ \t]*GPU \d+: \S.* \(UUID: |^GPU models and configuration *:", re.MULTILINE)
QUERY = re.compile(
    r"^(?=.*\b(?:memory\.total|driver_version|pci\.bus_id|gpu_bus_id)\b)"
    r"(?:[^,\n]{1,60},){0,60} ?(?:gpu_)?name(?:,|\s*$).*",
    re.MULTILINE,
)
LOST_GPU = re.compile(
    rf"^Unable to determine the device handle for GPU ?(?:\d+: )?(?P<address>{_BUS_ID})", re.MULTILINE | re.IGNORECASE
)
_ROW = re.compile(  # | 0  NVIDIA GeForce RTX 4090      WDDM  |   00000000:01:00.0  On |
    r"^[ \t]*\|\s+\d+\s+(?P<name>\S[^|\n]*?)(?:\s+(?P<mode>WDDM|TCC|MCDM|On|Off|N/A|ERR!))?\s*"
    rf"\|\s*(?P<address>{_BUS_ID})\s[^\n]*"
    r"(?:\n[ \t]*\|[^|\n]*\|[^|\n]*/\s*(?P<memory>\d{1,9})MiB\s*\|)?",
    re.MULTILINE | re.IGNORECASE,
)
_LISTED = re.compile(
    r"^[ \t]*(?:GPU models and configuration *: )?GPU \d+: (?P<name>\S.*?)(?: \(UUID: [^)\n]*\))?[ \t\r]*$",
    re.MULTILINE,
)
_REPORTED_DRIVER = re.compile(r"^Nvidia driver version *: ([\d.]+)", re.MULTILINE)
_GPU_HEAD = re.compile(rf"^GPU ({_BUS_ID})[ \t\r]*$", re.MULTILINE | re.IGNORECASE)
_LINE = re.compile(r"^( *)(\S[^:\n]*?)(?: +: (.*?))?\s*$")
_CUT = "..."  # behind a name that was too long for the table
_MAX_GPUS = 1024
_VRAM_UNREPORTED = Unreported("nvidia-smi does not tell it of this GPU")
# Where the XML has what the text and the CSV (in small letters) call so.
_PATHS = {
    "Product Name": "product_name",
    "Display Attached": "display_attached",
    "Driver Model/Current": "driver_model/current_dm",
    "PCI/Device Id": "pci/pci_device_id",
    "PCI/Sub System Id": "pci/pci_sub_system_id",
    "PCI/Bus Id": "pci/pci_bus_id",
    "PCI/Base Classcode": "pci/pci_base_class",
    "FB Memory Usage/Total": "fb_memory_usage/total",
    "BAR1 Memory Usage/Total": "bar1_memory_usage/total",
    "name": "product_name",
    "gpu_name": "product_name",
    "pci.device_id": "pci/pci_device_id",
    "pci.sub_device_id": "pci/pci_sub_system_id",
    "pci.bus_id": "pci/pci_bus_id",
    "gpu_bus_id": "pci/pci_bus_id",
    "driver_model.current": "driver_model/current_dm",
    "memory.total": "fb_memory_usage/total",
    "driver_version": "driver_version",
}


def read(text: str) -> FileObservations:
    """Read the observations in a text. Raises Misread."""
    if "<nvidia_smi_log" in text:
        log = tree(document(text, "nvidia_smi_log"))
        if log.tag != "nvidia_smi_log":
            raise Misread(f"holds <{log.tag}>, not <nvidia_smi_log>")
        version = text_at(log, "driver_version")
        found = FileObservations(functions=tuple(_gpu(gpu, version) for gpu in log.findall("gpu")))
    elif table := TABLE.search(text):
        wsl = table["own"] != table["driver"]  # nvidia-smi of another version than the driver, which only Windows has
        found = FileObservations(
            resources={"Wsl": {"": {"present": Observation(True)}}} if wsl else {},
            functions=tuple(_gpu_of_row(row, table["driver"], wsl=wsl) for row in _ROW.finditer(text)),
            advice="the table of nvidia-smi has no PCI ids, and cuts long names: nvidia-smi -q -x tells more",
        )
    else:
        found = _read_text(text)
    listed = {function.address for function in found.functions or ()}
    lost = (
        _lost_function(each) for each in LOST_GPU.finditer(text)
    )  # by one nvidia-smi, and another in the same paste may list it
    functions = (*(found.functions or ()), *(each for each in lost if each.address not in listed))
    if not functions:
        raise Misread("is of nvidia-smi, but without a GPU that can be read")
    if len(functions) > _MAX_GPUS:
        raise Misread(f"lists more than {_MAX_GPUS:,} GPUs")
    return replace(found, functions=functions)


def _lost_function(found: re.Match[str]) -> SeenFunction:
    """Return a GPU that nvidia-smi names by its address alone, because the driver does not answer for it."""
    state: dict[str, Value] = {"name": Observation("NVIDIA GPU", Worth.ROUNDED), "kind": Observation("display")}
    return SeenFunction(ids="", state=state, address=_address(found["address"]))


def _gpu_of_row(row: re.Match[str], driver: str, *, wsl: bool) -> SeenFunction:
    windows = row["mode"] in WINDOWS_MODELS
    cut = row["name"].endswith(_CUT)
    state: dict[str, Value] = {
        "name": Observation(row["name"], Worth.ROUGH if cut else Worth.DRIVER),
        "kind": Observation("display"),
        "driver_model": Observation(row["mode"]) if windows else _unreported(wsl=wsl),
        "driver_version": _windows_driver(driver) if windows or wsl else _unreported(wsl=wsl),
        "ranges": Unreported("the table of nvidia-smi does not name them; lspci -vv or the host itself tells all"),
        "vram": observed(int(row["memory"]) * MiB if row["memory"] else None, _VRAM_UNREPORTED, Worth.ROUGH),
    }
    return SeenFunction(ids="", state=state, address=_address(row["address"]))


def _read_text(text: str) -> FileObservations:
    """nvidia-smi -q without -x, --query-gpu as CSV, -L, or the report that PyTorch and vLLM ask for."""
    driver = _REPORTED_DRIVER.search(text)
    if LOG.search(text):
        gpus, version = _read_sections(text)
        advice = None
    elif header := QUERY.search(text):
        gpus, version = _read_csv(header[0], text[header.end() :])
        advice = "the CSV of nvidia-smi has only the columns that were asked for: nvidia-smi -q -x tells more"
    else:
        gpus = [_element({"product_name": each["name"]}) for each in _LISTED.finditer(text)]
        version = driver[1] if driver else None
        advice = "a list of GPUs has only their names: nvidia-smi -q -x tells more"
    return FileObservations(functions=tuple(_gpu(gpu, version) for gpu in gpus), advice=advice)


def _read_sections(text: str) -> tuple[list[Element], str | None]:
    """Return the GPUs of nvidia-smi -q, whose sections are indented, and the driver."""
    begin = LOG.search(text)
    text = textwrap.dedent(text[begin.start() :]) if begin else text
    version = re.search(r"^(?:Driver|KMD) Version +: ([\d.]+)", text, re.MULTILINE)
    gpus = []
    for head, behind in sections(_GPU_HEAD, text):
        values = {"pci/pci_bus_id": head[1]}
        section: list[tuple[int, str]] = []
        for line in behind.splitlines():
            found = _LINE.match(line)
            if found is None:
                continue
            depth = len(found[1])
            section = [each for each in section if each[0] < depth]
            path = _PATHS.get("/".join([*(name for _, name in section), found[2]]))
            if found[3] is None:
                section.append((depth, found[2]))
            elif path:
                values.setdefault(path, found[3])
        gpus.append(_element(values))
    return gpus, version[1] if version else None


def _read_csv(header: str, text: str) -> tuple[list[Element], str | None]:
    columns = [_PATHS.get(name.strip().partition(" [")[0]) for name in header.split(",")]
    gpus, version = [], None
    for line in text.strip().splitlines():
        values = [value.strip() for value in line.split(",")]
        if len(values) != len(columns):
            break
        asked = {path: value for path, value in zip(columns, values, strict=True) if path}
        version = asked.pop("driver_version", version)
        memory = asked.get("fb_memory_usage/total", "")
        if memory.isdecimal():  # --format=csv,nounits
            asked["fb_memory_usage/total"] = f"{memory} MiB"
        gpus.append(_element(asked))
    return gpus, version


def _element(values: Mapping[str, str]) -> Element:
    """Return a GPU as the XML of nvidia-smi has it, of values by their path there."""
    gpu = Element("gpu")
    for path, value in values.items():
        parent, _, name = path.rpartition("/")
        inside = gpu if not parent else gpu.find(parent)
        SubElement(SubElement(gpu, parent) if inside is None else inside, name).text = value
    return gpu


def _gpu(gpu: Element, driver: str | None) -> SeenFunction:
    name = text_at(gpu, "product_name")
    address = text_at(gpu, "pci/pci_bus_id") or gpu.get("id")
    return SeenFunction(
        ids=_ids(gpu), state=_state(gpu, name or "NVIDIA GPU", driver), address=_address(address) if address else None
    )


def _ids(gpu: Element) -> str:
    """nvidia-smi writes the device before the vendor: `233510DE`. Empty where it does not tell them."""
    device = _IDS.fullmatch(text_at(gpu, "pci/pci_device_id") or "")
    if device is None:
        return ""
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
    wsl = not windows and _is_windows_only(driver)
    base_class = text_at(gpu, "pci/pci_base_class") or ""
    known_class = re.fullmatch("(?:0x)?[0-9A-Fa-f]{1,2}", base_class)
    bar1, memory = (_bytes(text_at(gpu, f"{name}_memory_usage/total")) for name in ("bar1", "fb"))
    bar1_told = f" ({size(bar1)})" if bar1 else ""
    state: dict[str, Value] = {
        "name": Observation(name, Worth.DRIVER),
        "kind": Observation("display"),  # it lists nothing else
        "base_class": observed(int(base_class, 16) if known_class else None, Unreported("not told by this driver")),
        "driver_model": Observation(model) if windows else _unreported(wsl=wsl),
        "driver_version": _windows_driver(driver) if windows or wsl else _unreported(wsl=wsl),
        "ranges": Unreported(
            f"nvidia-smi names the size of BAR1 alone{bar1_told}; lspci -vv or the host itself tells all"
        ),
        "vram": observed(memory, _VRAM_UNREPORTED, Worth.EXACT if windows else Worth.DRIVER),
    }
    # `Yes` does not say how many, and GPUs without outputs say it, too.
    if windows and text_at(gpu, "display_attached") == "No":
        state["displays"] = Observation(0, Worth.DRIVER)
    return state


def _unreported(*, wsl: bool) -> Unreported:
    """Return the reason why values of Windows are missing: an nvidia-smi elsewhere does not know them."""
    if wsl:
        return Unreported("nvidia-smi ran in WSL, which does not show it")
    return Unreported("nvidia-smi ran on Linux, and Windows has a driver of its own")


def _is_windows_only(driver: str | None) -> bool:
    """Drivers of a branch are called 550.* on Linux, and 551.* to 553.* or the like on Windows. Before those that know
    WSL, Linux had branches such as 418.
    """
    found = re.fullmatch(r"(\d{3})\.\d{2}", driver or "")
    return found is not None and int(found[1]) > FIRST_IN_WSL and int(found[1]) % 5 != 0


def _windows_driver(driver: str | None) -> Value:
    """NVIDIA's number is the end of Windows' (`591.59` of `32.0.15.9159`); how that begins, only Windows knows."""
    found = re.fullmatch(r"(\d)(\d{2})\.(\d{2})", driver or "")
    if found is None:
        return Unreported(f"NVIDIA calls it {driver}")
    return Observation(f"1{found[1]}.{found[2]}{found[3]}", Worth.DRIVER)


def _bytes(written: str | None) -> int | None:
    found = _MEMORY.fullmatch(written or "")
    return int(found[1]) * MiB if found else None
