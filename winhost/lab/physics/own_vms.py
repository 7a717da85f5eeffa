"""The records of the VMs that winhost makes on a simulated host, and their view in the facts."""

import gzip
import struct
from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any
from uuid import UUID, uuid4

from winhost.core.answers import Json, Record
from winhost.images.seed import filled
from winhost.lab.physics.parts import Change, Host, ManagedKind, Part, SetCall, StoredRecord
from winhost.lab.physics.virtual_machine import VirtualMachine
from winhost.lab.physics.vm_making import LINUX_TEMPLATE, TEMPLATES
from winhost.lab.physics.windows_errors import not_owned_error, refusal, refuse
from winhost.model.units import GiB
from winhost.resources.windows.vms import ATTACHED, NO_DISK, NO_SEED, NO_VM, NONE, RETIRED

_MADE_WITH = ("user", "address", "template")
_LEFT = 4 * GiB
_FIELDS = {"cpus": "cpus", "memory": "startup", "mac": "mac", "vlan": "vlan", "switch": "switch"}
_FIXED: Mapping[str, Any] = {
    "checkpoint_type": "disabled",
    "automatic_checkpoints": False,
    "stop_action": "turn-off",
    "start_action": "start-if-running",
    "start_delay": 60,
}


class OwnVms(Part):
    """The VMs that winhost made on one host. Records are in the registry, under `vm NAME`, `disk NAME` and
    `seed NAME`.
    """

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        for path in host.lab.new_vms.taken:
            host.files.write(path, b"somebody's")

    def records(self) -> Mapping[str, Callable[[], Iterator[Record]]]:
        return {"VmDisk": self._disks, "OwnVm": self._vms, "VmSeed": self._seeds}

    def changes(self) -> Mapping[str, Change]:
        disks = ManagedKind("disk", self._make_disk, self._remove_disk, self._change_disk)
        vms = ManagedKind("vm", self._make_vm, self._remove_vm, self._change_vm)
        return {
            "VmDisk": partial(self.set_managed, disks),
            "OwnVm": partial(self.set_managed, vms),
            "VmSeed": self.set_seed,
        }

    # ---- disks

    @property
    def store(self) -> str:
        """The folder in which winhost makes disks and VMs."""
        return f"{self.host.lab.new_vms.store}\\winhost"

    def user(self, path: str) -> str | None:
        """The VM that a disk is attached to."""
        users = (vm.guid for vm in self.host.vms.values() if path.casefold() in map(str.casefold, vm.disks))
        return next(users, None)

    def _disks(self) -> Iterator[Record]:
        for name, record in self.stored_records("disk"):
            state: dict[str, Json] = {**NO_DISK, "made": None, "path": record["path"]}
            path = record["path"]
            if record["complete"] and self.host.files.read(path) is not None:
                state |= {"made": True, "image": record["image"], "size": self.host.virtual_disk(path).size}
                state |= {"vm": self.user(path), "file_size": self.host.files.length(path)}
            yield Record(state, {"name": name})

    def _change_disk(self, name: str, record: StoredRecord | None, desired: Mapping[str, Any]) -> None:
        if record is not None and desired["size"] is not None:
            self.host.resize_vhd(record["path"], desired["size"])

    def _make_disk(self, name: str, record: StoredRecord | None, desired: Mapping[str, Any]) -> None:
        image, size, files = desired["image"], desired["size"], self.host.files
        staged, folder = self.host.software.staged_path(image), f"{self.store}\\{name}"
        path = f"{folder}\\disk.vhdx"
        if record is None and files.is_full(folder):
            raise not_owned_error(f"There is something in {folder} that winhost did not make.")
        files.make_folders(self.store, folder)
        found, free = ", ".join(self.host.attributes(folder)), self.host.lab.new_vms.free
        refuse(found, "DiskAttributes", folder=folder, found=found)
        refuse(free < size + _LEFT, "NoRoom", folder=folder, free=free, size=size)
        self.store_record("disk", name, {"image": image, "path": path, "complete": False})
        self.host.software.copy_source(staged, path)
        self.host.test_vhd(path)
        self.host.resize_vhd(path, size)
        self.store_record("disk", name, {"image": image, "path": path, "complete": True})

    def _remove_disk(self, name: str, record: StoredRecord) -> None:
        self.host.files.remove(record["path"])

    # ---- VMs

    def _make_vm(self, name: str, record: StoredRecord | None, desired: Mapping[str, Any]) -> None:
        disk: StoredRecord = self.stored_record("disk", name) or {}
        vm = self.made(name, record) and self.of_ours(name, record)
        others = [each for each in self.host.vms.values() if each is not vm]
        refuse(any(each.name.casefold() == name for each in others), "NameTaken", what="VM", name=name)
        if any(each.mac == desired["mac"] for each in others):
            raise refusal("AddressTaken", why=f"Another network adapter has the MAC address {desired['mac']}.")
        if vm is None or record is None:
            record = {"token": str(uuid4()), "id": None, "marked": False, "complete": False}
            self.store_record("vm", name, record)
            vm = self.host.new_vm(name, desired["memory"], self.store)
        mine = {**record, "id": vm.guid, "marked": True, "complete": False}
        notes = f"Made by winhost, which knows it by {mine['token']}."
        self.host.set_vm(vm.guid, notes=notes, com1=f"\\\\.\\pipe\\{vm.guid}", **_FIXED)
        self.store_record("vm", name, mine)
        self._change_vm(name, mine, desired)
        if not vm.disks:
            self.host.add_vm_hard_disk_drive(vm.guid, disk["path"])
        self.host.set_vm(vm.guid, boots_from=vm.disks[0])
        self.store_record("vm", name, {**mine, "complete": True})

    def _change_vm(self, name: str, record: StoredRecord | None, desired: Mapping[str, Any]) -> None:
        """Write the given settings. Null leaves a setting as it is, but takes the VLAN away."""
        vm = self.of_ours(name, record)
        given = {n: value for n, value in desired.items() if n == "vlan" or value is not None}
        fields = {field: given[name] for name, field in _FIELDS.items() if name in given}
        if (on := given.get("secure_boot")) is not None:
            self.host.set_vm_secure_boot(vm.guid, on=on, template=LINUX_TEMPLATE if on else None)
            refuse(on and not boots_linux(vm), "TemplateRefused")
        self.host.set_vm(vm.guid, **({"dynamic_memory": False} if "startup" in fields else {}), **fields)

    def _remove_vm(self, name: str, record: StoredRecord) -> None:
        if self.made(name, record) is not None:
            self.host.remove_vm(self.of_ours(name, record).guid)

    def made(self, name: str, record: StoredRecord | None) -> VirtualMachine | None:
        """Return the VM with the record's id; until that is noted, the one in winhost's folder."""
        if record is None or record["id"] is not None:
            found: VirtualMachine | None = self.host.vms.get(record and record["id"])
            return found
        return next((vm for vm in self.host.vms.values() if vm.path == f"{self.store}\\{name}"), None)

    def of_ours(self, name: str, record: StoredRecord | None) -> VirtualMachine:
        """Return winhost's VM of this name. Raises CmdletError where there is none, or it has lost its mark."""
        vm = self.made(name, record)
        if vm is None or record is None or not is_marked(vm, record):
            raise not_owned_error(f"There is no VM {name} that has the mark of winhost in its notes.")
        return vm

    def _vms(self) -> Iterator[Record]:
        for name, record in self.stored_records("vm"):
            state: dict[str, Json] = {**NO_VM, "made": None}
            if vm := self.made(name, record):
                state |= {"id": vm.guid, "ours": is_marked(vm, record)}
                if state["ours"] and record["complete"]:
                    settings = {name: getattr(vm, field) for name, field in _FIELDS.items()}
                    state |= {"made": True, "secure_boot": boots_linux(vm), **settings}
            yield Record(state, {"name": name})

    # ---- seeds

    def set_seed(self, asked: SetCall) -> None:
        """Put a seed into its VM, change the keys that it is known by, take it out, or forget it."""
        name, desired = asked.key["name"], asked.desired
        record, stage = self.stored_record("seed", name), desired.get("stage")
        if stage == ATTACHED:
            self._put_in(name, record, desired)
        elif record is not None and (stage == NONE or (record["complete"] and not set(_MADE_WITH) & set(desired))):
            if stage is not None:  # take it out
                if (vm := self.made(name, self.stored_record("vm", name))) and record["path"] in vm.dvds:
                    self.host.set_vm_dvd_drive(vm.guid, record["path"], None)
                self.host.files.remove(record["path"])
            known = {**record, "host_keys": list(desired.get("host_keys", record["host_keys"]))}
            self.store_record(
                "seed", name, None if stage == NONE else {**known, "retired": record["retired"] or bool(stage)}
            )

    def _put_in(self, name: str, record: StoredRecord | None, desired: Mapping[str, Any]) -> None:
        vm, files = self.of_ours(name, self.stored_record("vm", name)), self.host.files
        address = str(desired.get("address")).partition("/")[0]
        macs = [mac.replace("-", "") for known, mac in self.host.neighbours() if known == address]
        if desired.get("address") and (self.host.answers_ping(address) or any(mac != vm.mac for mac in macs)):
            raise refusal("AddressTaken", why=f"Somebody in the network has the address {address} already.")
        path = f"{self.store}\\{name}\\seed.iso"
        mine = {"path": path, **{part: desired.get(part) for part in _MADE_WITH}, "retired": False}
        self.store_record("seed", name, {**mine, "host_keys": [], "complete": False})
        key = f"{self.store}\\{name}\\seed.key"
        refuse(self.host.run_ssh_keygen(["-f", key]) is None, "NoSshKeygen")
        private, public = (files.take(each).decode("ascii").removesuffix(" winhost\n") for each in (key, f"{key}.pub"))
        disc = gzip.decompress(b64decode(desired["template"]))
        sid = "-".join(map(str, ("S-1-5-83-1", *struct.unpack("<4I", UUID(vm.guid).bytes_le))))  # of its worker process
        files.give_rights(path, f"O:BAD:P(A;;FA;;;SY)(A;;FA;;;BA)(A;;FR;;;{sid})")
        files.write(path, filled(disc, vm.guid, private, public))
        if path not in vm.dvds:
            self.host.add_vm_dvd_drive(vm.guid, path)
        self.store_record("seed", name, {**mine, "host_keys": [public], "complete": True})

    def _seeds(self) -> Iterator[Record]:
        for name, record in self.stored_records("seed"):
            state: dict[str, Json] = {**NO_SEED, **{part: record[part] for part in (*_MADE_WITH, "host_keys")}}
            vm = self.made(name, self.stored_record("vm", name))
            inserted = vm is not None and record["path"] in vm.dvds
            whole = record["complete"] and inserted and self.host.files.read(record["path"]) is not None
            state["stage"] = RETIRED if record["retired"] else ATTACHED if whole else None
            if vm is not None:
                seen = [address for address, mac in self.host.neighbours() if mac.replace("-", "") == vm.mac]
                state |= {"vm": vm.guid, "neighbours": seen}
            yield Record(state, {"name": name})


def is_marked(vm: VirtualMachine, record: StoredRecord) -> bool:
    """Tell whether the VM is winhost's: its notes say so, as soon as they have been written."""
    return not record["marked"] or record["token"] in vm.notes


def boots_linux(vm: VirtualMachine) -> bool:
    """Tell whether Secure Boot is on, with the template for Linux."""
    return vm.traits["secure_boot"] is True and vm.traits["secure_boot_template"] == TEMPLATES[LINUX_TEMPLATE]
