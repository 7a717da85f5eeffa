"""The VM that `winhost up` makes where GPUs go to a VM, sized by its host and by what is served in it."""

from collections.abc import Sequence

from winhost.cli.planned_stack import PlannedStack
from winhost.core.answers import MissingFact
from winhost.model.path import path_of
from winhost.model.units import GiB
from winhost.resources.host import HostFacts
from winhost.resources.windows.read_only import Processor

NAME = "winhost"
_LEAST_MEMORY, _ENOUGH_MEMORY = 8 * GiB, 48 * GiB
_SYSTEM_DISK = 40 * GiB  # Ubuntu, the driver and Docker


def new_vm_settings(facts: HostFacts, path: str, joining: PlannedStack, said: Sequence[str]) -> tuple[str, ...]:
    """Those of the new VM that the user did not name. Only what this host has free goes to it."""
    if path_of(path) != "dda":
        return ()
    named = {setting.partition("=")[0] for setting in said}
    chosen = {
        "new_vm.name": _name(facts),
        "new_vm.cpus": str(_cpus(facts)),
        "new_vm.memory": f"{_memory(facts) // GiB}GiB",
        "new_vm.disk": f"{_disk(joining) // GiB}GiB",
        "new_vm.guest.user": "winhost",
    }
    return tuple(f"{name}={value}" for name, value in chosen.items() if name not in named)


def _name(facts: HostFacts) -> str:
    try:
        taken = {str(vm.state.name).lower() for vm in facts.vms}
    except MissingFact:  # without the Hyper-V role there are none
        taken = set()
    return next(name for name in (NAME, *(f"{NAME}-{number}" for number in range(2, 100))) if name not in taken)


def _cpus(facts: HostFacts) -> int:
    """Half of the threads; the host keeps the others."""
    try:
        threads = sum(each.state.threads for each in facts.all(Processor))
    except MissingFact:
        threads = 8
    return max(2, min(threads // 2, 64))


def _memory(facts: HostFacts) -> int:
    """Half of what is free at most: VMs that start by themselves need theirs. Weights go to the GPUs file by file."""
    return max(_LEAST_MEMORY, min(_ENOUGH_MEMORY, facts.memory.free // 2 // GiB * GiB))


def _disk(joining: PlannedStack) -> int:
    """The models, the image unpacked at three times what is sent, and the system."""
    parts = joining.parts
    models = sum(int(line.split(" ")[1]) for files in parts.files.values() for line in files["files"])
    image = 0 if parts.own_program else 3 * (parts.image.bytes or 10 * GiB)
    return -(-(_SYSTEM_DISK + models * 5 // 4 + image) // GiB) * GiB
