"""Ubuntu's installer on a simulated machine: it fetches its settings over HTTP, and runs the guard's checks."""

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


def run_installer(machine: Machine) -> InstalledLinux | None:
    """Install Ubuntu. Return None if it cannot fetch its settings, or the guard refuses: then Windows starts again."""
    settings = _fetch_settings(machine)
    if settings is None or not machine_matches_order(machine, settings["guard"]) or not settings_match_order(settings):
        return None
    data = settings["autoinstall"]["user-data"]
    (admin,) = data["users"]
    _install(machine, settings["guard"])
    return InstalledLinux(
        data["hostname"], data["ssh_keys"]["ed25519_private"], admin["name"], tuple(admin["ssh_authorized_keys"])
    )


def _fetch_settings(machine: Machine) -> Mapping[str, Any] | None:
    record = machine.own_vms.stored_record("partition", "staging")
    ticket = machine.part(Disks).read_file(str(record["partition"]), TICKET) if record else None
    if ticket is None:
        return None
    order = json.loads(ticket)
    try:
        settings: Mapping[str, Any] = json.loads(fetch(order["url"], order["sha256"]))
    except (SettingsRefused, OSError, HTTPException):
        return None
    return settings


def machine_matches_order(machine: Machine, order: _Order) -> bool:
    """Tell whether the machine and its one disk are those that the guard expects."""
    (expected,) = order["disks"]
    disks = machine.part(Disks)
    matches = [each for each in disks.disks if each.state["guid"] == expected["guid"]]
    host = str(machine.instances("OperatingSystem")[0].state["machine_id"]).lower()
    if order["machine"]["uuid"] != host or len(matches) != 1 or matches[0].state["size"] != expected["size"]:
        return False
    present = {
        (guid, state["offset"], state["size"], state["type"])
        for guid, state in disks.partitions.items()
        if state["disk"] == expected["guid"]
    }
    expected_partitions = {
        (each["guid"], each["offset"], each["size"], each["type"]) for each in expected["partitions"]
    }
    target = next(each["guid"] for each in expected["partitions"] if each["role"] == "target")
    return present == expected_partitions and disks.labels.get(target, ("", ""))[1] == expected["label"]


def settings_match_order(settings: Mapping[str, Any]) -> bool:
    """Tell whether the settings run the guard, and change the disk only as its order says."""
    try:
        check_commands(settings["autoinstall"], FETCHED)
        check_storage(settings["autoinstall"], section_of(settings["guard"]))
    except GuardStop:
        return False
    return True


def _install(machine: Machine, order: _Order) -> None:
    """Format the target, write the boot loader to the ESP, and add a boot entry behind Windows, to be started next."""
    (expected,) = order["disks"]
    disks, boot = machine.part(Disks), machine.part(FirmwarePart).boot
    target = next(each["guid"] for each in expected["partitions"] if each["role"] == "target")
    disks.labels[target] = ("ext4", "")
    for path in _LOADERS:
        disks.write_file(
            order["linux_esp"], path, encode_placeholder(sha256(f"{target}{path}".encode()).hexdigest(), 1)
        )
    mark = f"{expected['label']}\n".encode()
    disks.write_file(order["linux_esp"], MARK, encode_placeholder(sha256(mark).hexdigest(), len(mark)))
    path = f"\\{SHIM}"
    existing = [e["entry"] for e in boot["entries"] if (e["path"], e["partition"]) == (path, order["linux_esp"])]
    number = existing[0] if existing else next(n for each in range(1, 256) if (n := f"{each:04X}") not in boot["order"])
    if not existing:
        entry = {
            "entry": number,
            "description": "ubuntu",
            "active": True,
            "partition": order["linux_esp"],
            "path": path,
        }
        boot["entries"] = [*boot["entries"], entry]
    windows = next(each["entry"] for each in boot["entries"] if each["path"] == WINDOWS_LOADER)
    boot["order"] = list(dict.fromkeys([windows, *boot["order"], number]))
    boot["next"] = number
