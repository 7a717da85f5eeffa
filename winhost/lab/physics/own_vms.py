"""What winhost keeps on a simulated host of the VMs that it makes there, and how they show in the facts."""

import gzip
import re
import struct
from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any
from uuid import UUID, uuid4

from winhost.core.answers import Json, Key, Record
from winhost.images.seed import HOST_KEYS, filled
from winhost.lab.physics.parts import Change, Host, Part, SetCall
from winhost.lab.physics.virtual_machine import VirtualMachine
from winhost.lab.physics.vm_making import TEMPLATES
from winhost.lab.physics.windows_errors import CmdletError, bad_request, not_ours, own_error, wrong_place
from winhost.model.units import GiB, MiB
from winhost.resources.values import is_device
from winhost.resources.windows.own_vm import NAME, NO_VM
from winhost.resources.windows.vm_disk import NO_DISK
from winhost.resources.windows.vm_seed import ATTACHED, NO_SEED, NONE, RETIRED

LINUX_TEMPLATE = "MicrosoftUEFICertificateAuthority"
Kept = dict[str, Any]
_MADE_WITH = ("user", "address", "template")
_LEFT = 4 * GiB
_IMAGE = 2400 * MiB  # of an Ubuntu, as a VHDX: the simulator's own number
_START_DELAY = 60


class OwnVms(Part):
    """Of one host. Records are in the registry, under `vm NAME`, `disk NAME` and `seed NAME`."""

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        for path in host.lab.new_vms.taken:
            host.files.write(path, b"somebody's")

    def records(self) -> Mapping[str, Callable[[], Iterator[Record]]]:
        return {"VmDisk": self._disks, "OwnVm": self._vms, "VmSeed": self._seeds}

    def changes(self) -> Mapping[str, Change]:
        return {"VmDisk": self.set_disk, "OwnVm": self.set_vm, "VmSeed": self.set_seed}

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
        for name, record in self.all_kept("disk"):
            state: dict[str, Json] = {**NO_DISK, "made": None, "path": record["path"]}
            if record["complete"] and self.host.files.read(record["path"]) is not None:
                path = record["path"]
                state |= {"made": True, "image": record["image"], "size": self._size(path), "vm": self.user(path)}
                state["file_size"] = self.host.files.length(path)
            yield Record(state, {"name": name})

    def _size(self, path: str) -> Json:
        try:
            return self.host.virtual_disk(path, "Get-VHD").size
        except CmdletError as error:
            return {"unknown": error.as_json()}

    def set_disk(self, asked: SetCall) -> None:
        """Made of a staged file, made larger, or taken away."""
        name, desired = _name(asked.key), asked.desired
        record = self.kept("disk", name)
        if desired.get("made"):
            self._make_disk(name, record, desired)
        elif "made" in desired:
            self._remove_disk(name, record, asked)
        elif record is None or not record["complete"]:
            raise wrong_place(f"winhost made no disk for {name}.")
        elif "image" in desired:
            raise wrong_place("The disk was made of another image: take it away first.")
        elif desired["size"] is not None:
            self._resize(record["path"], desired["size"])

    def _make_disk(self, name: str, record: Kept | None, desired: Mapping[str, Json]) -> None:
        image, size, files = desired.get("image"), desired.get("size"), self.host.files
        if image is None or size is None:
            raise bad_request("A disk is made of a staged file, and with a size.")
        if (staged := self.host.software.staged_path(image)) is None:
            raise own_error("NotStaged", "ObjectNotFound", f"No file with SHA-256 {image} was brought to this host.")
        folder = f"{self.store}\\{name}"
        path = f"{folder}\\disk.vhdx"
        begun = record is not None and str(record["path"]).casefold() == path.casefold()
        if not begun and files.is_full(folder):
            raise not_ours(f"There is something in {folder} that winhost did not make.")
        if begun and self.user(path) is not None:
            raise wrong_place(f"{path} is attached to a VM.")
        files.make_folders(self.store, folder)
        if found := self.host.attributes(folder):
            message = (
                f"{folder} is {', '.join(found)}, and Hyper-V uses no such disk. "
                "Take that from its folder: compact /u, cipher /d, Set-FileIntegrity."
            )
            raise own_error("DiskAttributes", "InvalidOperation", message)
        if (free := self.host.lab.new_vms.free) < size + _LEFT:
            message = f"{folder} has {free} bytes left, and the disk can grow to {size}; 4 GiB must remain."
            raise own_error("NoRoom", "ResourceUnavailable", message)
        self.keep("disk", name, {"image": image, "path": path, "complete": False})
        self.host.software.copy_source(staged, path)
        disk = self.host.virtual_disk(path, "Get-VHD").physics
        if disk.format != "VHDX" or disk.kind == "Differencing":
            what = f"It is a {disk.format} of type {disk.kind}, and no VHDX that stands alone."
            raise own_error("WrongDisk", "InvalidData", what)
        self.host.test_vhd(path)
        self._resize(path, size)
        files.give_length(path, partial(self._length, path))
        self.keep("disk", name, {"image": image, "path": path, "complete": True})

    def _length(self, path: str) -> int:
        inside: Iterator[int] = (
            vm.holds() for vm in self.host.vms.values() if path.casefold() in map(str.casefold, vm.disks)
        )
        return _IMAGE + sum(inside)

    def _resize(self, path: str, size: int) -> None:
        now = self.host.virtual_disk(path, "Get-VHD").size
        if now > size:
            raise wrong_place(f"The disk has {now} bytes already, and winhost makes none smaller.")
        if now < size:
            self.host.resize_vhd(path, size)

    def _remove_disk(self, name: str, record: Kept | None, asked: SetCall) -> None:
        if record is None:
            return
        if "data" not in asked.accept:
            raise own_error(
                "HoldsData", "ResourceBusy", "What is on the disk would be lost, without the consent for it."
            )
        path = str(record["path"])
        if (user := self.user(path)) is not None:
            raise wrong_place(f"The disk is attached to the VM {user}.")
        if not path.casefold().endswith(f"\\winhost\\{name}\\disk.vhdx"):
            raise not_ours(f"{path} is in no folder of winhost's.")
        self.host.files.remove(path)
        folder = path.removesuffix("\\disk.vhdx")
        for left in (f"{folder}\\Virtual Machines", f"{folder}\\Snapshots", folder):
            if self.host.files.has_folder(left):
                raise own_error("NotEmpty", "ResourceExists", f"{left} is not empty: something else was put there.")
        self.keep("disk", name, None)

    # ---- VMs

    def set_vm(self, asked: SetCall) -> None:
        """Made, changed while it is off, or taken away."""
        name, desired = _name(asked.key), asked.desired
        record = self.kept("vm", name)
        if "made" not in desired:
            self._write_settings(self.of_ours(name, record), desired)
        elif not desired["made"]:
            self._remove_vm(name, record, asked)
        elif any(desired.get(each) is None for each in ("cpus", "memory", "switch", "mac", "secure_boot")):
            raise bad_request("A VM is made with all of these.")
        else:
            self._make_vm(name, record, desired)

    def _make_vm(self, name: str, record: Kept | None, desired: Mapping[str, Json]) -> None:
        disk = self.kept("disk", name)
        if disk is None or not disk["complete"]:
            raise wrong_place(f"There is no disk for the VM {name}: make that first.")
        self._check_switch(desired["switch"])
        vm = self.of_ours(name, record) if record is not None and self.made(name, record) else None
        others = [each for each in self.host.vms.values() if each is not vm]
        if any(each.name.casefold() == name for each in others):
            raise own_error("NameTaken", "ResourceExists", f"There is a VM {name} already, which winhost did not make.")
        if any(each.mac == desired["mac"] for each in others):
            what = f"Another network adapter on this host has the MAC address {desired['mac']}."
            raise own_error("AddressTaken", "ResourceExists", what)
        if record is None or vm is None:
            record = {"token": str(uuid4()), "id": None, "marked": False, "complete": False}
            self.keep("vm", name, record)
            vm = self.host.new_vm(name, desired["memory"], self.store)
        record |= {"id": vm.guid, "marked": True, "complete": False}
        fixed = {"checkpoint_type": "disabled", "automatic_checkpoints": False, "stop_action": "turn-off"}
        fixed |= {"start_action": "start-if-running", "start_delay": _START_DELAY}
        self.host.set_vm(vm.guid, notes=f"Made by winhost, which knows it by {record['token']}.", **fixed)
        self.keep("vm", name, record)
        pipe = f"\\\\.\\pipe\\{vm.guid}"
        self.host.set_vm_com_port(vm.guid, pipe)
        if vm.com1 != pipe:
            said = f"The first serial port of the VM did not become {pipe}."
            raise own_error("NoBootLog", "InvalidResult", said)
        self._write_settings(vm, desired)
        if not vm.disks:
            self.host.add_vm_hard_disk_drive(vm.guid, disk["path"])
        vm.boots_from = vm.disks[0]
        self.keep("vm", name, {**record, "complete": True})

    def _check_switch(self, switch: Json) -> None:
        if all(each.guid != switch for each in self.host.network.switches):
            raise own_error("NoSwitch", "ObjectNotFound", f"There is no switch {switch}.")

    def _write_settings(self, vm: VirtualMachine, desired: Mapping[str, Json]) -> None:
        host, given = self.host, {name: value for name, value in desired.items() if value is not None}
        if "cpus" in given:
            host.set_vm_processor(vm.guid, given["cpus"])
        if "memory" in given:
            host.set_vm_memory(vm.guid, dynamic_memory_enabled=False, startup=given["memory"])
        if "secure_boot" in given:
            self._write_secure_boot(vm, on=given["secure_boot"])
        if "mac" in given:
            host.set_vm_mac(vm.guid, given["mac"])
        if "vlan" in desired:
            host.set_vm_vlan(vm.guid, desired["vlan"])
        if "switch" in given:
            self._check_switch(given["switch"])
            host.connect_vm(vm.guid, given["switch"])

    def _write_secure_boot(self, vm: VirtualMachine, *, on: bool) -> None:
        template = next(guid for guid, name in TEMPLATES.items() if name == LINUX_TEMPLATE)
        self.host.set_vm_secure_boot(vm.guid, on=on, template=template if on else None)
        if on and not boots_linux(vm):
            message = (
                "This host did not take the template for Linux. Secure Boot is not switched off for that: say so, "
                "and plan with new_vm.secure_boot=false."
            )
            raise own_error("TemplateRefused", "InvalidResult", message)

    def _remove_vm(self, name: str, record: Kept | None, asked: SetCall) -> None:
        if record is None:
            return
        if "data" not in asked.accept:
            raise own_error("HoldsData", "ResourceBusy", "A VM would go for good, without the consent for it.")
        if self.made(name, record) is not None:
            vm = self.of_ours(name, record)
            if vm.power != "off":
                raise wrong_place(f"The VM is {vm.power.capitalize()}: shut it down first.")
            if vm.assignments:
                raise wrong_place("A device is assigned to the VM: take it back first, or the host has it no more.")
            self.host.remove_vm(vm.guid)
        self.keep("vm", name, None)

    def made(self, name: str, record: Kept) -> VirtualMachine | None:
        """By the id in the record; where that is not noted, by a folder where nobody else makes any."""
        if record["id"] is not None:
            given: VirtualMachine | None = self.host.vms.get(record["id"])
            return given
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
        for name, record in self.all_kept("vm"):
            state: dict[str, Json] = {**NO_VM, "made": None}
            if vm := self.made(name, record):
                state |= {"id": vm.guid, "ours": is_marked(vm, record)}
                state |= {"made": True, **_settings(vm)} if state["ours"] and record["complete"] else {}
            yield Record(state, {"name": name})

    # ---- seeds

    def set_seed(self, asked: SetCall) -> None:
        """Put into the VM, known by other keys, taken out, or forgotten."""
        name, desired = _name(asked.key), asked.desired
        record = self.kept("seed", name)
        if desired.get("stage") == ATTACHED:
            self._put_in(name, record, desired)
        elif desired.get("stage") == NONE:
            if record is not None:
                self._take_out(name, record)
                self.keep("seed", name, None)
        elif record is None or not record["complete"]:
            raise wrong_place(f"winhost made no seed for {name}.")
        elif any(part in desired for part in _MADE_WITH):
            raise wrong_place("The seed was made already, with others: take it away first.")
        else:
            record |= {"host_keys": list(desired.get("host_keys", record["host_keys"]))}
            if desired.get("stage") == RETIRED:
                self._take_out(name, record)
                record["retired"] = True
            self.keep("seed", name, record)

    def _put_in(self, name: str, record: Kept | None, desired: Mapping[str, Json]) -> None:
        if desired.get("user") is None or desired.get("template") is None:
            raise bad_request("A seed is made of a template, for a user.")
        if "host_keys" in desired:
            raise bad_request("The host key is made with the seed.")
        vm, files = self.of_ours(name, self.kept("vm", name)), self.host.files
        if vm.power != "off":
            raise wrong_place(f"The VM is {vm.power.capitalize()}: its Linux reads a seed on its first start only.")
        asked = str(desired.get("address")).partition("/")[0]
        macs = [mac.replace("-", "") for known, mac in self.host.neighbours() if known == asked]
        if desired.get("address") and (self.host.answers_ping(asked) or any(mac != vm.mac for mac in macs)):
            said = f"Somebody in the network has the address {asked} already."
            raise own_error("AddressTaken", "ResourceExists", said)
        folder = f"{self.store}\\{name}"
        path = f"{folder}\\seed.iso"
        if record is None and files.read(path) is not None:
            raise not_ours(f"There is a {path} that winhost did not make.")
        files.make_folders(folder)
        mine: Kept = {"path": path, **{part: desired.get(part) for part in _MADE_WITH}}
        mine |= {"host_keys": [], "complete": False, "retired": False}
        self.keep("seed", name, mine)
        files.remove(path)
        private, public = self._new_host_key(f"{folder}\\seed.key")
        disc = gzip.decompress(b64decode(str(desired["template"])))
        if HOST_KEYS not in disc:
            raise bad_request("The template has no room for the key.")
        sid = "-".join(map(str, ("S-1-5-83-1", *struct.unpack("<4I", UUID(vm.guid).bytes_le))))  # of its worker process
        files.give_rights(path, f"O:BAD:P(A;;FA;;;SY)(A;;FA;;;BA)(A;;FR;;;{sid})")
        files.write(path, filled(disc, vm.guid, private, public))
        usable = [found for found in (path, "") if found in vm.dvds]
        if usable:
            self.host.set_vm_dvd_drive(vm.guid, usable[0], path)
        else:
            self.host.add_vm_dvd_drive(vm.guid, path)
        self.keep("seed", name, {**mine, "host_keys": [public], "complete": True})

    def _new_host_key(self, path: str) -> tuple[str, str]:
        """Private and public; nothing of them stays on disk."""
        if self.host.run_ssh_keygen(["-f", path]) is None:
            why = (
                "This host has no ssh-keygen.exe, which makes the key of the guest. Install it: "
                "Add-WindowsCapability -Online -Name OpenSSH.Client~~~~0.0.1.0"
            )
            raise own_error("NoSshKeygen", "NotInstalled", why)
        made = [(self.host.files.read(each) or b"").decode("ascii") for each in (path, f"{path}.pub")]
        for each in (path, f"{path}.pub"):
            self.host.files.remove(each)
        return made[0], made[1].removesuffix(" winhost\n")

    def _take_out(self, name: str, record: Kept) -> None:
        path = str(record["path"])
        if not path.casefold().endswith(f"\\winhost\\{name}\\seed.iso"):
            raise not_ours(f"{path} is in no folder of winhost's.")
        vm = self.seeded(name)
        if vm is not None and path in vm.dvds:
            self.host.set_vm_dvd_drive(vm.guid, path, None)
        for each in ("seed.iso", "seed.key", "seed.key.pub"):
            self.host.files.remove(path.removesuffix("seed.iso") + each)

    def seeded(self, name: str) -> VirtualMachine | None:
        """The VM that a seed is for."""
        record = self.kept("vm", name)
        return None if record is None else self.made(name, record)

    def _seeds(self) -> Iterator[Record]:
        for name, record in self.all_kept("seed"):
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


def _name(key: Key) -> str:
    """Raises CmdletError for what no VM of ours is called."""
    if not re.fullmatch(NAME, key["name"]) or is_device(key["name"]):
        raise bad_request("That is no name for a VM: lower-case letters, digits and dashes between them.")
    return key["name"]


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
