"""VMs, disks and seeds that winhost makes on a simulated host, and winhost's records of them."""

import gzip
import struct
from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any
from uuid import UUID, uuid4

from winhost.core.answers import Json, Record
from winhost.images.seed import fill_template
from winhost.lab.physics.parts import Change, Host, ManagedKind, Part, SetCall, StoredRecord
from winhost.lab.physics.virtual_machine import VirtualMachine
from winhost.lab.physics.vm_creation import LINUX_TEMPLATE, TEMPLATES
from winhost.lab.physics.windows_errors import not_owned_error, refusal, refuse_if
from winhost.model.units import GiB
from winhost.resources.windows.vms import ATTACHED, NO_DISK, NO_SEED, NO_VM, NONE, RETIRED

_SEED_PROPERTIES = ("user", "address", "template")
_RESERVED_BYTES = 4 * GiB
_FIELDS = {"cpus": "cpus", "memory": "startup", "mac": "mac", "vlan": "vlan", "switch": "switch"}
_FIXED_SETTINGS: Mapping[str, Any] = {
    "checkpoint_type": "disabled",
    "automatic_checkpoints": False,
    "stop_action": "turn-off",
    "start_action": "start-if-running",
    "start_delay": 60,
}


class OwnVms(Part):
    """The VMs that winhost made on one host. Their records in the registry are `vm NAME`, `disk NAME`, `seed NAME`."""

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        for path in host.lab.new_vms.taken:
            host.files.write(path, b"somebody's")

    def records(self) -> Mapping[str, Callable[[], Iterator[Record]]]:
        return {"VmDisk": self._list_disks, "OwnVm": self._list_vms, "VmSeed": self._list_seeds}

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

    def attached_vm(self, path: str) -> str | None:
        """Return the GUID of the VM that a disk is attached to, or None."""
        users = (vm.guid for vm in self.host.vms.values() if path.casefold() in map(str.casefold, vm.disks))
        return next(users, None)

    def _list_disks(self) -> Iterator[Record]:
        for name, record in self.stored_records("disk"):
            state: dict[str, Json] = {**NO_DISK, "made": None, "path": record["path"]}
            path = record["path"]
            if record["complete"] and self.host.files.read(path) is not None:
                state |= {"made": True, "image": record["image"], "size": self.host.virtual_disk(path).size}
                state |= {"vm": self.attached_vm(path), "file_size": self.host.files.length(path)}
            yield Record(state, {"name": name})

    def _change_disk(self, name: str, record: StoredRecord | None, desired: Mapping[str, Any]) -> None:
        if record is not None and desired["size"] is not None:
            self.host.resize_vhd(record["path"], desired["size"])

    def _make_disk(self, name: str, record: StoredRecord | None, desired: Mapping[str, Any]) -> None:
        image, size, files = desired["image"], desired["size"], self.host.files
        staged, folder = self.host.software.find_staged_file(image), f"{self.store}\\{name}"
        path = f"{folder}\\disk.vhdx"
        if record is None and files.is_occupied(folder):
            raise not_owned_error(f"There is something in {folder} that winhost did not make.")
        files.make_folders(self.store, folder)
        attributes, free = ", ".join(self.host.attributes(folder)), self.host.lab.new_vms.free
        refuse_if(attributes, "DiskAttributes", folder=folder, found=attributes)
        refuse_if(free < size + _RESERVED_BYTES, "NoRoom", folder=folder, free=free, size=size)
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
        vm = self.find_vm(name, record) and self.find_owned_vm(name, record)
        others = [each for each in self.host.vms.values() if each is not vm]
        refuse_if(any(each.name.casefold() == name for each in others), "NameTaken", what="VM", name=name)
        if any(each.mac == desired["mac"] for each in others):
            raise refusal("AddressTaken", why=f"Another network adapter has the MAC address {desired['mac']}.")
        if vm is None or record is None:
            record = {"token": str(uuid4()), "id": None, "marked": False, "complete": False}
            self.store_record("vm", name, record)
            vm = self.host.new_vm(name, desired["memory"], self.store)
        record = {**record, "id": vm.guid, "marked": True, "complete": False}
        notes = f"Made by winhost, which knows it by {record['token']}."
        self.host.set_vm(vm.guid, notes=notes, com1=f"\\\\.\\pipe\\{vm.guid}", **_FIXED_SETTINGS)
        self.store_record("vm", name, record)
        self._change_vm(name, record, desired)
        if not vm.disks:
            self.host.add_vm_hard_disk_drive(vm.guid, disk["path"])
        self.host.set_vm(vm.guid, boots_from=vm.disks[0])
        self.store_record("vm", name, {**record, "complete": True})

    def _change_vm(self, name: str, record: StoredRecord | None, desired: Mapping[str, Any]) -> None:
        """Change settings of a VM. None leaves a setting unchanged, but removes the VLAN."""
        vm = self.find_owned_vm(name, record)
        values = {n: value for n, value in desired.items() if n == "vlan" or value is not None}
        fields = {field: values[name] for name, field in _FIELDS.items() if name in values}
        if (secure_boot := values.get("secure_boot")) is not None:
            self.host.set_vm_secure_boot(vm.guid, on=secure_boot, template=LINUX_TEMPLATE if secure_boot else None)
            refuse_if(secure_boot and not boots_linux(vm), "TemplateRefused")
        self.host.set_vm(vm.guid, **({"dynamic_memory": False} if "startup" in fields else {}), **fields)

    def _remove_vm(self, name: str, record: StoredRecord) -> None:
        if self.find_vm(name, record) is not None:
            self.host.remove_vm(self.find_owned_vm(name, record).guid)

    def find_vm(self, name: str, record: StoredRecord | None) -> VirtualMachine | None:
        """Return the VM with the record's id; while the record has none, the VM in winhost's folder."""
        if record is None or record["id"] is not None:
            found: VirtualMachine | None = self.host.vms.get(record and record["id"])
            return found
        return next((vm for vm in self.host.vms.values() if vm.path == f"{self.store}\\{name}"), None)

    def find_owned_vm(self, name: str, record: StoredRecord | None) -> VirtualMachine:
        """Return winhost's VM of this name. Raises CmdletError if there is none, or it has lost winhost's mark."""
        vm = self.find_vm(name, record)
        if vm is None or record is None or not is_marked(vm, record):
            raise not_owned_error(f"There is no VM {name} that has the mark of winhost in its notes.")
        return vm

    def _list_vms(self) -> Iterator[Record]:
        for name, record in self.stored_records("vm"):
            state: dict[str, Json] = {**NO_VM, "made": None}
            if vm := self.find_vm(name, record):
                state |= {"id": vm.guid, "ours": is_marked(vm, record)}
                if state["ours"] and record["complete"]:
                    settings = {name: getattr(vm, field) for name, field in _FIELDS.items()}
                    state |= {"made": True, "secure_boot": boots_linux(vm), **settings}
            yield Record(state, {"name": name})

    # ---- seeds

    def set_seed(self, call: SetCall) -> None:
        """Attach a seed to its VM, change its known host keys, detach it, or remove its record."""
        name, desired = call.key["name"], call.desired
        record, stage = self.stored_record("seed", name), desired.get("stage")
        if stage == ATTACHED:
            self._attach_seed(name, record, desired)
            return
        changes_seed = record is not None and record["complete"] and not set(_SEED_PROPERTIES) & set(desired)
        if record is None or not (stage == NONE or changes_seed):
            return
        if stage is not None:
            if (vm := self.find_vm(name, self.stored_record("vm", name))) and record["path"] in vm.dvd_files:
                self.host.set_vm_dvd_drive(vm.guid, record["path"], None)
            self.host.files.remove(record["path"])
        if stage == NONE:
            self.store_record("seed", name, None)
            return
        host_keys = list(desired.get("host_keys", record["host_keys"]))
        self.store_record("seed", name, {**record, "host_keys": host_keys, "retired": record["retired"] or bool(stage)})

    def _attach_seed(self, name: str, record: StoredRecord | None, desired: Mapping[str, Any]) -> None:
        vm, files = self.find_owned_vm(name, self.stored_record("vm", name)), self.host.files
        address = str(desired.get("address")).partition("/")[0]
        macs = [mac.replace("-", "") for known, mac in self.host.neighbours() if known == address]
        if desired.get("address") and (self.host.answers_ping(address) or any(mac != vm.mac for mac in macs)):
            raise refusal("AddressTaken", why=f"Somebody in the network has the address {address} already.")
        path = f"{self.store}\\{name}\\seed.iso"
        record = {"path": path, **{part: desired.get(part) for part in _SEED_PROPERTIES}, "retired": False}
        self.store_record("seed", name, {**record, "host_keys": [], "complete": False})
        key = f"{self.store}\\{name}\\seed.key"
        refuse_if(self.host.run_ssh_keygen(["-f", key]) is None, "NoSshKeygen")
        private, public = (files.pop(each).decode("ascii").removesuffix(" winhost\n") for each in (key, f"{key}.pub"))
        disc = gzip.decompress(b64decode(desired["template"]))
        sid = "-".join(map(str, ("S-1-5-83-1", *struct.unpack("<4I", UUID(vm.guid).bytes_le))))  # of its worker process
        files.set_rights(path, f"O:BAD:P(A;;FA;;;SY)(A;;FA;;;BA)(A;;FR;;;{sid})")
        files.write(path, fill_template(disc, vm.guid, private, public))
        if path not in vm.dvd_files:
            self.host.add_vm_dvd_drive(vm.guid, path)
        self.store_record("seed", name, {**record, "host_keys": [public], "complete": True})

    def _list_seeds(self) -> Iterator[Record]:
        for name, record in self.stored_records("seed"):
            state: dict[str, Json] = {**NO_SEED, **{part: record[part] for part in (*_SEED_PROPERTIES, "host_keys")}}
            vm = self.find_vm(name, self.stored_record("vm", name))
            is_inserted = vm is not None and record["path"] in vm.dvd_files
            is_complete = record["complete"] and is_inserted and self.host.files.read(record["path"]) is not None
            state["stage"] = RETIRED if record["retired"] else ATTACHED if is_complete else None
            if vm is not None:
                addresses = [address for address, mac in self.host.neighbours() if mac.replace("-", "") == vm.mac]
                state |= {"vm": vm.guid, "neighbours": addresses}
            yield Record(state, {"name": name})


def is_marked(vm: VirtualMachine, record: StoredRecord) -> bool:
    """Tell whether the VM's notes have winhost's token, or were not written yet."""
    return not record["marked"] or record["token"] in vm.notes


def boots_linux(vm: VirtualMachine) -> bool:
    """Tell whether Secure Boot is on and uses the template for Linux."""
    return vm.traits["secure_boot"] is True and vm.traits["secure_boot_template"] == TEMPLATES[LINUX_TEMPLATE]
