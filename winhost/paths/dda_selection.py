"""Choose which GPUs go to which VM: those that the user names, by name, location path or GUID."""

from collections.abc import Mapping

from winhost.core.dataclass import dataclass
from winhost.model.errors import NotOnHost, UsageError, listed
from winhost.model.facts import Instance
from winhost.resources.host import Gpu, HostFacts
from winhost.resources.windows.read_only import Vm


@dataclass(frozen=True)
class Selection:
    """The GPUs that go, and the VM that gets them; None where no VM was chosen."""

    gpus: tuple[Gpu, ...]
    vm: Instance[Vm] | None = None


class VmNotNamed(UsageError):
    """The path needs a VM and the user named none. verdicts: on each VM, where they were judged."""

    def __init__(self, host: str, known: Mapping[str, str], verdicts: Mapping[str, str] | None = None) -> None:
        judged = {vm: f" ({verdict})" for vm, verdict in (verdicts or {}).items()}
        vms = listed({vm: name + judged.get(vm, "") for vm, name in known.items()})
        super().__init__(
            "WhichVm",
            what=f"{host} has {len(known)} VMs: choose the one that gets the GPUs",
            hint=f"Add --vm with a name or id:\n{vms}"
            if known
            else "Have one made with --new-vm NAME, or create it on the host (generation 2), then plan again.",
            host=host,
        )
        self.known = known


def choose_vm(facts: HostFacts, asked: str | None) -> Instance[Vm]:
    """Choose the VM by GUID or exact name, or the only one if none is named. Raises NotOnHost, VmNotNamed,
    MissingFact.
    """
    known = {vm.key["vm"]: vm.state.name for vm in facts.vms}
    if asked is None:
        if len(known) != 1:
            raise VmNotNamed(facts.host, known)
        return facts.vms[0]
    found = [vm for vm in facts.vms if vm.key["vm"] == asked.strip("{}").lower()]
    found = found or [vm for vm in facts.vms if vm.state.name == asked]
    if len(found) != 1:
        raise NotOnHost(facts.host, "VM", asked, known, several=bool(found))
    return found[0]


def choose_gpus(facts: HostFacts, asked: tuple[str, ...]) -> tuple[Gpu, ...]:
    """Choose GPUs by location path or exact name. Raises NotOnHost."""
    known = {gpu.location: gpu.pci.state.name for gpu in facts.gpus}
    chosen: dict[str, Gpu] = {}
    for word in asked:
        found = [c for c in facts.gpus if word in (c.location, c.pci.key["location"])]
        found = found or [c for c in facts.gpus if c.pci.state.name.casefold() == word.casefold()]
        if len(found) != 1:
            raise NotOnHost(facts.host, "GPU", word, known, several=bool(found))
        chosen[found[0].location] = found[0]
    return tuple(chosen[location] for location in sorted(chosen))
