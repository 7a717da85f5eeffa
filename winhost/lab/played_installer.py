"""Ubuntu's installer on a simulated machine: it really fetches its settings, and compares as the guard does."""

import json
from collections.abc import Mapping
from hashlib import sha256
from http.client import HTTPException
from typing import Any

from winhost.autoinstall.fetch_settings import SettingsRefused, fetch
from winhost.autoinstall.install_plan import FETCHED
from winhost.autoinstall.installer_storage import GuardStop, check_commands, check_storage, section_of
from winhost.lab.physics.disks import Disks, encode_placeholder
from winhost.lab.physics.firmware import WINDOWS_LOADER, FirmwarePart
from winhost.lab.physics.installer import MARK, TICKET
from winhost.lab.physics.simulated_machine import InstalledLinux, Machine

SHIM = "EFI\\ubuntu\\shimx64.efi"
_LOADERS = (SHIM, "EFI\\ubuntu\\grubx64.efi", "EFI\\ubuntu\\grub.cfg")
_Order = Mapping[str, Any]


def play_installer(machine: Machine) -> InstalledLinux | None:
    """Install Ubuntu; None where it stops and Windows starts again: without settings, or when the guard refuses."""
    settings = _settings(machine)
    if settings is None or not as_ordered(machine, settings["guard"]) or not writes_as_ordered(settings):
        return None
    data = settings["autoinstall"]["user-data"]
    (admin,) = data["users"]
    _install(machine, settings["guard"])
    return InstalledLinux(
        data["hostname"], data["ssh_keys"]["ed25519_private"], admin["name"], tuple(admin["ssh_authorized_keys"])
    )


def _settings(machine: Machine) -> Mapping[str, Any] | None:
    record = machine.own_vms.stored_record("partition", "staging")
    ticket = machine.part(Disks).read_file(str(record["partition"]), TICKET) if record else None
    if ticket is None:
        return None
    told = json.loads(ticket)
    try:
        found: Mapping[str, Any] = json.loads(fetch(told["url"], told["sha256"]))
    except (SettingsRefused, OSError, HTTPException):
        return None
    return found


def as_ordered(machine: Machine, order: _Order) -> bool:
    """Tell whether the machine and its one disk are exactly those that the guard expects."""
    (wanted,) = order["disks"]
    disks = machine.part(Disks)
    those = [each for each in disks.disks if each.state["guid"] == wanted["guid"]]
    host = str(machine.instances("OperatingSystem")[0].state["machine_id"]).lower()
    if order["machine"]["uuid"] != host or len(those) != 1 or those[0].state["size"] != wanted["size"]:
        return False
    there = {
        (guid, state["offset"], state["size"], state["type"])
        for guid, state in disks.partitions.items()
        if state["disk"] == wanted["guid"]
    }
    listed = {(each["guid"], each["offset"], each["size"], each["type"]) for each in wanted["partitions"]}
    target = next(each["guid"] for each in wanted["partitions"] if each["role"] == "target")
    return there == listed and disks.labels.get(target, ("", ""))[1] == wanted["label"]


def writes_as_ordered(settings: Mapping[str, Any]) -> bool:
    """Tell whether the installer would treat the disk as the guard's order says, and run the guard at all."""
    try:
        check_commands(settings["autoinstall"], FETCHED)
        check_storage(settings["autoinstall"], section_of(settings["guard"]))
    except GuardStop:
        return False
    return True


def _install(machine: Machine, order: _Order) -> None:
    """Give the target to Ubuntu, its loader to the ESP, and the firmware an entry after Windows, to be started next."""
    (wanted,) = order["disks"]
    disks, boot = machine.part(Disks), machine.part(FirmwarePart).boot
    target = next(each["guid"] for each in wanted["partitions"] if each["role"] == "target")
    disks.labels[target] = ("ext4", "")
    for path in _LOADERS:
        disks.write_file(
            order["linux_esp"], path, encode_placeholder(sha256(f"{target}{path}".encode()).hexdigest(), 1)
        )
    mark = f"{wanted['label']}\n".encode()
    disks.write_file(order["linux_esp"], MARK, encode_placeholder(sha256(mark).hexdigest(), len(mark)))
    path = f"\\{SHIM}"
    known = [e["entry"] for e in boot["entries"] if (e["path"], e["partition"]) == (path, order["linux_esp"])]
    number = known[0] if known else next(n for each in range(1, 256) if (n := f"{each:04X}") not in boot["order"])
    if not known:
        made = {
            "entry": number,
            "description": "ubuntu",
            "active": True,
            "partition": order["linux_esp"],
            "path": path,
        }
        boot["entries"] = [*boot["entries"], made]
    windows = next(each["entry"] for each in boot["entries"] if each["path"] == WINDOWS_LOADER)
    boot["order"] = list(dict.fromkeys([windows, *boot["order"], number]))
    boot["next"] = number
