"""Shows a simulated host to cmdlets that only look: CIM, Plug and Play, registry, services, programs.

It is the reverse of what the scripts of the resources do: from the resources back to what Windows would have shown
them. Around the GPUs stands what is on every machine (bridges, a network card), so that scripts have to choose.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import Any

from winhost.core.answers import Json
from winhost.core.dataclass import dataclass
from winhost.lab.physics.host_state import HostState, known_or
from winhost.lab.physics.virtual_machine import Device
from winhost.lab.physics.windows_errors import FileTime, Properties, WindowsObject, of_type
from winhost.lab.physics.windows_software import PRODUCT, drives
from winhost.model.units import MiB


def _state(machine: HostState, resource: str) -> Properties:
    """The one state of a resource without key; what could not be read is left out."""
    records = machine.instances(resource)
    return {n: v for n, v in records[0].state.items() if not isinstance(v, Mapping)} if records else {}


# ---- CIM


def cim(machine: HostState, class_name: str) -> list[WindowsObject] | None:
    """All instances of a CIM class, or None where this Windows has no such class."""
    makers = {
        "Win32_BIOS": _bios,
        "Win32_ComputerSystem": _computer_system,
        "Win32_ComputerSystemProduct": _product,
        "Win32_DeviceGuard": _device_guard,
        "Win32_DeviceMemoryAddress": _memory_addresses,
        "Win32_OperatingSystem": _operating_system,
        "Win32_PnPAllocatedResource": _allocated,
        "Win32_Processor": _processors,
    }
    if maker := makers.get(class_name):
        return list(maker(machine))
    of_a_part = machine.cim_classes.get(class_name)
    return None if of_a_part is None else list(of_a_part())


def _operating_system(machine: HostState) -> Iterator[WindowsObject]:
    system, memory = _state(machine, "OperatingSystem"), _state(machine, "Memory")
    yield of_type(
        "Win32_OperatingSystem",
        CSName=system.get("hostname"),
        Caption=system.get("caption"),
        ProductType=system.get("product_type"),
        OperatingSystemSKU=system.get("sku"),
        BuildNumber=str(system.get("build")),
        MUILanguages=[system.get("language")],
        FreePhysicalMemory=memory.get("free", 0) // 1024,
        LastBootUpTime=FileTime(int(_state(machine, "Boot")["boot_id"])),
    )


def _computer_system(machine: HostState) -> Iterator[WindowsObject]:
    firmware = _state(machine, "Firmware")
    yield of_type(
        "Win32_ComputerSystem",
        Manufacturer=firmware.get("manufacturer"),
        Model=firmware.get("model"),
        HypervisorPresent=firmware.get("hypervisor_present"),
        TotalPhysicalMemory=_state(machine, "Memory").get("total"),
    )


def _product(machine: HostState) -> Iterator[WindowsObject]:
    # Firmware writes it in capitals.
    yield of_type("Win32_ComputerSystemProduct", UUID=str(_state(machine, "OperatingSystem").get("machine_id")).upper())


def _bios(machine: HostState) -> Iterator[WindowsObject]:
    firmware = _state(machine, "Firmware")
    # Makers fill it up with blanks.
    serial = f"{firmware.get('serial') or ''}  "
    yield of_type("Win32_BIOS", SMBIOSBIOSVersion=firmware.get("bios_version"), SerialNumber=serial)


def _processors(machine: HostState) -> Iterator[WindowsObject]:
    firmware = _state(machine, "Firmware")
    for record in machine.instances("Processor"):
        yield of_type(
            "Win32_Processor",
            DeviceID=record.key["socket"],
            # Makers fill it up with blanks.
            Name=f"{record.state['name']}   ",
            Manufacturer=record.state["manufacturer"],
            NumberOfCores=record.state["cores"],
            NumberOfLogicalProcessors=record.state["threads"],
            VirtualizationFirmwareEnabled=firmware.get("virtualization_enabled"),
            SecondLevelAddressTranslationExtensions=firmware.get("second_level_translation"),
        )


def _device_guard(machine: HostState) -> Iterator[WindowsObject]:
    properties = _state(machine, "Firmware").get("security_properties")
    yield of_type("Win32_DeviceGuard", AvailableSecurityProperties=properties)


def _cim_key(class_name: str, type_name: str = "CimObject", **key: Any) -> WindowsObject:
    """An instance as an association names it: its class and its key, nothing else."""
    return of_type(type_name, CimSystemProperties=of_type("CimSystemProperties", ClassName=class_name), **key)


def _memory_addresses(machine: HostState) -> Iterator[WindowsObject]:
    for device in machine.devices:
        for position, each in enumerate(device.state()["ranges"]):
            start, end = each["start"], each["start"] + each["length"] - 1
            if position == 0:
                # The bridge above it opens a window that starts in the same place.
                yield of_type("Win32_DeviceMemoryAddress", StartingAddress=start, EndingAddress=end + 64 * MiB)
            yield of_type("Win32_DeviceMemoryAddress", StartingAddress=start, EndingAddress=end)


def _allocated(machine: HostState) -> Iterator[WindowsObject]:
    for number, device in enumerate(machine.devices):
        dependent = _cim_key("Win32_PnPEntity", DeviceID=device.instance)
        # Windows has no order; ours is not the one that is wanted.
        for each in reversed(device.state()["ranges"]):
            name = "Win32_DeviceMemoryAddress"
            address = _cim_key(name, name, StartingAddress=each["start"])
            yield of_type("Win32_PnPAllocatedResource", Antecedent=address, Dependent=dependent)
        for line in _interrupts(device, number):
            irq = _cim_key("Win32_IRQResource", "Win32_IRQResource", IRQNumber=line)
            yield of_type("Win32_PnPAllocatedResource", Antecedent=irq, Dependent=dependent)


def _interrupts(device: Device, number: int) -> list[int]:
    if device.dismounted or not device.enabled:
        return []
    # Message-signalled ones count down from 2^32.
    return [16 + number] if device.known_or("line_interrupts_only", False) else [17, (1 << 32) - 3 - number]


# ---- Plug and Play


@dataclass(frozen=True)
class Entity:
    """A device as Plug and Play knows it; properties by the key that SurveyDDA.ps1 asks with."""

    instance: str
    name: str
    class_name: str
    service: str | None = None
    problem: int = 0
    properties: Properties = field(default_factory=dict)

    def as_object(self) -> WindowsObject:
        return of_type(
            "Win32_PnPEntity",
            DeviceID=self.instance,
            InstanceId=self.instance,
            Name=self.name,
            Class=self.class_name,
            Service=self.service,
            ConfigManagerErrorCode=self.problem,
        )

    def property(self, key: str) -> WindowsObject:
        value = self.properties.get(key)
        kind = next((kind for type_, kind in _PROPERTY_TYPES.items() if type(value) is type_), "")
        return of_type(f"Win32_PnPDeviceProperty{kind}", DeviceID=self.instance, KeyName=key, Data=value)


_PROPERTY_TYPES = {bool: "Boolean", int: "Uint32", str: "String", list: "StringArray"}
_PCI = "{3AB22E31-8264-4b4e-9AF5-A8D2D8E33E62}"
_PCIE_CONTROL = "{D817FC28-793E-4B9E-9970-469D8BE63073} 17"
_NUMA_NODE = "{540B947E-8B40-45BC-A8A2-6A0B894CBDA2} 3"
_LOCATIONS, _PARENT = "DEVPKEY_Device_LocationPaths", "DEVPKEY_Device_Parent"
_SUB_CLASSES = {"usb": 3}  # of the serial buses
_CLASS_KEYS = "{4d36e968-e325-11ce-bfc1-08002be10318}"


def entities(machine: HostState) -> list[Entity]:
    """The devices that are plugged in."""
    return [*_roots(machine), *_others(machine), *_controllers(machine), *_functions(machine), *_monitors(machine)]


def _controllers(machine: HostState) -> Iterator[Entity]:
    for record in machine.instances("StorageController"):
        service = record.state["service"]
        class_name = "HDC" if service == "storahci" else "SCSIAdapter"
        yield Entity(record.key["instance"], record.state["name"], class_name, service)


def _functions(machine: HostState) -> Iterator[Entity]:
    for number, device in enumerate(machine.devices):
        state = device.state()
        properties = {
            f"{_PCI} 1": state["device_type"],
            f"{_PCI} 3": state["base_class"],
            f"{_PCI} 4": _SUB_CLASSES.get(str(state["kind"]), 0),
            f"{_PCI} 31": state["acs"],
            f"{_PCI} 34": state["rmrr"],
            f"{_PCI} 37": state["post_path"],
            f"{_PCI} 47": state["tunneled"],
            _NUMA_NODE: state["numa"],
            _LOCATIONS: [device.location, f"ACPI(_SB_)#ACPI(PC{number:02X})"],
            "DEVPKEY_Device_Driver": _driver_key(number) if state["driver"] else None,
            "DEVPKEY_Device_DriverVersion": state["driver_version"],
            "DEVPKEY_Device_BusNumber": _place(device, number)[0],
            "DEVPKEY_Device_Address": _place(device, number)[1] << 16 | _place(device, number)[2],
        }
        # Firmware reserves memory or not: the property is a number.
        if isinstance(properties[f"{_PCI} 34"], bool):
            properties[f"{_PCI} 34"] = int(properties[f"{_PCI} 34"])
        yield Entity(
            str(state["instance"]),
            str(state["name"]),
            str(state["device_class"]),
            known_or(state, "driver", None),
            int(known_or(state, "problem", 0)),
            {name: value for name, value in properties.items() if not isinstance(value, Mapping)},
        )


def _driver_key(number: int) -> str:
    return f"{_CLASS_KEYS}\\{number:04d}"


def _place(device: Device, number: int) -> tuple[int, int, int]:
    """Bus, device and function as Windows numbers them; only the last two follow from the location."""
    last = re.search(r"#PCI\(([0-9A-F]{2})([0-9A-F]{2})\)$", device.location, re.IGNORECASE)
    slot, function = (int(part, 16) for part in last.groups()) if last else (0, 0)
    return 16 + number, slot, function


def _roots(machine: HostState) -> Iterator[Entity]:
    controls: dict[str, Json] = {}
    for device in machine.devices:
        controls.setdefault(device.location.split("#")[0], device.known_or("pcie_control", None))
    for number, (path, control) in enumerate(controls.items()):
        properties = {_LOCATIONS: [path, f"ACPI(_SB_)#ACPI(PC{number:02X})"], _PCIE_CONTROL: control}
        yield Entity(f"ACPI\\PNP0A08\\{number}", "PCI Express Root Complex", "System", "pci", properties=properties)


def _others(machine: HostState) -> Iterator[Entity]:
    """Yield devices that no one asks for, and that must not be taken for a part of a GPU."""
    yield Entity("ROOT\\VOLMGR\\0000", "Volume Manager", "System", "volmgr")
    root = machine.devices[0].location.split("#")[0] if machine.devices else "PCIROOT(0)"
    properties = {f"{_PCI} 1": 2, f"{_PCI} 3": 2, _LOCATIONS: [f"{root}#PCI(1F06)"]}
    instance = "PCI\\VEN_8086&DEV_15FF&SUBSYS_00018086&REV_02\\3&11583659&0&FE"
    yield Entity(instance, "Intel(R) Ethernet Controller X710", "Net", "i40ea", properties=properties)
    # Without a location path, as some devices behind bridges are.
    yield Entity("PCI\\VEN_8086&DEV_A2AF&SUBSYS_00000000&REV_00\\3&11583659&0&A0", "PCI Device", "System")
    claims = [claim for vm in machine.vms.values() for claim in vm.assignments]
    for claim in claims:
        if claim.location in machine.other_devices:
            properties = {f"{_PCI} 1": 2, f"{_PCI} 3": 1, _LOCATIONS: [claim.location]}
            yield Entity(claim.instance, "PCI Express Device - Dismounted", "System", "pcip", properties=properties)


def _monitors(machine: HostState) -> Iterator[Entity]:
    for device in machine.devices:
        for number in range(int(known_or(device.state(), "displays", 0))):
            instance = f"DISPLAY\\DEL4187\\5&{device.location}&UID{number}"
            yield Entity(instance, "Generic PnP Monitor", "Monitor", properties={_PARENT: device.instance})


# ---- registry

_POLICIES = {
    "AllowWSL": "allow_wsl",
    "AllowInboxWSL": "allow_inbox",
    "AllowKernelUserSetting": "allow_kernel",
    "AllowKernelCommandLineUserSetting": "allow_kernel_command_line",
    "AllowSystemDistroUserSetting": "allow_system_distro",
    "AllowNetworkingModeUserSetting": "allow_networking",
    "AllowFirewallUserSetting": "allow_firewall",
    "AllowNestedVirtualization": "allow_nested",
    "DefaultNetworkingMode": "default_networking",
}


def registry(machine: HostState, path: str) -> Properties | None:
    """The values of a key under HKEY_LOCAL_MACHINE, or None where there is no such key."""
    keys = {name.casefold(): values for name, values in _keys(machine)}
    found = keys.get(path.casefold())
    return None if found is None else {name: value for name, value in found.items() if value is not None}


def _keys(machine: HostState) -> Iterator[tuple[str, Properties]]:
    system, boot = _state(machine, "OperatingSystem"), _state(machine, "Boot")
    policy, wsl = _state(machine, "DeviceAssignmentPolicy"), _state(machine, "Wsl")
    windows, control = "SOFTWARE\\Microsoft\\Windows NT\\CurrentVersion", "SYSTEM\\CurrentControlSet\\Control"
    versions = "SOFTWARE\\Microsoft\\Windows\\CurrentVersion"
    servicing = f"{versions}\\Component Based Servicing"
    yield (
        windows,
        {
            "EditionID": system.get("edition_id"),
            "InstallationType": system.get("installation_type"),
            "UBR": system.get("revision"),
            "DisplayVersion": system.get("display_version"),
        },
    )
    yield f"{control}\\ProductOptions", {"ProductType": system.get("product_options")}
    yield f"{control}\\Session Manager\\Environment", {"PROCESSOR_ARCHITECTURE": system.get("architecture")}
    if boot.get("logon_ready"):
        yield f"{windows}\\Winlogon\\AutoLogonChecked", {}
    yield f"{servicing}\\Interface", {"ServicingInProgress": 2 if boot.get("servicing") else 0}
    if scripts := _state(machine, "Session").get("execution_policy"):
        enabled = {"EnableScripts": 0} if scripts == "restricted" else {"EnableScripts": 1}
        word = "".join(part.capitalize() for part in scripts.split("-"))
        yield "SOFTWARE\\Policies\\Microsoft\\Windows\\PowerShell", {**enabled, "ExecutionPolicy": word}
    if set(policy.values()) - {None}:
        names = {
            "RequireSecureDeviceAssignment": "require_secure",
            "RequireSupportedDeviceAssignment": "require_supported",
        }
        key = "SOFTWARE\\Policies\\Microsoft\\Windows\\HyperV"
        yield key, {value: policy.get(name) for value, name in names.items()}
    if wsl.get("version"):
        yield f"{versions}\\Lxss\\MSI", {"Version": wsl["version"], "ProductCode": PRODUCT}
    yield from _pending(machine, versions, control)
    for record in machine.instances("WslPolicy"):
        values = {name: record.state[ours] for name, ours in _POLICIES.items()}
        yield "SOFTWARE\\Policies\\WSL", {n: None if v is None else int(v) for n, v in values.items()}
    for keys in machine.registry_keys:
        yield from keys()
    for number, device in enumerate(machine.devices):
        memory = known_or(device.state(), "vram", None)
        yield f"{control}\\Class\\{_driver_key(number)}", {"HardwareInformation.qwMemorySize": memory}


def _pending(machine: HostState, versions: str, control: str) -> Iterator[tuple[str, Properties]]:
    reasons = _state(machine, "PendingReboot").get("reasons", ())
    if "servicing" in reasons:
        yield f"{versions}\\Component Based Servicing\\RebootPending", {}
    if "windows-update" in reasons:
        yield f"{versions}\\WindowsUpdate\\Auto Update\\RebootRequired", {}
    if "server-manager" in reasons:
        yield "SOFTWARE\\Microsoft\\ServerManager\\CurrentRebootAttempts", {}
    renames = ["\\??\\C:\\old.tmp", "\\??\\C:\\new.tmp"] if "file-rename" in reasons else None
    yield f"{control}\\Session Manager", {"PendingFileRenameOperations": renames}
    name = machine.name
    yield f"{control}\\ComputerName\\ActiveComputerName", {"ComputerName": name}
    renamed = f"{name}-NEW" if "computer-rename" in reasons else name
    yield f"{control}\\ComputerName\\ComputerName", {"ComputerName": renamed}


# ---- services and programs


def services(machine: HostState) -> dict[str, str]:
    """Name to status of those that anybody asks for."""
    found = {"EventLog": "running"}
    if machine.role in ("installed", "uninstall-pending"):
        found["vmms"] = str(_state(machine, "HyperVHost").get("service", "running"))
    if (cluster := _state(machine, "ClusterService").get("state", "absent")) != "absent":
        found["ClusSvc"] = cluster
    if _state(machine, "Wsl").get("present"):
        found["WslService"] = "running"
    return found


def driver_models(machine: HostState, models: Mapping[str, tuple[str, str]]) -> tuple[int, str] | None:
    """nvidia-smi's exit code and CSV, or None where no NVIDIA driver has brought the program."""
    if not any(drives(device) for device in machine.devices):
        return None
    lines = [
        f"{place}, {', '.join(models[device.location])}"
        for device, place in zip(machine.devices, gpu_addresses(machine), strict=True)
        if device.location in models
    ]
    return (0, "\n".join(lines)) if lines else (6, "No devices were found")


def gpu_addresses(machine: HostState) -> list[str]:
    """The address of each device, as nvidia-smi writes it."""
    addresses = [_place(device, number) for number, device in enumerate(machine.devices)]
    return [f"{bus >> 8:08X}:{bus & 255:02X}:{slot:02X}.{function:X}" for bus, slot, function in addresses]
