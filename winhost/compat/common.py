"""The questions of conditions about a host, a GPU or a VM, besides properties of resources (docs/conditions.md), and
the judges that several paths share.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from packaging.version import Version

from winhost.compat.target import driver_branch, wsl_version
from winhost.core.answers import NOT_READ, MissingFact, RemoteFault, Unknown
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
from winhost.knowledge.versions import newer_than_checked, revisions, windows_build, windows_builds
from winhost.model.facts import Instance
from winhost.paths.disks import PLAIN_BUSES, UNSUITABLE_BUSES
from winhost.resources.base import State
from winhost.resources.host import Gpu, HostFacts, property_reader
from winhost.resources.registry import RESOURCE_TYPES
from winhost.resources.windows.disks import NONE, BitLocker, KeyEscrow
from winhost.resources.windows.pci_device import pci_id
from winhost.resources.windows.power_plan import PowerPlan
from winhost.resources.windows.read_only import Firmware, OsFamily, Vm, WslPolicy
from winhost.resources.windows.vms import VmMemory, VmMmio, assigned_vm

# The first build of each Windows that rules mention. Whether a build is a client or a server is only told by the
# edition.
SERVER_2016 = 14393
WINDOWS_10_21H2 = 19044
SERVER_2022 = 20348

SERVERS = (OsFamily.SERVER, OsFamily.AZURE_LOCAL)

# Prefixes of the manufacturer or model of virtual machines. Source: systemd, src/basic/virt.c, detect_vm_dmi_vendor.
HYPERVISORS = (
    *("kvm", "openstack", "kubevirt", "qemu", "vmware", "vmw", "innotek gmbh", "virtualbox", "xen", "bochs"),
    *("parallels", "bhyve", "hyper-v", "amazon ec2", "apple virtualization", "google compute engine"),
)
MODEL_OF_HYPER_V = "virtual machine"  # Microsoft also makes computers, so its name as the manufacturer is not enough
EC2_METAL = ".metal"  # instances of Amazon EC2 that are whole machines
Question = Callable[[HostFacts], str | None]  # what was observed; None where the finding does not apply


# Manufacturers (prefixes, as in firmware) whose machines were reported to forget or reorder boot entries.
FORGETFUL_MAKERS = ("hp", "hewlett-packard", "lenovo", "shuttle")


# --- Questions -----------------------------------------------------------------------------------------------------


def sriov_refused(facts: HostFacts) -> str | None:
    """Get-VMHost reports IovSupport False. IovSupportReasons may be about network cards as well as the chipset."""
    return None if facts.hyperv.iov_support else "; ".join(facts.hyperv.iov_reasons) or "no reason given"


def host_sleeps(facts: HostFacts) -> str | None:
    """The active power plan lets the host sleep or hibernate on AC power, which takes its endpoint offline."""
    for plan in facts.all(PowerPlan):
        waits = {"sleeps": plan.state.standby, "hibernates": plan.state.hibernate} if plan.state.active else {}
        after = [f"{what} after {seconds / 60:g} minutes" for what, seconds in waits.items() if seconds]
        if after:
            return f"on AC power, without use, the host {' and '.join(after)} (power plan {plan.state.name})"
    return None


def unknown_windows_build(facts: HostFacts) -> str | None:
    """The build of Windows is not in the table: it is an Insider build, or newer than the table."""
    os = facts.os
    known = windows_build(os.build)
    kind = {OsFamily.SERVER: "server", OsFamily.AZURE_LOCAL: "azure_local"}.get(os.family, "client")
    if os.build < SERVER_2016 or (known and getattr(known, kind)):
        return None
    newer = os.build > windows_builds()[-1].build
    return (
        f"{os.named}, {newer_than_checked(f'build {windows_builds()[-1].build}')}"
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
    """Return the VM's configuration version. Raises MissingFact if it is no version."""
    if version := version_of(vm.version):
        return version
    raise MissingFact("Vm.version", NOT_READ)


# --- The machine ---------------------------------------------------------------------------------------------------


def is_x64(facts: HostFacts) -> bool:
    """Tell whether Windows is for x64: it reports `64-bit` in its own language, and `ARM` in front of it for Arm."""
    return "64" in facts.os.architecture and "arm" not in facts.os.architecture.casefold()


def is_virtual(firmware: Firmware) -> bool:
    """Tell whether manufacturer or model in firmware name a hypervisor. False proves nothing: firmware can be
    configured.
    """
    manufacturer, model = firmware.manufacturer.casefold(), firmware.model.casefold()
    if EC2_METAL in model:
        return False
    return model == MODEL_OF_HYPER_V or any(name.startswith(HYPERVISORS) for name in (manufacturer, model))


def gpus(facts: HostFacts) -> list[Gpu]:
    """Return the display devices that can compute, without those of management controllers and hypervisors."""
    return facts.cached(_gpus, _gpus, facts)


def _gpus(facts: HostFacts) -> list[Gpu]:
    return list(filter(is_compute_gpu, facts.gpus))


def machine_name(firmware: Firmware) -> str:
    """Return manufacturer and model from the firmware."""
    return f"{firmware.manufacturer} {firmware.model}"


def forgetful_firmware(facts: HostFacts) -> str | None:
    """Machines of this manufacturer were reported to forget or reorder boot entries."""
    maker = facts.firmware.manufacturer.casefold()
    return machine_name(facts.firmware) if maker.startswith(FORGETFUL_MAKERS) else None


NETWORKING_MODES = {
    0: "none",
    1: "NAT",
    3: "mirrored",
    4: "VirtioProxy",
}  # microsoft/WSL intune/WSL.admx, DefaultNetworkingMode
NAT = 1


def gpus_with_driver(facts: HostFacts) -> list[Gpu]:
    """Return NVIDIA's GPUs that its Windows driver runs."""
    return [gpu for gpu in gpus(facts) if runs_cuda(gpu) and gpu.pci.state.driver_model]


def windows_driver(facts: HostFacts) -> Version | None:
    """Return the oldest driver of the GPUs that NVIDIA's driver runs; None where none reports its version."""
    versions = (driver_branch(gpu.pci.state.driver_version) for gpu in gpus_with_driver(facts))
    return min(filter(None, versions), default=None)


def _policy_networking_mode(facts: HostFacts) -> str:
    """Return the networking mode that a policy sets for WSL."""
    number = facts.the(WslPolicy).default_networking
    return NETWORKING_MODES[NAT] if number is None else NETWORKING_MODES.get(number, str(number))


def _missing_updates(facts: HostFacts) -> tuple[str, ...]:
    """Return the names of updates to this build of Windows that the host does not have."""
    return tuple(each.name for each in revisions() if each.is_missing_from(facts.os.build, facts.os.revision))


_DISK_ACCESS = {
    **dict.fromkeys(UNSUITABLE_BUSES, "by software"),
    **dict.fromkeys(PLAIN_BUSES, "plainly"),
    "raid": "by raid",
}


def disk_access(bus: str) -> str:
    """Return how Linux accesses a disk on this bus. By RAID or by software it may see other disks than Windows."""
    return _DISK_ACCESS.get(bus.casefold(), "unknown")


def recovery_key_proof(facts: HostFacts, volume: Instance[BitLocker]) -> str | None:
    """Return the proof that a volume's recovery key is stored elsewhere, and the key's protector; None without
    proof.
    """
    escrow = facts.find(KeyEscrow, volume.key)
    return f"{escrow.proof} (protector {escrow.protector})" if escrow and escrow.proof != NONE else None


def memory_of_vm(facts: HostFacts, vm: Instance[Vm]) -> VmMemory:
    memory = facts.find(VmMemory, vm.key)
    if memory is None:
        fault = RemoteFault("ObjectNotFound", message=f"VM {vm.key['vm']} went away while it was read")
        raise MissingFact("VmMemory", Unknown(fault))
    return memory


HOST_QUESTIONS: Mapping[str, Callable[[HostFacts], Any]] = {
    "on_server": lambda facts: facts.os.family in SERVERS,
    "wsl": wsl_version,
    "driver": windows_driver,
    "driven": lambda facts: len(gpus_with_driver(facts)),
    "fixed_mode": _policy_networking_mode,
    "missing_updates": _missing_updates,
    "x64": is_x64,
    "virtual": lambda facts: is_virtual(facts.firmware),
}
GPU_QUESTIONS: Mapping[str, Callable[[HostFacts, Gpu], Any]] = {
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
VM_QUESTIONS: Mapping[str, Callable[[HostFacts, Instance[Vm]], Any]] = {
    "vm": lambda facts, vm: vm.state,
    "memory": memory_of_vm,
    "windows": lambda facts, vm: facts.find(VmMmio, vm.key),
    "configuration": lambda facts, vm: configuration(vm.state),
}
INSTANCE_QUESTIONS: Mapping[str, Mapping[str, Callable[[HostFacts, Instance[Any]], Any]]] = {
    "Disk": {
        "starts": lambda facts, disk: disk.state.system or disk.state.boot,  # Windows, from it
        "reached": lambda facts, disk: disk_access(disk.state.bus),
    },
    "Processor": {"listed": lambda facts, processor: find_generation(processor.state.name)},
    "BitLocker": {"proof": lambda facts, volume: recovery_key_proof(facts, volume)},
}
_SUBJECT_QUESTIONS: Mapping[str, Mapping[str, Callable[[HostFacts, Any], Any]]] = {
    "gpu": GPU_QUESTIONS,
    "vm": VM_QUESTIONS,
    "host": {},
}


def _make_reader(subject_kind: str, question: str) -> Reader:
    """Return the reader of a question about facts, and about one GPU or VM."""
    name, _, attribute = question.partition(".")
    if name in RESOURCE_TYPES:
        return property_reader(question)
    if name == "gpus":
        read_gpu = READERS["gpu"](attribute)
        return lambda facts, _: tuple(answer for gpu in gpus(facts) for answer in read_gpu(facts, gpu))
    ask = _SUBJECT_QUESTIONS[subject_kind].get(name) or (lambda facts, _: HOST_QUESTIONS[name](facts))

    def read(facts: HostFacts, subject: Any) -> tuple[Any, ...]:
        answer = ask(facts, subject)
        return (getattr(answer, attribute) if attribute and answer is not None else answer,)

    return read


READERS: Mapping[str, Callable[[str], Reader]] = {kind: partial(_make_reader, kind) for kind in _SUBJECT_QUESTIONS}
"""Return the reader of a question, by the subject of its row."""


def instance_reader(question: str) -> Reader:
    """Return the reader of a question about one of several instances."""
    return lambda answers: (answers[question],)


class InstanceAnswers:
    """Answers of one instance: from its key, from functions (`derived`, called with `arguments`), else its
    properties.
    """

    def __init__(
        self, state: Any, key: Mapping[str, Any], derived: Mapping[str, Callable[..., Any]], *arguments: Any
    ) -> None:
        self._state, self._key, self._derived, self._arguments = state, key, derived, arguments

    def __getitem__(self, question: str) -> Any:
        name, _, attribute = question.partition(".")
        if name in self._key:
            return self._key[name]
        answer = self._derived[name](*self._arguments) if name in self._derived else getattr(self._state, name)
        return getattr(answer, attribute, None) if attribute else answer


def instances(facts: HostFacts, state: type[State]) -> list[InstanceAnswers]:
    """Return the instances of a resource, from which rows choose. Raises MissingFact."""
    derived = INSTANCE_QUESTIONS.get(state.resource_type.name, {})
    return [InstanceAnswers(each.state, each.key, derived, facts, each) for each in facts.all(state)]


class SubjectAnswers:
    """Answers for the sentence of a row, from the facts and the GPU or VM that is its subject."""

    def __init__(self, facts: HostFacts, subject_kind: str, subject: Any = None) -> None:
        self.facts, self._subject_kind, self.subject = facts, subject_kind, subject

    def __getitem__(self, name: str) -> Any:
        """Answer a question in a sentence."""
        if name in _SUBJECT_QUESTIONS[self._subject_kind]:
            return _SUBJECT_QUESTIONS[self._subject_kind][name](self.facts, self.subject)
        return HOST_QUESTIONS[name](self.facts) if name in HOST_QUESTIONS else self.facts[name]


def gpu_answers(facts: HostFacts) -> list[SubjectAnswers]:
    """Return the GPUs of a host, from which rows choose. Raises MissingFact."""
    return [SubjectAnswers(facts, "gpu", gpu) for gpu in gpus(facts)]


def gpu_answers_reader(question: str) -> Reader:
    read = READERS["gpu"](question)
    return lambda answers: read(answers.facts, answers.subject)
