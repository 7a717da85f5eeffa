"""Which methods of the simulated machine set which property of which resource: the cmdlets of the scripts, in order.

Values are checked before, as the resource type says; only what no value tells by itself is checked here.
"""

from collections.abc import Callable, Mapping

from winhost.core.answers import Json, Key
from winhost.lab.contract import (
    disk_changes,
    installer_changes,
)
from winhost.lab.physics.parts import SetCall
from winhost.lab.physics.simulated_machine import Machine
from winhost.lab.physics.windows_software import MODELS

TURN_OFF = "vm-turn-off"

SetOnHost = Callable[[Machine, SetCall], bool | None]
UploadToHost = Callable[[Machine, Key, Mapping[str, Json] | None], Mapping[str, Json]]
"""Takes a piece, or none; tells how much was received. Raises CmdletError."""

SET_ON_HOST: dict[str, SetOnHost] = {
    "Partition": disk_changes.set_size,
    "OwnPartition": disk_changes.set_own_partition,
    "BitLocker": disk_changes.set_suspension,
    "KeyEscrow": disk_changes.set_escrow,
    "EfiBackup": disk_changes.set_backup,
    "OwnBootEntry": disk_changes.set_boot_entry,
    "FirmwareBoot": disk_changes.set_next,
    "RunningSystem": installer_changes.set_running,
    "UbuntuInstaller": installer_changes.set_installer,
}

# What is no place or size Hyper-V says, and not the script.
WITH_OTHER_VALUES = ("AssignableDevice", "VmMmio")

# What was there before comes back, also where no plan could ask for it.
BACK_TO: Mapping[str, tuple[Json, ...]] = {"Wsl": (None,), "GpuDriverModel": MODELS}
