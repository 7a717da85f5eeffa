"""How a device gets from the host to a VM and back, with the cmdlets of the script and in its order."""

from collections.abc import Sequence

from winhost.core.answers import Key
from winhost.lab.contract.set_call import SetCall
from winhost.lab.physics.pci_function import Device
from winhost.lab.physics.simulated_machine import Machine
from winhost.lab.physics.windows_errors import CmdletError, bad_request, not_found
from winhost.resources.windows.assignable_device import DISABLED, DISMOUNTED, ENABLED, owner

FORCE = "force-dismount"


def set_place(machine: Machine, asked: SetCall) -> None:
    """On the host, dismounted, or with a VM. Raises CmdletError."""
    place, location = str(asked.desired["place"]), asked.key["location"]
    vm = owner(place)
    if vm is not None and vm not in machine.vms:
        raise not_found(f"There is no VM {vm}.")
    if vm is None and place not in (ENABLED, DISABLED, DISMOUNTED):
        raise bad_request(f"{place} is no place.")
    others = [each.guid for each in machine.vms.values() if each.has(location) and each.guid != vm]
    for guid in others:
        machine.remove_vm_assignable_device(guid, location)
    if place in (ENABLED, DISABLED):
        _give_to_host(machine, asked.key, place)
        return
    _take_from_host(machine, asked, place)
    if vm is not None and not machine.vms[vm].has(location):
        _give_to_vm(machine, asked, vm, others)


def _give_to_vm(machine: Machine, asked: SetCall, vm: str, others: Sequence[str]) -> None:
    location = asked.key["location"]
    _device(machine, asked.key)
    try:
        machine.add_vm_assignable_device(vm, location)
    except CmdletError:
        for guid in others:
            with asked.or_warn(f"{location} could not be given back to the VM that had it"):
                machine.add_vm_assignable_device(guid, location)
        raise


def _give_to_host(machine: Machine, key: Key, place: str) -> None:
    device = _device(machine, key)
    if device.dismounted:
        machine.mount_vm_host_assignable_device(device.location)
    if place == ENABLED and not device.enabled:
        machine.enable_pnp_device(device.instance)
    if place == DISABLED and device.enabled:
        machine.disable_pnp_device(device.instance)


def _take_from_host(machine: Machine, asked: SetCall, place: str) -> None:
    if place == DISMOUNTED and all(device.location != asked.key["location"] for device in machine.devices):
        return
    device = _device(machine, asked.key)
    if device.dismounted:
        return
    if device.enabled:
        machine.disable_pnp_device(device.instance)
    machine.dismount_vm_host_assignable_device(device.location, force=FORCE in asked.accept)


def _device(machine: Machine, key: Key) -> Device:
    for device in machine.devices:
        if dict(device.key) == dict(key):
            return device
    raise not_found(f"There is no {key['device']} at {key['location']}.")
