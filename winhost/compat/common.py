"""Questions that rows and judges ask of a host, a GPU or a VM, besides properties of resources (docs/conditions.md)."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from packaging.version import Version

from winhost.compat.target import driver_branch, wsl_version
from winhost.core.answers import NOT_THERE, MissingFact, RemoteFault, Unknown
from winhost.findings.condition import Reader, version_of
from winhost.hardware.host_gpus import (
    catalogue_entry,
    gpu_label,
    is_compute_gpu,
    may_drive_display,
    paravirtual_gpu,
    runs_cuda,
    sriov_gpu,
)
from winhost.hardware.processors import find_generation
from winhost.knowledge.versions import checked, revisions, windows_build, windows_builds
from winhost.model.facts import Instance
from winhost.paths.disks import PLAIN_BUSES, UNSUITABLE_BUSES
from winhost.resources.base import State
from winhost.resources.host import Gpu, HostFacts, property_reader
from winhost.resources.registry import RESOURCE_TYPES
from winhost.resources.windows.disks import NONE, BitLocker, KeyEscrow
from winhost.resources.windows.pci_device import pci_id
from winhost.resources.windows.power_plan import PowerPlan
from winhost.resources.windows.read_only import (
    Firmware,
    OsFamily,
    Vm,
    WslPolicy,
)
from winhost.resources.windows.vms import VmMemory, VmMmio, assigned_vm

# Windows build numbers in which something begins. A build dates a Windows; only its edition says which kind it is.
SERVER_2016 = 14393
WINDOWS_10_21H2 = 19044
SERVER_2022 = 20348

SERVERS = (OsFamily.SERVER, OsFamily.AZURE_LOCAL)

# How makers and models of virtual machines begin. Source: systemd, src/basic/virt.c, detect_vm_dmi_vendor.
HYPERVISORS = (
    *("kvm", "openstack", "kubevirt", "qemu", "vmware", "vmw", "innotek gmbh", "virtualbox", "xen", "bochs"),
    *("parallels", "bhyve", "hyper-v", "amazon ec2", "apple virtualization", "google compute engine"),
)
MODEL_OF_HYPER_V = "virtual machine"  # Microsoft makes computers, too: only the model tells
METAL = ".metal"  # instances of Amazon EC2 that are whole machines
Question = Callable[[HostFacts], str | None]  # what was observed; None where the finding does not apply


# Of whose machines it was reported that they forget or reorder what is to be started. By the beginning of the maker's
# name in firmware.
FORGETFUL = ("hp", "hewlett-packard", "lenovo", "shuttle")


# --- Questions -----------------------------------------------------------------------------------------------------


def sriov_refused(facts: HostFacts) -> str | None:
    """Get-VMHost reports IovSupport False; its IovSupportReasons name network cards as well as the chipset."""
    return None if facts.hyperv.iov_support else "; ".join(facts.hyperv.iov_reasons) or "no reason given"


def host_sleeps(facts: HostFacts) -> str | None:
    """The active power plan lets the host sleep or hibernate on AC power, and its endpoint goes with it."""
    for plan in facts.all(PowerPlan):
        waits = {"sleeps": plan.state.standby, "hibernates": plan.state.hibernate} if plan.state.active else {}
        after = [f"{what} after {seconds / 60:g} minutes" for what, seconds in waits.items() if seconds]
        if after:
            return f"on AC power, without use, the host {' and '.join(after)} (power plan {plan.state.name})"
    return None


def windows_unlisted(facts: HostFacts) -> str | None:
    """The build of Windows is not in the table: an Insider build, or one that is newer than it."""
    os = facts.os
    known = windows_build(os.build)
    kind = {OsFamily.SERVER: "server", OsFamily.AZURE_LOCAL: "azure_local"}.get(os.family, "client")
    if os.build < SERVER_2016 or (known and getattr(known, kind)):
        return None
    newer = os.build > windows_builds()[-1].build
    return (
        f"{os.named}, {checked(f'build {windows_builds()[-1].build}')}"
        if newer
        else f"{os.named}: not in the table of builds"
    )


def no_gpu(facts: HostFacts) -> str | None:
    """The host has no GPU: at most the display of a management controller or a hypervisor."""
    return None if gpus(facts) else f"{len(facts.gpus)} display device(s), none of them a GPU"


def no_cuda(facts: HostFacts) -> str | None:
    """Name the host's GPUs if none of them runs CUDA, with which winhost serves."""
    found = gpus(facts)
    return ", ".join(gpu.pci.state.name for gpu in found) if found and not any(map(runs_cuda, found)) else None


def configuration(vm: Vm) -> Version:
    """The VM's configuration version. Raises MissingFact if it is no version."""
    if found := version_of(vm.version):
        return found
    raise MissingFact("Vm.version", NOT_THERE)


# --- The machine ---------------------------------------------------------------------------------------------------


def is_x64(facts: HostFacts) -> bool:
    """Windows reports `64-bit` in its own language for x64, and `ARM` in front of it for Arm."""
    return "64" in facts.os.architecture and "arm" not in facts.os.architecture.casefold()


def is_virtual(firmware: Firmware) -> bool:
    """Tell whether manufacturer or model in firmware name a hypervisor. False proves nothing: firmware can be
    configured.
    """
    manufacturer, model = firmware.manufacturer.casefold(), firmware.model.casefold()
    if METAL in model:
        return False
    return model == MODEL_OF_HYPER_V or any(name.startswith(HYPERVISORS) for name in (manufacturer, model))


def gpus(facts: HostFacts) -> list[Gpu]:
    """The display devices that can compute: without those of management controllers and hypervisors."""
    return facts.cached(_gpus, _gpus, facts)


def _gpus(facts: HostFacts) -> list[Gpu]:
    return list(filter(is_compute_gpu, facts.gpus))


def made_by(firmware: Firmware) -> str:
    """Manufacturer and model, as in firmware."""
    return f"{firmware.manufacturer} {firmware.model}"


def forgetful_firmware(facts: HostFacts) -> str | None:
    """Machines of this maker were reported to forget or reorder what is to be started."""
    maker = facts.firmware.manufacturer.casefold()
    return made_by(facts.firmware) if maker.startswith(FORGETFUL) else None


NETWORKING_MODES = {
    0: "none",
    1: "NAT",
    3: "mirrored",
    4: "VirtioProxy",
}  # microsoft/WSL intune/WSL.admx, DefaultNetworkingMode
NAT = 1


def driven(facts: HostFacts) -> list[Gpu]:
    """NVIDIA's GPUs that its Windows driver runs."""
    return [gpu for gpu in gpus(facts) if runs_cuda(gpu) and gpu.pci.state.driver_model]


def windows_driver(facts: HostFacts) -> Version | None:
    """NVIDIA's number of the oldest driver of these GPUs; None where none reports it."""
    versions = (driver_branch(gpu.pci.state.driver_version) for gpu in driven(facts))
    return min(filter(None, versions), default=None)


def _fixed_mode(facts: HostFacts) -> str:
    """The networking mode that a policy sets for WSL."""
    number = facts.the(WslPolicy).default_networking
    return NETWORKING_MODES[NAT] if number is None else NETWORKING_MODES.get(number, str(number))


def _missing_updates(facts: HostFacts) -> tuple[str, ...]:
    """Names of what an update brought to this very build, and this Windows does not have."""
    return tuple(each.name for each in revisions() if each.lacks(facts.os.build, facts.os.revision))


_REACHED = {
    **dict.fromkeys(UNSUITABLE_BUSES, "by software"),
    **dict.fromkeys(PLAIN_BUSES, "plainly"),
    "raid": "by raid",
}


def reached(bus: str) -> str:
    """The way in which Linux reaches a disk on this bus; by RAID or software it may see other disks than Windows."""
    return _REACHED.get(bus.casefold(), "unknown")


def proof_of_key(facts: HostFacts, volume: Instance[BitLocker]) -> str | None:
    """The proof that the recovery key of a volume is kept elsewhere, and its protector."""
    escrow = facts.find(KeyEscrow, volume.key)
    return f"{escrow.proof} (protector {escrow.protector})" if escrow and escrow.proof != NONE else None


def memory_of_vm(facts: HostFacts, vm: Instance[Vm]) -> VmMemory:
    memory = facts.find(VmMemory, vm.key)
    if memory is None:
        gone = RemoteFault("ObjectNotFound", message=f"VM {vm.key['vm']} went away while it was read")
        raise MissingFact("VmMemory", Unknown(gone))
    return memory


OF_HOST: Mapping[str, Callable[[HostFacts], Any]] = {
    "on_server": lambda facts: facts.os.family in SERVERS,
    "wsl": wsl_version,
    "driver": windows_driver,
    "driven": lambda facts: len(driven(facts)),
    "fixed_mode": _fixed_mode,
    "missing_updates": _missing_updates,
    "x64": is_x64,
    "virtual": lambda facts: is_virtual(facts.firmware),
}
OF_GPU: Mapping[str, Callable[[HostFacts, Gpu], Any]] = {
    "gpu": lambda facts, gpu: gpu.pci.state,
    "listed": lambda facts, gpu: catalogue_entry(gpu),
    "device": lambda facts, gpu: gpu.pci.key["device"],
    "id": lambda facts, gpu: pci_id(gpu.pci.key["device"]),
    "companions": lambda facts, gpu: tuple(function.state.kind for function in gpu.companions),
    "label": lambda facts, gpu: gpu_label(gpu),
    "serves": lambda facts, gpu: is_compute_gpu(gpu),
    "cuda": lambda facts, gpu: runs_cuda(gpu),
    "shows": lambda facts, gpu: may_drive_display(gpu),
    "ladder": lambda facts, gpu: facts.assignment(gpu.pci),
    "owner": lambda facts, gpu: assigned_vm(facts.assignment(gpu.pci)),
    "parts": sriov_gpu,
    "paravirtual": paravirtual_gpu,
}
OF_VM: Mapping[str, Callable[[HostFacts, Instance[Vm]], Any]] = {
    "vm": lambda facts, vm: vm.state,
    "memory": memory_of_vm,
    "windows": lambda facts, vm: facts.find(VmMmio, vm.key),
    "configuration": lambda facts, vm: configuration(vm.state),
}
OF_ONE: Mapping[str, Mapping[str, Callable[[HostFacts, Instance[Any]], Any]]] = {
    "Disk": {
        "starts": lambda facts, disk: disk.state.system or disk.state.boot,  # Windows, from it
        "reached": lambda facts, disk: reached(disk.state.bus),
    },
    "Processor": {"listed": lambda facts, processor: find_generation(processor.state.name)},
    "BitLocker": {"proof": lambda facts, volume: proof_of_key(facts, volume)},
}
_ABOUT: Mapping[str, Mapping[str, Callable[[HostFacts, Any], Any]]] = {"gpu": OF_GPU, "vm": OF_VM, "host": {}}


def _reading(each: str, question: str) -> Reader:
    """The reader of a question about facts, and about one GPU or VM."""
    name, _, attribute = question.partition(".")
    if name in RESOURCE_TYPES:
        return property_reader(question)
    if name == "gpus":
        of_each = READING["gpu"](attribute)
        return lambda facts, _: tuple(answer for gpu in gpus(facts) for answer in of_each(facts, gpu))
    about = _ABOUT[each].get(name)
    ask = about or (lambda facts, _: OF_HOST[name](facts))

    def answered(facts: HostFacts, subject: Any) -> tuple[Any, ...]:
        answer = ask(facts, subject)
        return (getattr(answer, attribute) if attribute and answer is not None else answer,)

    return answered


READING: Mapping[str, Callable[[str], Reader]] = {each: partial(_reading, each) for each in _ABOUT}
"""The readers of the questions of a condition, by what its row is about."""


def reading_one(question: str) -> Reader:
    return lambda one: (one[question],)


class OneOf:
    """Answers of one of several: by its key, what follows from it (`more`), else by its properties."""

    def __init__(self, state: Any, key: Mapping[str, Any], more: Mapping[str, Callable[..., Any]], *about: Any) -> None:
        self._state, self._key, self._more, self._about = state, key, more, about

    def __getitem__(self, question: str) -> Any:
        name, _, attribute = question.partition(".")
        if name in self._key:
            return self._key[name]
        answer = self._more[name](*self._about) if name in self._more else getattr(self._state, name)
        return getattr(answer, attribute, None) if attribute else answer


def instances(facts: HostFacts, state: type[State]) -> list[OneOf]:
    """The instances of a resource, of which rows choose. Raises MissingFact."""
    more = OF_ONE.get(state.resource_type.name, {})
    return [OneOf(each.state, each.key, more, facts, each) for each in facts.all(state)]


class Asked:
    """Answers to the sentence of a row about facts, with the GPU or VM that is its subject."""

    def __init__(self, facts: HostFacts, each: str, subject: Any = None) -> None:
        self.facts, self._each, self.subject = facts, each, subject

    def __getitem__(self, name: str) -> Any:
        """Answer a question in a sentence."""
        if name in _ABOUT[self._each]:
            return _ABOUT[self._each][name](self.facts, self.subject)
        return OF_HOST[name](self.facts) if name in OF_HOST else self.facts[name]


def asked_gpus(facts: HostFacts) -> list[Asked]:
    """The GPUs of a host, of which rows choose. Raises MissingFact."""
    return [Asked(facts, "gpu", gpu) for gpu in gpus(facts)]


def reading_asked_gpu(question: str) -> Reader:
    read = READING["gpu"](question)
    return lambda asked: read(asked.facts, asked.subject)
