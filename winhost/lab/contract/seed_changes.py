"""What the script of seeds does, on a simulated host."""

import gzip
import struct
from base64 import b64decode
from collections.abc import Mapping
from uuid import UUID

from winhost.core.answers import Json
from winhost.images.seed import HOST_KEYS, filled
from winhost.lab.contract.vm_changes import vm_name
from winhost.lab.physics.own_vms import Kept
from winhost.lab.physics.parts import SetCall
from winhost.lab.physics.simulated_machine import Machine
from winhost.lab.physics.virtual_machine import VirtualMachine
from winhost.lab.physics.windows_errors import bad_request, not_ours, own_error, wrong_place
from winhost.resources.windows.vm_seed import ATTACHED, NONE, RETIRED

_KEYGEN = ("-q", "-t", "ed25519", "-N", "", "-C", "winhost", "-f")
_MADE_WITH = ("user", "address", "template")


def set_seed(machine: Machine, asked: SetCall) -> None:
    """Put into the VM, known by other keys, taken out, or forgotten. Raises CmdletError."""
    name, desired = vm_name(asked.key), asked.desired
    record = machine.own_vms.read("seed", name)
    if desired.get("stage") == NONE:
        if record is not None:
            _take_out(machine, name, record)
            machine.own_vms.write("seed", name, None)
        return
    if desired.get("stage") == ATTACHED:
        _put_in(machine, name, record, desired)
        return
    if record is None or not record["complete"]:
        raise wrong_place(f"winhost made no seed for {name}.")
    if any(part in desired for part in _MADE_WITH):
        raise wrong_place("The seed was made already, with others: take it away first.")
    if "host_keys" in desired:
        record = {**record, "host_keys": list(desired["host_keys"])}
        machine.own_vms.write("seed", name, record)
    if desired.get("stage") == RETIRED:
        _take_out(machine, name, record)
        machine.own_vms.write("seed", name, {**record, "retired": True})


def _put_in(machine: Machine, name: str, record: Kept | None, desired: Mapping[str, Json]) -> None:
    if desired.get("user") is None or desired.get("template") is None:
        raise bad_request("A seed is made of a template, for a user.")
    if "host_keys" in desired:
        raise bad_request("The host key is made with the seed.")
    ours = machine.own_vms
    vm = ours.of_ours(name, ours.read("vm", name))
    if vm.power != "off":
        raise wrong_place(f"The VM is {vm.power.capitalize()}: its Linux reads a seed on its first start only.")
    _check_free(machine, vm, desired.get("address"))
    folder = f"{ours.store}\\{name}"
    path = f"{folder}\\seed.iso"
    if record is None and machine.files.read(path) is not None:
        raise not_ours(f"There is a {path} that winhost did not make.")
    machine.files.make_folders(folder)
    given = {part: desired.get(part) for part in _MADE_WITH}
    mine: Kept = {"path": path, **given, "host_keys": [], "complete": False, "retired": False}
    ours.write("seed", name, mine)
    machine.files.remove(path)
    private, public = _new_host_key(machine, f"{folder}\\seed.key")
    disc = _filled(str(desired["template"]), vm, private, public)
    machine.files.write(path, b"")
    machine.files.give_rights(path, f"O:BAD:P(A;;FA;;;SY)(A;;FA;;;BA)(A;;FR;;;{_sid(vm)})")
    machine.files.write(path, disc)
    usable = [found for found in (path, "") if found in vm.dvds]
    if usable:
        machine.set_vm_dvd_drive(vm.guid, usable[0], path)
    else:
        machine.add_vm_dvd_drive(vm.guid, path)
    ours.write("seed", name, {**mine, "host_keys": [public], "complete": True})


def _check_free(machine: Machine, vm: VirtualMachine, address: Json) -> None:
    """By ping, and by who has told his MAC address."""
    asked = str(address).partition("/")[0]
    macs = [mac.replace("-", "") for known, mac in machine.neighbours() if known == asked]
    if address is not None and (machine.answers_ping(asked) or any(mac != vm.mac for mac in macs)):
        said = f"Somebody in the network has the address {asked} already."
        raise own_error("AddressTaken", "ResourceExists", said)


def _new_host_key(machine: Machine, path: str) -> tuple[str, str]:
    """Private and public; nothing of them stays on disk."""
    code = machine.run_ssh_keygen([*_KEYGEN, path])
    if code is None:
        why = (
            "This host has no ssh-keygen.exe, which makes the key of the guest. Install it: "
            "Add-WindowsCapability -Online -Name OpenSSH.Client~~~~0.0.1.0"
        )
        raise own_error("NoSshKeygen", "NotInstalled", why)
    made = [(machine.files.read(each) or b"").decode("ascii") for each in (path, f"{path}.pub")]
    for each in (path, f"{path}.pub"):
        machine.files.remove(each)
    return made[0], made[1].removesuffix(" winhost\n")


def _filled(template: str, vm: VirtualMachine, private: str, public: str) -> bytes:
    disc = gzip.decompress(b64decode(template))
    if HOST_KEYS not in disc:
        raise bad_request("The template has no room for the key.")
    return filled(disc, vm.guid, private, public)


def _sid(vm: VirtualMachine) -> str:
    """Of NT VIRTUAL MACHINE\\<id>."""
    return "-".join(map(str, ("S-1-5-83-1", *struct.unpack("<4I", UUID(vm.guid).bytes_le))))


def _take_out(machine: Machine, name: str, record: Kept) -> None:
    path = str(record["path"])
    if not path.casefold().endswith(f"\\winhost\\{name}\\seed.iso"):
        raise not_ours(f"{path} is in no folder of winhost's.")
    vm = machine.own_vms.seeded(name)
    if vm is not None and path in vm.dvds:
        machine.set_vm_dvd_drive(vm.guid, path, "")
    for each in ("seed.iso", "seed.key", "seed.key.pub"):
        machine.files.remove(path.removesuffix("seed.iso") + each)
