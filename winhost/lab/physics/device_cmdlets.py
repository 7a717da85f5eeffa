"""Devices of a simulated Windows: how Plug and Play and Hyper-V take them from the host, and give them back."""

from winhost.lab.physics.cmdlet_host import CmdletHost
from winhost.lab.physics.parts import as_cmdlet
from winhost.lab.physics.pci_function import Device

_ASSIGNABLE_TYPES = (2, 3, 4)  # PCIe endpoint, legacy endpoint, root-complex endpoint


class DeviceCmdlets(CmdletHost):
    """Cmdlets of PnpDevice and, for devices of the host, of Hyper-V."""

    @as_cmdlet("Disable-PnpDevice", instance="InstanceId[]")
    def disable_pnp_device(self, instance: str) -> None:
        """By its instance id of the moment."""
        found = self._pnp(instance, "Disable-PnpDevice")
        if found.physics.in_use or found.dismounted:
            raise self.fail("pnp-failed", "Disable-PnpDevice")
        found.enabled = False

    @as_cmdlet("Enable-PnpDevice", instance="InstanceId[]")
    def enable_pnp_device(self, instance: str) -> None:
        """By its instance id of the moment."""
        found = self._pnp(instance, "Enable-PnpDevice")
        if found.dismounted:
            raise self.fail("pnp-failed", "Enable-PnpDevice")
        found.enabled = True

    def _pnp(self, instance: str, cmdlet: str) -> Device:
        for each in self.devices:
            if each.instance.casefold() == instance.casefold():
                return each
        raise self.fail("pnp-not-found", cmdlet, instance=instance)

    @as_cmdlet("Dismount-VMHostAssignableDevice", location="LocationPath", force="Force")
    def dismount_vm_host_assignable_device(self, location: str, *, force: bool = False) -> None:
        """`force` waives ACS and the manufacturer's mitigation driver, nothing else."""
        cmdlet = "Dismount-VMHostAssignableDevice"
        found = self._host_device(location, cmdlet, dismounted=False)
        if found.enabled or self._partitioned(found):
            raise self.fail("device-in-use", cmdlet, location=location)
        if not found.known_or("pcie_control", True):
            raise self.fail("no-pcie-control", cmdlet)
        if _cannot_be_given(found):
            raise self.fail("not-assignable", cmdlet, location=location)
        if not force and not found.known_or("acs", None):
            raise self.fail("no-acs", cmdlet)
        if not force and not found.physics.mitigation_driver:
            raise self.fail("no-mitigation", cmdlet)
        found.dismounted, found.forced = True, force

    @as_cmdlet("Mount-VMHostAssignableDevice", location="LocationPath")
    def mount_vm_host_assignable_device(self, location: str) -> None:
        """It comes back under another instance id, disabled if it was. A VM that claims it is left with nothing."""
        cmdlet = "Mount-VMHostAssignableDevice"
        found = self._host_device(location, cmdlet, dismounted=True)
        if any(vm.has(location) and vm.power != "off" for vm in self.vms.values()):
            raise self.fail("device-in-use", cmdlet, location=location)
        found.dismounted, found.forced = False, False
        found.numbered += 1

    def _host_device(self, location: str, cmdlet: str, *, dismounted: bool) -> Device:
        if not self.manages_vms:
            raise self.fail("no-module", cmdlet)
        for each in self.devices:
            if each.location == location and each.dismounted is dismounted:
                return each
        raise self.fail("device-not-on-server", cmdlet)

    def _partitioned(self, found: Device) -> bool:
        """A GPU that was split is no device to give away. Client Windows knows one count, meaning that it is whole."""
        interface = found.instance.replace("\\", "#").casefold()
        states = [r.state for r in self._initial.get("PartitionableGpu", ()) if interface in r.key["gpu"].casefold()]
        return any(state["used"] or state["partitions"] > min(state["valid_counts"]) for state in states)


def _cannot_be_given(found: Device) -> bool:
    known_type = found.known_or("device_type", _ASSIGNABLE_TYPES[0]) in _ASSIGNABLE_TYPES
    return bool(found.known_or("rmrr", False) or found.known_or("line_interrupts_only", False) or not known_type)
