"""What the scripts of the resources do to change a host, on a simulated one: the same cmdlets in the same order."""

import re
from collections.abc import Mapping, Sequence

from winhost.lab.contract import account_changes, distro_changes
from winhost.lab.contract.network_changes import NETWORK
from winhost.lab.contract.set_call import Sender, SetCall, Setter
from winhost.lab.contract.software_changes import SOFTWARE, send_staged, set_client_role
from winhost.lab.physics.feature_cmdlets import ROLE, TOOLS
from winhost.lab.physics.pci_function import Device
from winhost.lab.physics.simulated_machine import Machine
from winhost.lab.physics.windows_errors import CmdletError, own_error
from winhost.model.facts import Json, Key
from winhost.resources.windows.assignable_device.resource import DISABLED, DISMOUNTED, ENABLED, owner

FORCE = "force-dismount"
TURN_OFF = "vm-turn-off"


def _set_mmio(machine: Machine, call: SetCall) -> bool:
    guid = _vm(machine, call.key["vm"])
    if "low" in call.desired:
        machine.set_vm(guid, low_memory_mapped_io_space=call.desired["low"])
    if "high" in call.desired:
        machine.set_vm(guid, high_memory_mapped_io_space=call.desired["high"])
    if "cache" in call.desired:
        machine.set_vm(guid, guest_controlled_cache_types=call.desired["cache"])
    return False


def _set_actions(machine: Machine, call: SetCall) -> bool:
    guid = _vm(machine, call.key["vm"])
    if "stop" in call.desired:
        _one_of(call.desired["stop"], "TurnOff", "Save", "ShutDown")
        machine.set_vm(guid, automatic_stop_action=call.desired["stop"])
    if "start" in call.desired:
        _one_of(call.desired["start"], "Nothing", "StartIfRunning", "Start")
        machine.set_vm(guid, automatic_start_action=call.desired["start"])
    return False


def _set_checkpoints(machine: Machine, call: SetCall) -> bool:
    guid = _vm(machine, call.key["vm"])
    if "kind" in call.desired:
        _one_of(call.desired["kind"], "Disabled", "Production", "ProductionOnly", "Standard")
        machine.set_vm(guid, checkpoint_type=call.desired["kind"])
    if "automatic" in call.desired:
        machine.set_vm(guid, automatic_checkpoints_enabled=call.desired["automatic"])
    return False


def _set_memory(machine: Machine, call: SetCall) -> bool:
    machine.set_vm_memory(_vm(machine, call.key["vm"]), dynamic_memory_enabled=call.desired["dynamic"])
    return False


def _set_power(machine: Machine, call: SetCall) -> bool:
    guid = _vm(machine, call.key["vm"])
    power = machine.vms[guid].power
    _one_of(call.desired["state"], "Off", "Running", "Saved", "Paused")
    match call.desired["state"]:
        case "off":
            _stop(machine, guid, call)
        case "running" if power == "paused":
            machine.resume_vm(guid)
        case "running":
            machine.start_vm(guid)
        case "saved":
            machine.save_vm(guid)
        case "paused":
            machine.suspend_vm(guid)
    return False


def _stop(machine: Machine, guid: str, call: SetCall) -> None:
    power = machine.vms[guid].power
    if power in ("saved", "paused"):
        message = f"The VM is {power.capitalize()}: start it, and shut it down from inside."
        raise own_error("WrongPlace", "InvalidOperation", message)
    try:
        machine.stop_vm(guid, within=call.within, stop=call.stop)
    except CmdletError as error:
        if error.category != "OperationTimeout":
            raise
        if TURN_OFF not in call.accept:
            message = f"The guest did not shut down within {call.within:g} s."
            raise own_error("GuestDidNotStop", "OperationTimeout", message) from None
        machine.stop_vm(guid, turn_off=True)


def _set_role(machine: Machine, call: SetCall) -> bool:
    if machine.is_client:
        return set_client_role(machine, call)
    names = {"role": ROLE, "tools": TOOLS}
    for state in call.desired.values():
        _one_of(state, "Installed", "Available")
    install = [names[name] for name, state in call.desired.items() if state == "installed"]
    remove = [names[name] for name, state in call.desired.items() if state == "available"]
    restart = bool(install) and machine.install_windows_feature(*install)
    return (bool(remove) and machine.uninstall_windows_feature(*remove)) or restart


def _set_place(machine: Machine, call: SetCall) -> bool:
    place, location = str(call.desired["place"]), call.key["location"]
    desired = owner(place)
    if desired is not None:
        _vm(machine, desired)
    elif place not in (ENABLED, DISABLED, DISMOUNTED):
        raise own_error("BadRequest", "InvalidArgument", f"{place} is no place.")
    taken = [vm.guid for vm in machine.vms.values() if vm.has(location) and vm.guid != desired]
    for guid in taken:
        machine.remove_vm_assignable_device(guid, location)
    if place in (ENABLED, DISABLED):
        _move_to_host(machine, call.key, place)
        return False
    _move_from_host(machine, call, place)
    if desired is not None and not machine.vms[desired].has(location):
        _give(machine, call, desired, taken)
    return False


def _give(machine: Machine, call: SetCall, desired: str, taken: Sequence[str]) -> None:
    location = call.key["location"]
    _device(machine, call.key)
    try:
        machine.add_vm_assignable_device(desired, location)
    except CmdletError:
        for guid in taken:
            with call.aside(f"{location} could not be given back to the VM that had it"):
                machine.add_vm_assignable_device(guid, location)
        raise


def _move_to_host(machine: Machine, key: Key, place: str) -> None:
    device = _device(machine, key)
    if device.dismounted:
        machine.mount_vm_host_assignable_device(device.location)
    if place == ENABLED and not device.enabled:
        machine.enable_pnp_device(device.instance)
    if place == DISABLED and device.enabled:
        machine.disable_pnp_device(device.instance)


def _move_from_host(machine: Machine, call: SetCall, place: str) -> None:
    gone = all(device.location != call.key["location"] for device in machine.devices)
    if place == DISMOUNTED and gone:
        return
    device = _device(machine, call.key)
    if device.dismounted:
        return
    if device.enabled:
        machine.disable_pnp_device(device.instance)
    machine.dismount_vm_host_assignable_device(device.location, force=FORCE in call.accept)


def _one_of(word: Json, *names: str) -> None:
    words = ["-".join(re.findall("[A-Z][a-z]*", name)).lower() for name in names]
    if word not in words:
        raise own_error("BadRequest", "InvalidArgument", f"{word} is none of {', '.join(names)}.")


def _vm(machine: Machine, guid: str) -> str:
    if guid not in machine.vms:
        raise own_error("NotFound", "ObjectNotFound", f"There is no VM {guid}.")
    return guid


def _device(machine: Machine, key: Key) -> Device:
    for device in machine.devices:
        if dict(device.key) == dict(key):
            return device
    raise own_error("NotFound", "ObjectNotFound", f"There is no {key['device']} at {key['location']}.")


SETTERS: Mapping[str, Setter] = {
    "HyperVRole": _set_role,
    "AssignableDevice": _set_place,
    "VmMmio": _set_mmio,
    "VmActions": _set_actions,
    "VmCheckpoints": _set_checkpoints,
    "VmMemory": _set_memory,
    "VmPower": _set_power,
    **SOFTWARE,
    **NETWORK,
    **account_changes.SETTERS,
    **distro_changes.SETTERS,
}

SENDERS: Mapping[str, Sender] = {"StagedFile": send_staged}
