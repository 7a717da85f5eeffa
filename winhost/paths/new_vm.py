"""A VM of winhost's own for Discrete Device Assignment: what is wanted of it, and what of the host forbids it."""

from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from winhost.core.answers import Json, MissingFact, Unavailable
from winhost.model.facts import Instance
from winhost.model.refusal import Refusal
from winhost.model.units import Bytes, GiB, MiB, about, parse_size, size
from winhost.paths.setting_values import matching, no_device
from winhost.paths.wsl2_settings import File
from winhost.resources.host import HostFacts
from winhost.resources.windows.own_vm.resource import NAME, OwnVm
from winhost.resources.windows.processor.resource import Processor
from winhost.resources.windows.vm.resource import Vm
from winhost.resources.windows.vm_disk.resource import VmDisk
from winhost.resources.windows.vm_switch.resource import VmSwitch

_HOST_RESERVE = 2 * GiB  # as a rule of the verdict on a VM has it
_LEAST_MEMORY, _LEAST_DISK = GiB, 4 * GiB


def _whole_size(step: Bytes, least: Bytes) -> AfterValidator:
    def check(text: str) -> str:
        found = parse_size(text)
        if found % step or found < least:
            raise ValueError(f"should be {size(least)} at least, in steps of {size(step)}")
        return text

    return AfterValidator(check)


class NewVm(BaseModel):
    """A VM that winhost makes, and that gets the GPUs."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    name: Annotated[
        str, matching(NAME, "1 to 63 lower-case letters, digits and dashes between them"), AfterValidator(no_device)
    ]
    """Of the VM and of the folder of its disk. No VM may have it yet."""
    cpus: Annotated[int, Field(strict=True, ge=1, le=2048)]
    """Virtual processors."""
    memory: Annotated[str, _whole_size(2 * MiB, _LEAST_MEMORY)]
    """Static: all of it is pinned while the VM runs."""
    disk: Annotated[str, _whole_size(MiB, _LEAST_DISK)]
    """How large the guest sees its disk. The file grows up to that, and the volume must have room for all of it."""
    vhdx: File
    """What the disk is made of: a VHDX with a Linux that starts on a Generation 2 VM. It is copied, never changed."""
    switch: str | None = None
    """The virtual switch by its name; left out, the only external one."""
    vlan: Annotated[int, Field(strict=True, ge=1, le=4094)] | None = None
    secure_boot: bool = True
    """With the template for Linux. winhost never switches it off by itself."""

    @property
    def key(self) -> Mapping[str, str]:
        """Of its resources."""
        return {"name": self.name}


def made_vm(facts: HostFacts, asked: NewVm) -> Instance[Vm] | None:
    """The VM, once winhost has made it. Raises MissingFact."""
    own = facts.of(OwnVm, asked.key)
    if own is None or not own.made or not own.ours:
        return None
    return next((vm for vm in facts.vms if vm.key["vm"] == own.id), None)


class ComingVm(dict[str, str]):
    """What is known of a VM before it is made. Reading anything else raises MissingFact."""

    def __missing__(self, part: str) -> str:
        raise MissingFact(f"Vm.{part}", Unavailable(OwnVm.resource_type.name))


def the_made_vm(facts: HostFacts, asked: NewVm) -> Instance[Vm]:
    """Raises MissingFact until it is made."""
    found = made_vm(facts, asked)
    if found is None:
        raise MissingFact("Vm", Unavailable(OwnVm.resource_type.name))
    return found


def desired_vm(facts: HostFacts, asked: NewVm) -> Mapping[str, Json]:
    """What its resources shall be. Raises Refusal, MissingFact."""
    for refusal in _refusals(facts, asked):
        raise refusal
    return {
        "name": asked.name,
        "image": asked.vhdx.sha256,
        "size": parse_size(asked.disk),
        "cpus": asked.cpus,
        "memory": parse_size(asked.memory),
        "switch": _switch(facts, asked.switch).key["switch"],
        "vlan": asked.vlan,
        "mac": _mac(facts, asked.name),
        "secure_boot": asked.secure_boot,
    }


def staged(asked: NewVm) -> Mapping[str, str]:
    """The file that its disk is made of."""
    file = asked.vhdx
    return {"sha256": file.sha256, "name": file.name, "source": file.source, "title": f"Disk image {file.name}"}


def _mac(facts: HostFacts, name: str) -> str:
    """Its own on this host and on others, and always the same: locally administered, so no maker's."""
    return "02" + sha256(f"{facts.os.machine_id} {name}".encode()).hexdigest()[:10].upper()


def _switch(facts: HostFacts, asked: str | None) -> Instance[VmSwitch]:
    """The named one; else the only external one. None is made: that could cut the way to the host."""
    every = facts.all(VmSwitch)
    names = ", ".join(each.state.name for each in every) or "none"
    if asked is not None:
        found = [each for each in every if each.state.name == asked]
        if len(found) != 1:
            raise Refusal(
                "vm.no-switch",
                f"{len(found) or 'No'} virtual switches of the host are called {asked}; there are: {names}.",
                "Name one of them with --switch, or create it first.",
            )
        return found[0]
    fitting = [each for each in every if each.state.kind == "external"]
    if len(fitting) > 1:
        raise Refusal(
            "vm.which-switch",
            f"The host has {len(fitting)} external switches: {', '.join(each.state.name for each in fitting)}.",
            "Name one of them with --switch.",
        )
    if not fitting:
        raise Refusal(
            "vm.no-external-switch",
            f"The host has no external virtual switch; its switches: {names}.",
            "Create one by hand (New-VMSwitch -NetAdapterName NAME -AllowManagementOS $true interrupts the network of "
            "that adapter), or name an internal one with --switch, whose network you provide.",
        )
    return fitting[0]


def _refusals(facts: HostFacts, asked: NewVm) -> Iterator[Refusal]:
    own = facts.of(OwnVm, asked.key)
    others = [vm for vm in facts.vms if own is None or vm.key["vm"] != own.id]
    if any(vm.state.name.casefold() == asked.name for vm in others):
        yield Refusal(
            "vm.name-taken",
            f"The host has a VM {asked.name} already, which winhost did not make.",
            f"Choose another name, or give that VM the GPUs: --vm {asked.name}",
        )
    disk = facts.of(VmDisk, asked.key)
    if disk is not None and disk.made and disk.image != asked.vhdx.sha256:
        yield Refusal(
            "vm.another-disk",
            f"winhost made a disk for {asked.name} already, of another image.",
            "Roll back the run that made it, or choose another name.",
        )
    if parse_size(asked.memory) > facts.memory.total - _HOST_RESERVE:
        yield Refusal(
            "vm.too-much-memory",
            f"{asked.memory} for the VM leave the host less than {size(_HOST_RESERVE)} of {about(facts.memory.total)}.",
            "Give it less with --memory.",
        )
    threads = sum(each.state.threads for each in facts.all(Processor))
    if asked.cpus > threads:
        yield Refusal(
            "vm.too-many-processors",
            f"The host has {threads} logical processors, and {asked.cpus} are wanted for the VM.",
            "Give it fewer with --cpus.",
        )
