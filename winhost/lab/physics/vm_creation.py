"""Cmdlets that make and remove VMs and their disks, and the cloud-init seed that a guest reads.

Sources: the reference of module Hyper-V, and public reports of failures of Generation 2 VMs with Linux.
"""

import io
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Any
from uuid import NAMESPACE_OID, uuid5

import yaml

from winhost.core.answers import Json
from winhost.core.dataclass import dataclass
from winhost.lab.physics.lab_section import DiskPhysics
from winhost.lab.physics.parts import as_cmdlet
from winhost.lab.physics.ssh_keys import private_text, public_line
from winhost.lab.physics.virtual_machine import VirtualMachine
from winhost.lab.physics.vm_cmdlets import VmCmdlets
from winhost.lab.physics.windows_files import Files
from winhost.lab.physics.windows_network import Network
from winhost.lab.physics.windows_software import Software
from winhost.model.once import once
from winhost.model.units import GiB, MiB


@dataclass(frozen=True)
class GuestDisc:
    """The seed that a guest reads. private_key, public_key: its SSH host key; address: with prefix, None for DHCP."""

    instance: str
    hostname: str
    user: str
    keys: Sequence[str]
    private_key: str
    public_key: str
    mac: str
    address: str | None


_LABEL = slice(16 * 2048 + 40, 16 * 2048 + 72)
"""The position of the label in the first volume descriptor of ISO 9660."""


def is_for_cloud_init(image: bytes) -> bool:
    """Tell whether an image is a NoCloud seed, which cloud-init recognizes by the label alone."""
    return image[_LABEL].rstrip() == b"CIDATA"


@once
def read_disc(image: bytes) -> GuestDisc:
    """Parse a NoCloud seed. Raises the errors of the libraries for any other image."""
    files = _read_files(image)
    meta, user_data = files["meta-data"], files["user-data"]
    (adapter,) = files["network-config"]["ethernets"].values()
    (user,) = user_data["users"]
    return GuestDisc(
        instance=meta["instance-id"],
        hostname=meta["local-hostname"],
        user=user["name"],
        keys=tuple(user["ssh_authorized_keys"]),
        private_key=user_data["ssh_keys"]["ed25519_private"],
        public_key=user_data["ssh_keys"]["ed25519_public"],
        mac=adapter["match"]["macaddress"],
        address=next(iter(adapter.get("addresses", ())), None),
    )


def _read_files(image: bytes) -> Mapping[str, Any]:
    import pycdlib

    assert is_for_cloud_init(image)
    iso = pycdlib.PyCdlib()
    iso.open_fp(io.BytesIO(image))
    contents = {}
    for name in ("meta-data", "user-data", "network-config"):
        content = io.BytesIO()
        iso.get_file_from_iso_fp(content, rr_path=f"/{name}")
        contents[name] = yaml.safe_load(content.getvalue())
    iso.close()
    return contents


LINUX_TEMPLATE = "272e7447-90a4-4563-a4b9-8e4ab00526ce"
TEMPLATES = {
    "1734c6e8-3154-4dda-ba5f-a874cc483422": "MicrosoftWindows",
    LINUX_TEMPLATE: "MicrosoftUEFICertificateAuthority",
}
_MAX_DISK_BYTES = 64 << 40
_IMAGE_BYTES = 2400 * MiB  # the size of an Ubuntu image as VHDX; an assumption of the simulator
# The traits of a VM that New-VM of Windows Server 2025 makes, without its name.
_NEW_VM_TRAITS: dict[str, Json] = {
    "generation": 2,
    "version": "12.0",
    "nested": False,
    "clustered": False,
    "checkpoints": 0,
    "secure_boot": True,
    "secure_boot_template": "MicrosoftWindows",
    "partitions": 0,
}


class VmCreation(VmCmdlets):
    """Cmdlets of module Hyper-V that make VMs and disks."""

    files: Files
    network: Network
    software: Software
    _created_vms = 0
    _created_keys = 0

    # ---- disks

    def virtual_disk(self, path: str) -> DiskPhysics:
        """Get-VHD: return the physics of a virtual disk with its present size."""
        physics = self.lab.new_vms.disks.get(self.software.read_hash(path), DiskPhysics())
        return physics.model_copy(update={"size": self.files.disk_sizes.get(path.casefold(), physics.size)})

    def test_vhd(self, path: str) -> bool:
        """Check a disk, whose file grows with what guests write from then on. Raises CmdletError if it is damaged."""
        if not self.virtual_disk(path).sound:
            raise self.windows_error("damaged-disk", "Test-VHD", path=path)
        self.files.set_length(
            path, lambda: _IMAGE_BYTES + sum(vm.guest_bytes() for vm in self.vms.values() if path in vm.disks)
        )
        return True

    @as_cmdlet("Resize-VHD", path="Path[]", size="SizeBytes")
    def resize_vhd(self, path: str, size: int) -> None:
        """Make a disk larger."""
        fits = self.virtual_disk(path).size <= size <= _MAX_DISK_BYTES and size % MiB == 0
        self._require(fits, "Resize-VHD", "SizeBytes", size)
        self.files.disk_sizes[path.casefold()] = size

    def attributes(self, path: str) -> list[str]:
        """Return the attributes of a file or folder that Hyper-V does not support for disks."""
        is_in_store = path.casefold().startswith(self.lab.new_vms.store.casefold())
        return list(self.lab.new_vms.attributes) if is_in_store else []

    # ---- VMs

    @as_cmdlet("New-VM")
    def new_vm(self, name: str, memory: int, path: str) -> VirtualMachine:
        """Make a VM of generation 2 without a disk. Its network adapter is not connected."""
        if not self.manages_vms:
            raise self.windows_error("no-module", "New-VM")
        self._require(memory % (2 * MiB) == 0 and memory >= 32 * MiB, "New-VM", "MemoryStartupBytes", memory)
        self._created_vms += 1
        guid = str(uuid5(NAMESPACE_OID, f"{self.name} {name} {self._created_vms}"))
        made = VirtualMachine(
            guid,
            {**_NEW_VM_TRAITS, "name": name},
            startup=memory,
            path=f"{path}\\{name}",
            automatic_checkpoints=self.is_client,
            maximum=1024 * GiB,
            dvd_files=list(self.lab.new_vms.discs),
        )
        self.vms[guid] = made
        return made

    @as_cmdlet("Remove-VM", "!Force", guid="VM[].Id")
    def remove_vm(self, guid: str) -> None:
        """Remove the definition of a VM; its disks stay."""
        self._find_vm_in_state(("off", "saved"), guid, "Remove-VM")
        del self.vms[guid]

    @as_cmdlet("Set-VMFirmware")
    def set_vm_secure_boot(self, guid: str, *, on: bool, template: str | None = None) -> None:
        """Set Secure Boot. template: its id; a host that does not have the template keeps the present one."""
        vm = self._find_vm_in_state(("off",), guid, "Set-VMFirmware")
        keeps_template = template is None or self.lab.new_vms.refuses_template
        template_traits = {} if keeps_template else {"secure_boot_template": TEMPLATES[str(template)]}
        vm.traits = {**vm.traits, "secure_boot": on, **template_traits}

    @as_cmdlet("Add-VMHardDiskDrive", guid="VM[].Id", path="Path")
    def add_vm_hard_disk_drive(self, guid: str, path: str) -> None:
        self._find_vm(guid, "Add-VMHardDiskDrive").disks.append(path)

    @as_cmdlet("Add-VMDvdDrive", guid="VM[].Id", path="Path")
    def add_vm_dvd_drive(self, guid: str, path: str) -> None:
        self._find_vm(guid, "Add-VMDvdDrive").dvd_files.append(path)

    @as_cmdlet("Set-VMDvdDrive", guid="VMDvdDrive[].VMId", current="VMDvdDrive[].Path", path="Path")
    def set_vm_dvd_drive(self, guid: str, current: str, path: str | None) -> None:
        """Change the file in a DVD drive. current: the present file; path: the new one, None to eject it."""
        vm = self._find_vm(guid, "Set-VMDvdDrive")
        vm.dvd_files[vm.dvd_files.index(current)] = path or ""

    # ---- the guest

    def _power_on(self, vm: VirtualMachine) -> None:
        """Start a VM. On a cold start, note the seed that is in a drive."""
        is_cold_start = vm.power == "off"
        super()._power_on(vm)
        if is_cold_start:
            disc_contents = (self.files.read(path) for path in vm.dvd_files if path)
            vm.seeds_at_starts.append(next((disc for disc in disc_contents if disc and is_for_cloud_init(disc)), None))

    def disc_of(self, vm: VirtualMachine) -> GuestDisc | None:
        """Return the seed that the Linux on the VM's disk read at its first start, or None."""
        linux = any(self.virtual_disk(path).linux for path in vm.disks)
        return read_disc(vm.seeds_at_starts[0]) if linux and vm.seeds_at_starts and vm.seeds_at_starts[0] else None

    def neighbours(self) -> Iterator[tuple[str, str]]:
        """Get-NetNeighbor: yield the addresses that the host has seen, each with its MAC as Windows writes it."""
        yield "192.0.2.1", "00-00-5E-00-01-01"
        for number, address in enumerate(self.lab.new_vms.others):
            yield address, f"00-00-5E-00-02-{number:02X}"
        for vm in self.vms.values():
            disc = self.disc_of(vm) if vm.power == "running" else None
            if disc is not None:
                mac = "-".join(vm.mac[start : start + 2] for start in range(0, 12, 2))
                yield (disc.address or self.lab.new_vms.lease).partition("/")[0], mac

    def answers_ping(self, address: str) -> bool:
        """Test-Connection: tell whether an address answers a ping."""
        return self.lab.new_vms.others.get(address, False)

    def run_ssh_keygen(self, arguments: Sequence[str]) -> int | None:
        """Write a key pair to two files; return the exit code, or None if the host has no ssh-keygen.exe."""
        if not self.lab.new_vms.ssh_keygen:
            return None
        path = arguments[arguments.index("-f") + 1]
        self._created_keys += 1
        seed = sha256(f"{self.name} {path} {self._created_keys}".encode()).digest()
        self.files.write(path, private_text(seed).encode("ascii"))
        self.files.write(f"{path}.pub", f"{public_line(seed)} winhost\n".encode("ascii"))
        return 0
