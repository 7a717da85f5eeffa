"""What winhost keeps on a simulated host of the VMs that it makes there, and how they show in the facts."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from winhost.core.answers import Json, Record
from winhost.lab.physics.parts import Part
from winhost.lab.physics.virtual_machine import VirtualMachine
from winhost.lab.physics.windows_errors import CmdletError, not_ours, wrong_place
from winhost.resources.windows.own_vm import NO_VM
from winhost.resources.windows.vm_disk import NO_DISK
from winhost.resources.windows.vm_seed import ATTACHED, NO_SEED, RETIRED

if TYPE_CHECKING:
    from winhost.lab.physics.simulated_machine import Machine

LINUX_TEMPLATE = "MicrosoftUEFICertificateAuthority"
Kept = dict[str, Any]


class OwnVms(Part):
    """Of one host. Records are in the registry, under `vm NAME`, `disk NAME` and `seed NAME`."""

    def __init__(self, host: "Machine") -> None:
        super().__init__(host)
        for path in host.lab.new_vms.taken:
            host.files.write(path, b"somebody's")

    def records(self) -> Mapping[str, Callable[[], Iterator[Record]]]:
        """The calls that list the instances."""
        return {"VmDisk": self._disks, "OwnVm": self._vms, "VmSeed": self._seeds}

    # ---- records

    def read(self, kind: str, name: str) -> Kept | None:
        """Of `vm`, `disk` or `seed`, or None where there is none."""
        text = self.host.software.record.get(f"{kind} {name}")
        return None if text is None else json.loads(text)

    def write(self, kind: str, name: str, record: Kept | None) -> None:
        """None takes it away."""
        self.host.software.write_registry(f"{kind} {name}", None if record is None else json.dumps(record))

    def _all(self, kind: str) -> Iterator[tuple[str, Kept]]:
        for entry in sorted(self.host.software.record):
            if match := re.fullmatch(rf"{kind} ([a-z0-9-]{{1,63}})", entry):
                yield match[1], self.read(kind, match[1]) or {}

    # ---- disks

    @property
    def store(self) -> str:
        """The folder of all that winhost makes."""
        return f"{self.host.lab.new_vms.store}\\winhost"

    def user(self, path: str) -> str | None:
        """The VM that a disk is attached to."""
        users = (vm.guid for vm in self.host.vms.values() if path.casefold() in map(str.casefold, vm.disks))
        return next(users, None)

    def _disks(self) -> Iterator[Record]:
        for name, record in self._all("disk"):
            state: dict[str, Json] = {**NO_DISK, "made": None, "path": record["path"]}
            if record["complete"] and self.host.files.read(record["path"]) is not None:
                size = self._size(record["path"])
                state |= {"made": True, "image": record["image"], "size": size, "vm": self.user(record["path"])}
            yield Record(state, {"name": name})

    def _size(self, path: str) -> Json:
        try:
            return self.host.virtual_disk(path, "Get-VHD").size
        except CmdletError as error:
            return {"unknown": error.as_json()}

    # ---- VMs

    def made(self, name: str, record: Kept) -> VirtualMachine | None:
        """By the id in the record; where that is not noted, by a folder where nobody else makes any."""
        if record["id"] is not None:
            return self.host.vms.get(record["id"])
        folder = f"{self.store}\\{name}".casefold()
        begun = (vm for vm in self.host.vms.values() if vm.name.casefold() == name and vm.path.casefold() == folder)
        return next(begun, None)

    def of_ours(self, name: str, record: Kept | None) -> VirtualMachine:
        """Raises CmdletError where winhost made none, or it has lost its mark."""
        vm = None if record is None else self.made(name, record)
        if vm is None or record is None:
            raise wrong_place(f"winhost made no VM {name}.")
        if not is_marked(vm, record):
            lost = f"The notes of the VM {name} no longer have the mark of winhost, which leaves it alone."
            raise not_ours(lost)
        return vm

    def _vms(self) -> Iterator[Record]:
        for name, record in self._all("vm"):
            state: dict[str, Json] = {**NO_VM, "made": None}
            if vm := self.made(name, record):
                state |= {"id": vm.guid, "ours": is_marked(vm, record)}
                state |= {"made": True, **_settings(vm)} if state["ours"] and record["complete"] else {}
            yield Record(state, {"name": name})

    # ---- seeds

    def seeded(self, name: str) -> VirtualMachine | None:
        """The VM that a seed is for."""
        record = self.read("vm", name)
        return None if record is None else self.made(name, record)

    def _seeds(self) -> Iterator[Record]:
        for name, record in self._all("seed"):
            state: dict[str, Json] = {**NO_SEED, **{n: record[n] for n in ("user", "address", "template", "host_keys")}}
            vm = self.seeded(name)
            state["stage"] = self._stage(record, vm)
            if vm is not None:
                seen = [address for address, mac in self.host.neighbours() if mac.replace("-", "") == vm.mac]
                state |= {"vm": vm.guid, "neighbours": seen}
            yield Record(state, {"name": name})

    def _stage(self, record: Kept, vm: VirtualMachine | None) -> str | None:
        there = self.host.files.read(record["path"]) is not None
        inserted = vm is not None and record["path"] in vm.dvds
        if record["retired"] and not there and not inserted:
            return RETIRED
        return ATTACHED if record["complete"] and not record["retired"] and there and inserted else None


def is_marked(vm: VirtualMachine, record: Kept) -> bool:
    """Until the mark is noted, the folder alone says whose it is."""
    return record["id"] is None or not record["marked"] or record["token"] in vm.notes


def boots_linux(vm: VirtualMachine) -> bool:
    """Secure Boot is on, with the template for Linux."""
    return vm.traits["secure_boot"] is True and vm.traits["secure_boot_template"] == LINUX_TEMPLATE


def _settings(vm: VirtualMachine) -> dict[str, Json]:
    return {
        "cpus": vm.cpus,
        "memory": vm.startup,
        "switch": vm.switch,
        "vlan": vm.vlan,
        "mac": vm.mac,
        "secure_boot": boots_linux(vm),
    }
