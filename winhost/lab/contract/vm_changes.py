"""What the scripts of disks and VMs of winhost's own do, on a simulated host."""

import re
from collections.abc import Mapping
from pathlib import PureWindowsPath
from uuid import uuid4

from winhost.core.answers import Json, Key
from winhost.lab.physics.own_vms import Kept, OwnVms, boots_linux
from winhost.lab.physics.parts import SetCall
from winhost.lab.physics.simulated_machine import Machine
from winhost.lab.physics.virtual_machine import VirtualMachine
from winhost.lab.physics.vm_making import TEMPLATES
from winhost.lab.physics.windows_errors import bad_request, not_ours, own_error, wrong_place
from winhost.model.units import GiB
from winhost.resources.values import is_device
from winhost.resources.windows.own_vm import NAME

_DATA = "data"
_LEFT = 4 * GiB
_START_DELAY = 60
_LINUX = next(guid for guid, name in TEMPLATES.items() if name != "MicrosoftWindows")


def vm_name(key: Key) -> str:
    """Raises CmdletError for what no VM of ours is called."""
    if not re.fullmatch(NAME, key["name"]) or is_device(key["name"]):
        raise bad_request("That is no name for a VM: lower-case letters, digits and dashes between them.")
    return key["name"]


# ---- disks


def set_disk(machine: Machine, asked: SetCall) -> None:
    """Made of a staged file, made larger, or taken away. Raises CmdletError."""
    name, ours, desired = vm_name(asked.key), machine.own_vms, asked.desired
    record = ours.read("disk", name)
    if "made" in desired:
        if desired["made"]:
            _make_disk(machine, name, record, desired)
        else:
            _remove_disk(machine, name, record, asked)
        return
    if record is None or not record["complete"]:
        raise wrong_place(f"winhost made no disk for {name}.")
    if "image" in desired:
        raise wrong_place("The disk was made of another image: take it away first.")
    if desired["size"] is not None:
        _resize(machine, record["path"], desired["size"])


def _make_disk(machine: Machine, name: str, record: Kept | None, desired: Mapping[str, Json]) -> None:
    if desired.get("image") is None or desired.get("size") is None:
        raise bad_request("A disk is made of a staged file, and with a size.")
    ours, image = machine.own_vms, str(desired["image"])
    staged = machine.software.staged_path(image)
    if staged is None:
        raise own_error("NotStaged", "ObjectNotFound", f"No file with SHA-256 {image} was brought to this host.")
    folder = f"{ours.store}\\{name}"
    path = f"{folder}\\disk.vhdx"
    begun = record is not None and str(record["path"]).casefold() == path.casefold()
    if not begun and any(True for _ in machine.files.below(folder)):
        raise not_ours(f"There is something in {folder} that winhost did not make.")
    if begun and ours.user(path) is not None:
        raise wrong_place(f"{path} is attached to a VM.")
    machine.files.make_folders(ours.store, folder)
    _check_place(machine, folder)
    _check_room(machine, folder, desired["size"])
    ours.write("disk", name, {"image": image, "path": path, "complete": False})
    machine.files.remove(path)
    machine.software.copy_source(staged, path)
    _check_place(machine, path)
    disk = machine.virtual_disk(path, "Get-VHD").physics
    if disk.format != "VHDX" or disk.kind == "Differencing":
        what = f"It is a {disk.format} of type {disk.kind}, and no VHDX that stands alone."
        raise own_error("WrongDisk", "InvalidData", what)
    machine.test_vhd(path)
    _resize(machine, path, desired["size"])
    ours.write("disk", name, {"image": image, "path": path, "complete": True})


def _check_place(machine: Machine, path: str) -> None:
    if found := machine.attributes(path):
        message = (
            f"{path} is {', '.join(found)}, and Hyper-V uses no such disk. "
            "Take that from its folder: compact /u, cipher /d, Set-FileIntegrity."
        )
        raise own_error("DiskAttributes", "InvalidOperation", message)


def _check_room(machine: Machine, folder: str, size: int) -> None:
    free = machine.lab.new_vms.free
    if free < size + _LEFT:
        message = f"{folder} has {free} bytes left, and the disk can grow to {size}; 4 GiB must remain."
        raise own_error("NoRoom", "ResourceUnavailable", message)


def _resize(machine: Machine, path: str, size: int) -> None:
    now = machine.virtual_disk(path, "Get-VHD").size
    if now > size:
        raise wrong_place(f"The disk has {now} bytes already, and winhost makes none smaller.")
    if now < size:
        machine.resize_vhd(path, size)


def _remove_disk(machine: Machine, name: str, record: Kept | None, asked: SetCall) -> None:
    if record is None:
        return
    ours = machine.own_vms
    if _DATA not in asked.accept:
        what = "What is on the disk would be lost, without the consent for it."
        raise own_error("HoldsData", "ResourceBusy", what)
    path = str(record["path"])
    if (user := ours.user(path)) is not None:
        raise wrong_place(f"The disk is attached to the VM {user}.")
    if not path.casefold().endswith(f"\\winhost\\{name}\\disk.vhdx"):
        raise not_ours(f"{path} is in no folder of winhost's.")
    machine.files.remove(path)
    folder = str(PureWindowsPath(path).parent)
    for left in (f"{folder}\\Virtual Machines", f"{folder}\\Snapshots", folder):
        if machine.files.has_folder(left):
            raise own_error("NotEmpty", "ResourceExists", f"{left} is not empty: something else was put there.")
    ours.write("disk", name, None)


# ---- VMs


def set_own_vm(machine: Machine, asked: SetCall) -> None:
    """Made, changed while it is off, or taken away. Raises CmdletError."""
    name, ours, desired = vm_name(asked.key), machine.own_vms, asked.desired
    record = ours.read("vm", name)
    if "made" not in desired:
        _write_settings(machine, ours.of_ours(name, record), desired)
    elif not desired["made"]:
        _remove_vm(machine, name, record, asked)
    else:
        if any(desired.get(each) is None for each in ("cpus", "memory", "switch", "mac", "secure_boot")):
            raise bad_request("A VM is made with all of these.")
        _make_vm(machine, name, record, desired)


def _make_vm(machine: Machine, name: str, record: Kept | None, desired: Mapping[str, Json]) -> None:
    ours = machine.own_vms
    disk = ours.read("disk", name)
    if disk is None or not disk["complete"]:
        raise wrong_place(f"There is no disk for the VM {name}: make that first.")
    _check_switch(machine, str(desired["switch"]))
    vm = None if record is None else ours.made(name, record)
    if vm is not None:
        vm = ours.of_ours(name, record)
    _check_free(machine, name, vm, str(desired["mac"]))
    if record is None or vm is None:
        record = {"token": str(uuid4()), "id": None, "marked": False, "complete": False}
        ours.write("vm", name, record)
        vm = machine.new_vm(name, desired["memory"], ours.store)
    record = {**record, "id": vm.guid, "marked": False, "complete": False}
    ours.write("vm", name, record)
    machine.set_vm(vm.guid, notes=f"Made by winhost, which knows it by {record['token']}.")
    ours.write("vm", name, {**record, "marked": True})
    _write_fixed(machine, vm)
    _write_settings(machine, vm, desired)
    if not vm.disks:
        machine.add_vm_hard_disk_drive(vm.guid, disk["path"])
    machine.set_vm_first_boot(vm.guid, vm.disks[0])
    ours.write("vm", name, {**record, "marked": True, "complete": True})


def _check_free(machine: Machine, name: str, own: VirtualMachine | None, mac: str) -> None:
    others = [vm for vm in machine.vms.values() if vm is not own]
    if any(vm.name.casefold() == name for vm in others):
        what = f"There is a VM {name} already, which winhost did not make."
        raise own_error("NameTaken", "ResourceExists", what)
    if any(vm.mac == mac for vm in others):
        what = f"Another network adapter on this host has the MAC address {mac}."
        raise own_error("AddressTaken", "ResourceExists", what)


def _check_switch(machine: Machine, switch: str) -> None:
    if all(each.guid != switch for each in machine.network.switches):
        raise own_error("NoSwitch", "ObjectNotFound", f"There is no switch {switch}.")


def _write_fixed(machine: Machine, vm: VirtualMachine) -> None:
    machine.set_vm(vm.guid, checkpoint_type="disabled", stop_action="turn-off")
    machine.set_vm(vm.guid, start_action="start-if-running", start_delay=_START_DELAY)
    machine.set_vm(vm.guid, automatic_checkpoints=False)
    pipe = f"\\\\.\\pipe\\{vm.guid}"
    machine.set_vm_com_port(vm.guid, pipe)
    if vm.com1 != pipe:
        said = f"The first serial port of the VM did not become {pipe}."
        raise own_error("NoBootLog", "InvalidResult", said)


def _write_settings(machine: Machine, vm: VirtualMachine, desired: Mapping[str, Json]) -> None:
    given = {name: value for name, value in desired.items() if value is not None}
    if "cpus" in given:
        machine.set_vm_processor(vm.guid, given["cpus"])
    if "memory" in given:
        machine.set_vm_memory(vm.guid, dynamic_memory_enabled=False, startup=given["memory"])
    if "secure_boot" in given:
        _write_secure_boot(machine, vm, on=given["secure_boot"])
    if "mac" in given:
        machine.set_vm_mac(vm.guid, given["mac"])
    if "vlan" in desired:
        machine.set_vm_vlan(vm.guid, desired["vlan"])
    if "switch" in given:
        _check_switch(machine, given["switch"])
        machine.connect_vm(vm.guid, given["switch"])


def _write_secure_boot(machine: Machine, vm: VirtualMachine, *, on: bool) -> None:
    machine.set_vm_secure_boot(vm.guid, on=on, template=_LINUX if on else None)
    if on and not boots_linux(vm):
        message = (
            "This host did not take the template for Linux. Secure Boot is not switched off for that: say so, "
            "and plan with new_vm.secure_boot=false."
        )
        raise own_error("TemplateRefused", "InvalidResult", message)


def _remove_vm(machine: Machine, name: str, record: Kept | None, asked: SetCall) -> None:
    if record is None:
        return
    ours: OwnVms = machine.own_vms
    if _DATA not in asked.accept:
        raise own_error("HoldsData", "ResourceBusy", "A VM would go for good, without the consent for it.")
    if ours.made(name, record) is not None:
        vm = ours.of_ours(name, record)
        _check_removable(vm)
        machine.remove_vm(vm.guid)
    ours.write("vm", name, None)


def _check_removable(vm: VirtualMachine) -> None:
    """Raises CmdletError."""
    if vm.power != "off":
        raise wrong_place(f"The VM is {vm.power.capitalize()}: shut it down first.")
    if vm.assignments:
        message = "A device is assigned to the VM: take it back first, or the host has it no more."
        raise wrong_place(message)
