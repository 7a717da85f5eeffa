"""`lscpu`, `uname -a`, `free` and `docker info`, as a Linux on the machine prints them.

In WSL it shows that WSL 2 works there. Started on the machine itself it tells the processors and, beside `lscpu`, the
memory. In a VM these are the VM's, and stay unread.
"""

import re
from collections.abc import Mapping

from winhost.imports.observation import FileObservations, Misread, Observation, State, Unreported, Worth, observed
from winhost.model.units import GiB, KiB, MiB

_KERNEL = r"(?P<major>\d{1,2})\.(?P<minor>\d{1,3})\.[\w.]{1,20}-microsoft-standard"
_UNAME = r"^[ \t]*Linux \S{1,64} \d{1,2}\.\d{1,3}\.\S{1,60} #\d"
_MODEL = r"^[ \t]*(?:Model name|Modellname|Nom de modèle|型号名称)[ \t]*[:\uff1a][ \t]*"
_VENDOR = r"^[ \t]*(?:Vendor ID|Anbieterkennung|Identifiant constructeur|厂商 ID)[ \t]*[:\uff1a][ \t]*"
PATTERN = re.compile(rf"{_UNAME}|^[ \t]*Kernel Version: {_KERNEL.replace('P<', 'P<docker_')}|{_VENDOR}\S", re.MULTILINE)
_WSL = re.compile(_KERNEL, re.IGNORECASE)
_PACKAGED = (5, 15)  # the first kernel that only the package of WSL brings
_VM = re.compile(
    r"hypervis|超管理器|[:\uff1a][ \t]*(?:KVM|VMware|QEMU|VirtualBox|Xen)[ \t\r]*$", re.IGNORECASE | re.MULTILINE
)
_NAME = re.compile(rf"{_MODEL}(\S[^\n\r]{{4,100}}?)[ \t\r]*$", re.MULTILINE)
_PROCESSOR_VENDOR = re.compile(rf"{_VENDOR}(GenuineIntel|AuthenticAMD|HygonGenuine)\b", re.MULTILINE)
_NUMBERS = {
    "cpus": r"CPU(?:\(s\)|s)?",
    "sockets": r"Socket\(s\)|Sockel|座",
    "cores": r"Core\(s\) per socket|Kern\(e\) pro Socket|Cœur\(s\) par socket|每个座的核数",
}
_MEMORY = re.compile(
    r"^[ \t]*(?:Mem|Speicher|内存)[ \t]*[:\uff1a][ \t]*(\d{1,12}(?:[.,]\d)?)(Mi|Gi|Ti)?(?=[ \t])", re.M
)
_UNITS = {"Mi": MiB, "Gi": GiB, "Ti": 1024 * GiB}
# `free` alone counts in KiB, with -m, -g and -b in other units, and names none of them. A number in this range counts
# KiB: as MiB it would be 8 TiB and more, as bytes less than 1 GiB.
_KIB_RANGE = range(8 * MiB, GiB)
_UNKNOWN_UNIT = "free does not name its unit here, and `free -h` does"
_MACHINES = {"x86_64": "AMD64", "aarch64": "ARM64"}
_MAX_SOCKETS = 16


def read(text: str) -> FileObservations:
    """Raises Misread."""
    wsl = _WSL.search(text)
    name = _NAME.search(text)
    resources: dict[str, Mapping[str, State]] = {}
    if wsl:
        resources = _wsl_resources(text, wsl)
    if name and (wsl or "Microsoft" in text or not _VM.search(text)):  # Hyper-V shows a VM the processor of its host
        resources["Processor"] = {"CPU0": {"name": Observation(name[1], Worth.ROUGH)}}
    if name and not wsl and not _VM.search(text):
        resources |= _machine_resources(text, name[1])
    if not resources:
        raise Misread("was printed by a VM or says too little: it tells nothing of the machine's Windows")
    return FileObservations(resources=resources)


def _wsl_resources(text: str, kernel: re.Match[str]) -> dict[str, Mapping[str, State]]:
    """A kernel of WSL 2 runs in a VM of Windows, which needs the feature and a hypervisor."""
    resources: dict[str, Mapping[str, State]] = {
        "Firmware": {"": {"hypervisor_present": Observation(True, Worth.ROUGH)}},
        "VirtualMachinePlatform": {"": {"feature": Observation("installed", Worth.ROUGH)}},
    }
    if (int(kernel["major"]), int(kernel["minor"])) >= _PACKAGED:
        resources["Wsl"] = {"": {"present": Observation(True)}}
    for machine, architecture in _MACHINES.items():
        if re.search(rf"\b{machine}\b", text):
            resources["OperatingSystem"] = {"": {"architecture": Observation(architecture, Worth.ROUGH)}}
    return resources


def _machine_resources(text: str, name: str) -> dict[str, Mapping[str, State]]:
    state: dict[str, Observation] = {"name": Observation(name, Worth.ROUGH)}
    if maker := _PROCESSOR_VENDOR.search(text):
        state["manufacturer"] = Observation(maker[1], Worth.ROUGH)
    cpus, sockets, cores = (_number(text, label) for label in _NUMBERS.values())
    if cores:
        state["cores"] = Observation(cores, Worth.ROUGH)
    if cpus and sockets and cpus % sockets == 0:
        state["threads"] = Observation(cpus // sockets, Worth.ROUGH)
    count = min(sockets or 1, _MAX_SOCKETS)
    resources: dict[str, Mapping[str, State]] = {"Processor": {f"CPU{n}": state for n in range(count)}}
    if memory := _MEMORY.search(text):
        number, unit = float(memory[1].replace(",", ".")), memory[2]
        known = unit or int(number) in _KIB_RANGE
        total = round(number * (_UNITS[unit] if unit else KiB)) if known else None
        resources["Memory"] = {"": {"total": observed(total, Unreported(_UNKNOWN_UNIT), Worth.ROUNDED)}}
    return resources


def _number(text: str, label: str) -> int | None:
    found = re.search(rf"^[ \t]*(?:{label})[ \t]*[:\uff1a][ \t]*(\d{{1,4}})[ \t\r]*$", text, re.MULTILINE)
    return int(found[1]) if found and int(found[1]) else None
