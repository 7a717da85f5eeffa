"""How a simulated Hyper-V makes VMs and their disks, and takes them away.

What it rests on: the reference of module Hyper-V, and public reports of what hinders Generation 2 VMs with Linux.
"""

from dataclasses import dataclass
from uuid import NAMESPACE_OID, uuid5

from winhost.core.answers import Json
from winhost.lab.physics.cmdlet_host import as_cmdlet
from winhost.lab.physics.lab_section import DiskPhysics
from winhost.lab.physics.virtual_machine import VirtualMachine
from winhost.lab.physics.vm_cmdlets import VmCmdlets
from winhost.lab.physics.windows_files import Files
from winhost.lab.physics.windows_network import Network
from winhost.lab.physics.windows_software import Software
from winhost.model.units import GiB, MiB

TEMPLATES = {
    "1734c6e8-3154-4dda-ba5f-a874cc483422": "MicrosoftWindows",
    "272e7447-90a4-4563-a4b9-8e4ab00526ce": "MicrosoftUEFICertificateAuthority",
}
_LARGEST = 64 << 40
# The traits of a VM that New-VM makes of a Windows Server 2025: resource Vm, but for its name.
_NEW: dict[str, Json] = {
    "generation": 2,
    "version": "12.0",
    "nested": False,
    "clustered": False,
    "checkpoints": 0,
    "secure_boot": True,
    "secure_boot_template": "MicrosoftWindows",
    "partitions": 0,
}


@dataclass
class VirtualDisk:
    """A file of Hyper-V: bytes that a guest sees, and what it was made as."""

    size: int
    physics: DiskPhysics


class VmMaking(VmCmdlets):
    """Cmdlets of module Hyper-V that make VMs and disks."""

    files: Files
    network: Network
    software: Software
    _made = 0

    # ---- disks

    def virtual_disk(self, path: str, cmdlet: str) -> VirtualDisk:
        """Get-VHD. Raises CmdletError."""
        found = self.software.read_hash(path)
        physics = self.lab.new_vms.disks.get(found, DiskPhysics())
        if not found:
            raise self.fail("no-such-disk", cmdlet, path=path)
        return VirtualDisk(self._resized.get(path.casefold(), physics.size), physics)

    @property
    def _resized(self) -> dict[str, int]:
        """By path, of those that Resize-VHD changed; made with the first."""
        kept: dict[str, int] = self.__dict__.setdefault("_grown", {})
        return kept

    def test_vhd(self, path: str) -> bool:
        """Raises CmdletError for one that is damaged."""
        if not self.virtual_disk(path, "Test-VHD").physics.sound:
            raise self.fail("damaged-disk", "Test-VHD", path=path)
        return True

    @as_cmdlet("Resize-VHD")
    def resize_vhd(self, path: str, size: int) -> None:
        """Larger only."""
        disk = self.virtual_disk(path, "Resize-VHD")
        self._require(disk.size <= size <= _LARGEST and size % MiB == 0, "Resize-VHD", "SizeBytes", size)
        self._resized[path.casefold()] = size

    def attributes(self, path: str) -> list[str]:
        """Of a file or a folder, those that Hyper-V minds."""
        inside = path.casefold().startswith(self.lab.new_vms.store.casefold())
        return list(self.lab.new_vms.attributes) if inside else []

    # ---- VMs

    @as_cmdlet("New-VM")
    def new_vm(self, name: str, memory: int, path: str) -> VirtualMachine:
        """Generation 2, without a disk, with an adapter that is on no switch."""
        if not self.manages_vms:
            raise self.fail("no-module", "New-VM")
        self._require(memory % (2 * MiB) == 0 and memory >= 32 * MiB, "New-VM", "MemoryStartupBytes", memory)
        self._made += 1
        guid = str(uuid5(NAMESPACE_OID, f"{self.name} {name} {self._made}"))
        made = VirtualMachine(
            guid,
            {**_NEW, "name": name},
            startup=memory,
            path=f"{path}\\{name}",
            automatic_checkpoints=self.is_client,
            maximum=1024 * GiB,
        )
        self.vms[guid] = made
        return made

    @as_cmdlet("Remove-VM")
    def remove_vm(self, guid: str) -> None:
        """Its definition; disks stay."""
        self._vm_in(("off", "saved"), guid, "Remove-VM")
        self.network.vm_ports.pop(guid, None)
        del self.vms[guid]

    @as_cmdlet("Set-VMProcessor")
    def set_vm_processor(self, guid: str, count: int) -> None:
        threads = sum(int(each.state["threads"]) for each in self.instances("Processor"))
        self._require(count <= threads, "Set-VMProcessor", "Count", count)
        self._vm_in(("off",), guid, "Set-VMProcessor").cpus = count

    @as_cmdlet("Set-VMMemory")
    def set_vm_startup_memory(self, guid: str, startup: int) -> None:
        """Static."""
        vm = self._vm_in(("off",), guid, "Set-VMMemory")
        vm.dynamic_memory, vm.startup = False, startup

    @as_cmdlet("Set-VMComPort")
    def set_vm_com_port(self, guid: str, path: str) -> None:
        """COM1."""
        self._vm(guid, "Set-VMComPort").com1 = path

    @as_cmdlet("Set-VMFirmware")
    def set_vm_secure_boot(self, guid: str, *, on: bool, template: str | None = None) -> None:
        """template: by its id. A host that does not know it goes on with the one that was set."""
        vm = self._vm_in(("off",), guid, "Set-VMFirmware")
        refused = template is None or self.lab.new_vms.refuses_template
        named = {} if refused else {"secure_boot_template": TEMPLATES[str(template)]}
        vm.traits = {**vm.traits, "secure_boot": on, **named}

    @as_cmdlet("Set-VMFirmware")
    def set_vm_first_boot(self, guid: str, disk: str) -> None:
        self._vm_in(("off",), guid, "Set-VMFirmware").boots_from = disk

    @as_cmdlet("Add-VMHardDiskDrive")
    def add_vm_hard_disk_drive(self, guid: str, path: str) -> None:
        vm = self._vm(guid, "Add-VMHardDiskDrive")
        self.virtual_disk(path, "Add-VMHardDiskDrive")
        if any(path.casefold() == each.casefold() for other in self.vms.values() for each in other.disks):
            raise self.fail("disk-in-use", "Add-VMHardDiskDrive", path=path)
        vm.disks.append(path)

    @as_cmdlet("Set-VMNetworkAdapter")
    def set_vm_mac(self, guid: str, mac: str) -> None:
        """Static, which only a VM that is off takes."""
        self._vm_in(("off",), guid, "Set-VMNetworkAdapter").mac = mac

    @as_cmdlet("Set-VMNetworkAdapterVlan")
    def set_vm_vlan(self, guid: str, vlan: int | None) -> None:
        self._vm(guid, "Set-VMNetworkAdapterVlan").vlan = vlan

    @as_cmdlet("Connect-VMNetworkAdapter")
    def connect_vm(self, guid: str, switch: str) -> None:
        self._vm(guid, "Connect-VMNetworkAdapter").switch = switch
        self.network.vm_ports[guid] = switch
