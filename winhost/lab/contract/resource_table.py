"""Which methods of the simulated machine set which property of which resource: the cmdlets of the scripts, in order.

Values are checked before, as the resource type says; only what no value tells by itself is checked here.
"""

from collections.abc import Callable, Mapping
from functools import partial

from winhost.core.answers import Json
from winhost.lab.contract import (
    account_changes,
    disk_changes,
    distro_changes,
    installer_changes,
    nat_changes,
    network_changes,
    software_changes,
    vm_changes,
)
from winhost.lab.contract.device_changes import set_place
from winhost.lab.contract.seed_changes import set_seed
from winhost.lab.contract.set_call import SetCall, SetOnHost, UploadToHost
from winhost.lab.physics.feature_cmdlets import CLIENT_ROLE, CLIENT_TOOLS, PLATFORM, ROLE, TOOLS
from winhost.lab.physics.simulated_machine import Machine
from winhost.lab.physics.windows_errors import CmdletError, not_administrator, own_error, wrong_place
from winhost.lab.physics.windows_software import MODELS

TURN_OFF = "vm-turn-off"

# By property: the Windows feature.
_ROLE, _ROLE_OF_CLIENT = {"role": ROLE, "tools": TOOLS}, {"role": CLIENT_ROLE, "tools": CLIENT_TOOLS}


def _of_vm(method: Callable[..., None], **parameters: str) -> SetOnHost:
    """By property: the parameter of the cmdlet that sets it, one at a time."""

    def change(machine: Machine, asked: SetCall) -> None:
        for name, parameter in parameters.items():
            if name in asked.desired:
                method(machine, asked.key["vm"], **{parameter: asked.desired[name]})

    return change


def _set_power(machine: Machine, asked: SetCall) -> None:
    guid = asked.key["vm"]
    power = machine.vms[guid].power
    match asked.desired["state"]:
        case "off":
            _stop(machine, guid, asked)
        case "running" if power == "paused":
            machine.resume_vm(guid)
        case "running":
            machine.start_vm(guid)
        case "saved":
            machine.save_vm(guid)
        case "paused":
            machine.suspend_vm(guid)


def _stop(machine: Machine, guid: str, asked: SetCall) -> None:
    power = machine.vms[guid].power
    if power in ("saved", "paused"):
        raise wrong_place(f"The VM is {power.capitalize()}: start it, and shut it down from inside.")
    try:
        machine.stop_vm(guid, within=asked.within, stop=asked.stop)
    except CmdletError as error:
        if error.category != "OperationTimeout":
            raise
        if TURN_OFF not in asked.accept:
            message = f"The guest did not shut down within {asked.within:g} s."
            raise own_error("GuestDidNotStop", "OperationTimeout", message) from None
        machine.stop_vm(guid, turn_off=True)


def _set_role(machine: Machine, asked: SetCall) -> bool:
    if machine.is_client:
        return _set_optional_features(_ROLE_OF_CLIENT, machine, asked)
    states = {_ROLE[name]: state for name, state in asked.desired.items()}
    return _install(states, machine.install_windows_feature, machine.uninstall_windows_feature)


def _set_optional_features(names: Mapping[str, str], machine: Machine, asked: SetCall) -> bool:
    states = dict(sorted((names[name], state) for name, state in asked.desired.items()))
    for name in states:
        if name not in machine.optional_features:
            message = f"This edition of Windows has no feature {name}, or its files were removed."
            raise own_error("FeatureNotHere", "NotInstalled", message)
    return _install(states, machine.enable_windows_optional_feature, machine.disable_windows_optional_feature)


def _install(states: Mapping[str, Json], install: Callable[..., bool], remove: Callable[..., bool]) -> bool:
    coming = [name for name, state in states.items() if state == "installed"]
    going = [name for name, state in states.items() if state == "available"]
    restart = bool(coming) and install(*coming)
    return (bool(going) and remove(*going)) or restart


SET_ON_HOST: dict[str, SetOnHost] = {
    "HyperVRole": _set_role,
    "VirtualMachinePlatform": partial(_set_optional_features, {"feature": PLATFORM}),
    "AssignableDevice": set_place,
    "VmMmio": _of_vm(
        Machine.set_vm,
        low="low_memory_mapped_io_space",
        high="high_memory_mapped_io_space",
        cache="guest_controlled_cache_types",
    ),
    "VmActions": _of_vm(Machine.set_vm, stop="automatic_stop_action", start="automatic_start_action"),
    "VmCheckpoints": _of_vm(Machine.set_vm, kind="checkpoint_type", automatic="automatic_checkpoints_enabled"),
    "VmMemory": _of_vm(Machine.set_vm_memory, dynamic="dynamic_memory_enabled"),
    "VmPower": _set_power,
    "Partition": disk_changes.set_size,
    "OwnPartition": disk_changes.set_own_partition,
    "BitLocker": disk_changes.set_suspension,
    "KeyEscrow": disk_changes.set_escrow,
    "EfiBackup": disk_changes.set_backup,
    "OwnBootEntry": disk_changes.set_boot_entry,
    "FirmwareBoot": disk_changes.set_next,
    "RunningSystem": installer_changes.set_running,
    "UbuntuInstaller": installer_changes.set_installer,
    "NatSwitch": nat_changes.set_nat,
    "VmDisk": vm_changes.set_disk,
    "OwnVm": vm_changes.set_own_vm,
    "VmSeed": set_seed,
    "StagedFile": software_changes.set_staged,
    "Wsl": software_changes.set_wsl,
    "GpuDriverModel": software_changes.set_driver_model,
    "ExternalSwitch": network_changes.set_switch,
    "PortForward": network_changes.set_forward,
    "HyperVFirewall": network_changes.set_firewall,
    "LocalAccount": account_changes.set_account,
    "AccountRight": account_changes.set_right,
    "AccountTasks": account_changes.set_tasks,
    "WslConfig": account_changes.set_config,
    "WslDistro": distro_changes.set_distro,
    "WslVm": distro_changes.set_vm,
    "WslConf": distro_changes.set_conf,
    "WslAccess": distro_changes.set_access,
}

UPLOAD_TO_HOST: Mapping[str, UploadToHost] = {"StagedFile": software_changes.upload_staged}

# Their scripts refuse others before they look at values; elsewhere the cmdlets refuse them.
# What a part in physics/found changes is for administrators, too.
FOR_ADMINISTRATORS: Mapping[str, Callable[[], CmdletError]] = {
    "PortForward": partial(own_error, "NotAdministrator", "PermissionDenied", "Ports are forwarded by administrators."),
    "Partition": not_administrator,
    "OwnPartition": not_administrator,
    "Wsl": not_administrator,
    "GpuDriverModel": not_administrator,
}

# What is no place or size Hyper-V says, and not the script.
WITH_OTHER_VALUES = ("AssignableDevice", "VmMmio")

# What was there before comes back, also where no plan could ask for it.
BACK_TO: Mapping[str, tuple[Json, ...]] = {"Wsl": (None,), "GpuDriverModel": MODELS}
