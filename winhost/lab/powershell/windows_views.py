"""Shows a simulated host to cmdlets: CIM, Plug and Play, registry, services, programs.

It does the reverse of the resources' scripts: it makes what Windows would show from the states of resources. types.yaml
maps properties of objects to those of resources. Next to GPUs there are devices of every machine (bridges, a network
card), so that scripts have to select.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from typing import Any

from winhost.core.answers import Json, Record
from winhost.core.dataclass import dataclass
from winhost.lab.physics.host_state import HostState
from winhost.lab.physics.virtual_machine import Device, get_known
from winhost.lab.physics.windows_errors import FileTime, Properties, WindowsObject, windows_object
from winhost.lab.physics.windows_software import PRODUCT, is_nvidia_gpu
from winhost.lab.powershell.standins import types
from winhost.model.units import MiB
from winhost.resources.registry import WINDOWS

# ---- values: TurnOff of Windows is turn-off in a resource


def to_windows_enum(word: Any) -> str:
    return "".join(part.capitalize() for part in str(word).split("-"))


def from_windows_enum(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    return "".join(f"-{c.lower()}" if c.isupper() and index else c.lower() for index, c in enumerate(value))


def braced(guid: Any) -> Any:
    """Return a GUID as Windows writes it; None stays None."""
    return None if guid is None else "{" + str(guid).upper() + "}"


# ---- objects

_FORMATS: Mapping[str, Callable[[Any], Any]] = {
    "braced": braced,
    "dashed": lambda mac: mac and mac.replace(":", "-").upper(),
    "KiB": lambda size: size // 1024,
    "list": lambda value: [value],
    "padded": lambda text: f"{text or ''}   ",  # as makers do
    "text": str,
    "time": lambda boot: FileTime(int(boot)),
    "upper": lambda text: str(text).upper(),
    "word": to_windows_enum,
}


def make_object(type_name: str, *sources: Any, **overrides: Any) -> WindowsObject:
    """Make an object of this type. A property with a source in types.yaml has the value of the first source with it."""
    properties = {}
    for name, (kind, *source) in types().classes[type_name].items():
        if source:
            property_name, _, format_name = source[0].partition(":")
            value = _find_known(property_name, sources)
            members = types().enumerations.get(kind, ())
            format_name = format_name or ("word" if members and isinstance(value, str) and value not in members else "")
            properties[name] = (
                _FORMATS[format_name](value)
                if format_name and (value is not None or format_name == "padded")
                else value
            )
    return windows_object(type_name, **{**properties, **overrides})


def _find_known(name: str, sources: tuple[Any, ...]) -> Any:
    """Return the first known value of a property, or None."""
    for source in sources:
        properties: Mapping[str, Any] = {**source.key, **source.state} if isinstance(source, Record) else source
        value = properties.get(name) if isinstance(properties, Mapping) else getattr(properties, name, None)
        if value is not None and not isinstance(value, Mapping):
            return value
    return None


def state_of(machine: HostState, resource: str) -> Properties:
    """Return the state of a resource without a key, without properties that could not be read."""
    records = machine.instances(resource)
    return {n: v for n, v in records[0].state.items() if not isinstance(v, Mapping)} if records else {}


def make_objects(machine: HostState, type_name: str, resource: str, *other_resources: str) -> list[WindowsObject]:
    """Make an object for each instance of a resource. The states of other resources without a key are also sources."""
    records = machine.instances(resource) if WINDOWS[resource].key else (state_of(machine, resource),)
    return [
        make_object(type_name, record, *(state_of(machine, resource_) for resource_ in other_resources))
        for record in records
    ]


# ---- CIM

_CIM_RESOURCES: Mapping[str, tuple[str, ...]] = {
    "Win32_BIOS": ("Firmware",),
    "Win32_ComputerSystem": ("Firmware", "Memory"),
    "Win32_ComputerSystemProduct": ("OperatingSystem",),
    "Win32_DeviceGuard": ("Firmware",),
    "Win32_OperatingSystem": ("OperatingSystem", "Memory", "Boot"),
    "Win32_Processor": ("Processor", "Firmware"),
}


def cim(machine: HostState, class_name: str) -> list[WindowsObject] | None:
    """Return all instances of a CIM class, or None for an unknown class."""
    if class_name in _CIM_RESOURCES:
        return make_objects(machine, class_name, *_CIM_RESOURCES[class_name])
    makers = {"Win32_DeviceMemoryAddress": _memory_addresses, "Win32_PnPAllocatedResource": _allocated_resources}
    if maker := makers.get(class_name):
        return list(maker(machine))
    list_objects = machine.cim_classes.get(class_name)
    if list_objects is None:
        return None
    if class_name != "Win32_Process":
        return list(list_objects())
    # The session manager, a child of System, runs as long as Windows.
    session_manager = make_object(class_name, state_of(machine, "Boot"), Name="smss.exe", ParentProcessId=4)
    return [session_manager, *list_objects()]


def _cim_key(class_name: str, type_name: str = "CimObject", **key: Any) -> WindowsObject:
    """Make an instance as an association refers to it, with only its class and key."""
    return windows_object(
        type_name, CimSystemProperties=windows_object("CimSystemProperties", ClassName=class_name), **key
    )


def _memory_addresses(machine: HostState) -> Iterator[WindowsObject]:
    for device in machine.devices:
        for position, each in enumerate(device.state()["ranges"]):
            start, end = each["start"], each["start"] + each["length"] - 1
            if position == 0:
                # The window of the bridge above starts at the same address.
                yield windows_object("Win32_DeviceMemoryAddress", StartingAddress=start, EndingAddress=end + 64 * MiB)
            yield windows_object("Win32_DeviceMemoryAddress", StartingAddress=start, EndingAddress=end)


def _allocated_resources(machine: HostState) -> Iterator[WindowsObject]:
    for number, device in enumerate(machine.devices):
        dependent = _cim_key("Win32_PnPEntity", DeviceID=device.instance)
        # Windows guarantees no order; this one is deliberately not sorted.
        for each in reversed(device.state()["ranges"]):
            name = "Win32_DeviceMemoryAddress"
            address = _cim_key(name, name, StartingAddress=each["start"])
            yield windows_object("Win32_PnPAllocatedResource", Antecedent=address, Dependent=dependent)
        lines: list[int] = []
        if device.enabled and not device.dismounted:
            # Numbers of message-signalled interrupts count down from 2^32.
            messages = not device.get_known("line_interrupts_only", False)
            lines = [17, (1 << 32) - 3 - number] if messages else [16 + number]
        for line in lines:
            irq = _cim_key("Win32_IRQResource", "Win32_IRQResource", IRQNumber=line)
            yield windows_object("Win32_PnPAllocatedResource", Antecedent=irq, Dependent=dependent)


# ---- Plug and Play


@dataclass(frozen=True)
class Entity:
    """A device of Plug and Play. properties: by the keys that SurveyDDA.ps1 uses."""

    instance: str
    name: str
    class_name: str
    service: str | None = None
    problem: int = 0
    properties: Properties = field(default_factory=dict)

    def as_object(self) -> WindowsObject:
        return make_object("Win32_PnPEntity", self, DeviceID=self.instance)

    def property(self, key: str) -> WindowsObject:
        value = self.properties.get(key)
        kind = next((kind for type_, kind in _PROPERTY_TYPES.items() if type(value) is type_), "")
        return windows_object(f"Win32_PnPDeviceProperty{kind}", DeviceID=self.instance, KeyName=key, Data=value)


_PROPERTY_TYPES = {bool: "Boolean", int: "Uint32", str: "String", list: "StringArray"}
_PCI = "{3AB22E31-8264-4b4e-9AF5-A8D2D8E33E62}"
_PCIE_CONTROL = "{D817FC28-793E-4B9E-9970-469D8BE63073} 17"
_NUMA_NODE = "{540B947E-8B40-45BC-A8A2-6A0B894CBDA2} 3"
_LOCATIONS, _PARENT = "DEVPKEY_Device_LocationPaths", "DEVPKEY_Device_Parent"
_SUB_CLASSES = {"usb": 3}  # of the serial buses
_CLASS_KEYS = "{4d36e968-e325-11ce-bfc1-08002be10318}"


def entities(machine: HostState) -> list[Entity]:
    """Return the present devices."""
    return [
        *_root_entities(machine),
        *_other_entities(machine),
        *_controller_entities(machine),
        *_function_entities(machine),
        *_monitor_entities(machine),
    ]


def _controller_entities(machine: HostState) -> Iterator[Entity]:
    for record in machine.instances("StorageController"):
        service = record.state["service"]
        class_name = "HDC" if service == "storahci" else "SCSIAdapter"
        yield Entity(record.key["instance"], record.state["name"], class_name, service)


def _function_entities(machine: HostState) -> Iterator[Entity]:
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
            "DEVPKEY_Device_BusNumber": _address(device, number)[0],
            "DEVPKEY_Device_Address": _address(device, number)[1] << 16 | _address(device, number)[2],
        }
        # Whether firmware reserves memory (RMRR) is a number in Windows.
        if isinstance(properties[f"{_PCI} 34"], bool):
            properties[f"{_PCI} 34"] = int(properties[f"{_PCI} 34"])
        yield Entity(
            str(state["instance"]),
            str(state["name"]),
            str(state["device_class"]),
            get_known(state, "driver", None),
            int(get_known(state, "problem", 0)),
            {name: value for name, value in properties.items() if not isinstance(value, Mapping)},
        )


def _driver_key(number: int) -> str:
    return f"{_CLASS_KEYS}\\{number:04d}"


def _address(device: Device, number: int) -> tuple[int, int, int]:
    """Return bus, device and function numbers. Only the last two are in the location."""
    match = re.search(r"#PCI\(([0-9A-F]{2})([0-9A-F]{2})\)$", device.location, re.IGNORECASE)
    slot, function = (int(part, 16) for part in match.groups()) if match else (0, 0)
    return 16 + number, slot, function


def _root_entities(machine: HostState) -> Iterator[Entity]:
    controls: dict[str, Json] = {}
    for device in machine.devices:
        controls.setdefault(device.location.split("#")[0], device.get_known("pcie_control", None))
    for number, (path, control) in enumerate(controls.items()):
        properties = {_LOCATIONS: [path, f"ACPI(_SB_)#ACPI(PC{number:02X})"], _PCIE_CONTROL: control}
        yield Entity(f"ACPI\\PNP0A08\\{number}", "PCI Express Root Complex", "System", "pci", properties=properties)


def _other_entities(machine: HostState) -> Iterator[Entity]:
    """Yield devices that scripts must not mistake for functions of a GPU."""
    yield Entity("ROOT\\VOLMGR\\0000", "Volume Manager", "System", "volmgr")
    root = machine.devices[0].location.split("#")[0] if machine.devices else "PCIROOT(0)"
    properties = {f"{_PCI} 1": 2, f"{_PCI} 3": 2, _LOCATIONS: [f"{root}#PCI(1F06)"]}
    instance = "PCI\\VEN_8086&DEV_15FF&SUBSYS_00018086&REV_02\\3&11583659&0&FE"
    yield Entity(instance, "Intel(R) Ethernet Controller X710", "Net", "i40ea", properties=properties)
    # Without a location path, as some devices behind bridges.
    yield Entity("PCI\\VEN_8086&DEV_A2AF&SUBSYS_00000000&REV_00\\3&11583659&0&A0", "PCI Device", "System")
    claims = [claim for vm in machine.vms.values() for claim in vm.assignments]
    for claim in claims:
        if claim.location in machine.non_gpu_devices:
            properties = {f"{_PCI} 1": 2, f"{_PCI} 3": 1, _LOCATIONS: [claim.location]}
            yield Entity(claim.instance, "PCI Express Device - Dismounted", "System", "pcip", properties=properties)


def _monitor_entities(machine: HostState) -> Iterator[Entity]:
    for device in machine.devices:
        for number in range(int(get_known(device.state(), "displays", 0))):
            instance = f"DISPLAY\\DEL4187\\5&{device.location}&UID{number}"
            yield Entity(instance, "Generic PnP Monitor", "Monitor", properties={_PARENT: device.instance})


# ---- registry

_WINDOWS, _CONTROL = "SOFTWARE\\Microsoft\\Windows NT\\CurrentVersion", "SYSTEM\\CurrentControlSet\\Control"
_VERSIONS, _POLICIES = "SOFTWARE\\Microsoft\\Windows\\CurrentVersion", "SOFTWARE\\Policies"
_SERVICING = f"{_VERSIONS}\\Component Based Servicing"
# Registry keys whose values are properties of a resource. A key exists if one of its values is known.
_VALUES: Mapping[str, tuple[str, Mapping[str, str]]] = {
    _WINDOWS: (
        "OperatingSystem",
        {"EditionID": "edition_id", "InstallationType": "installation_type", "UBR": "revision"}
        | {"DisplayVersion": "display_version"},
    ),
    f"{_CONTROL}\\ProductOptions": ("OperatingSystem", {"ProductType": "product_options"}),
    f"{_CONTROL}\\Session Manager\\Environment": ("OperatingSystem", {"PROCESSOR_ARCHITECTURE": "architecture"}),
    f"{_POLICIES}\\Microsoft\\Windows\\HyperV": (
        "DeviceAssignmentPolicy",
        {"RequireSecureDeviceAssignment": "require_secure", "RequireSupportedDeviceAssignment": "require_supported"},
    ),
    f"{_POLICIES}\\WSL": (
        "WslPolicy",
        {"AllowWSL": "allow_wsl", "AllowInboxWSL": "allow_inbox", "AllowNestedVirtualization": "allow_nested"}
        | {"AllowKernelUserSetting": "allow_kernel", "AllowSystemDistroUserSetting": "allow_system_distro"}
        | {"AllowKernelCommandLineUserSetting": "allow_kernel_command_line"}
        | {"AllowNetworkingModeUserSetting": "allow_networking", "AllowFirewallUserSetting": "allow_firewall"}
        | {"DefaultNetworkingMode": "default_networking"},
    ),
}
_PENDING = {
    "servicing": f"{_SERVICING}\\RebootPending",
    "windows-update": f"{_VERSIONS}\\WindowsUpdate\\Auto Update\\RebootRequired",
    "server-manager": "SOFTWARE\\Microsoft\\ServerManager\\CurrentRebootAttempts",
}


def registry(machine: HostState, path: str) -> Properties | None:
    """Return the values of a key under HKEY_LOCAL_MACHINE, or None if it does not exist."""
    keys = {name.casefold(): values for name, values in _list_keys(machine)}
    values = keys.get(path.casefold())
    return None if values is None else {name: value for name, value in values.items() if value is not None}


def _list_keys(machine: HostState) -> Iterator[tuple[str, Properties]]:
    for path, (resource, names) in _VALUES.items():
        state = state_of(machine, resource)
        values = {name: state.get(ours) for name, ours in names.items()}
        if set(values.values()) - {None}:
            yield path, {n: int(v) if isinstance(v, bool) else v for n, v in values.items()}
    boot, wsl = state_of(machine, "Boot"), state_of(machine, "Wsl")
    if boot.get("logon_ready"):
        yield f"{_WINDOWS}\\Winlogon\\AutoLogonChecked", {}
    yield f"{_SERVICING}\\Interface", {"ServicingInProgress": 2 if boot.get("servicing") else 0}
    if scripts := state_of(machine, "Session").get("execution_policy"):
        enabled = {"EnableScripts": int(scripts != "restricted")}
        yield f"{_POLICIES}\\Microsoft\\Windows\\PowerShell", {**enabled, "ExecutionPolicy": to_windows_enum(scripts)}
    if wsl.get("version"):
        yield f"{_VERSIONS}\\Lxss\\MSI", {"Version": wsl["version"], "ProductCode": PRODUCT}
    yield from _pending_restart_keys(machine)
    for keys in machine.registry_keys:
        yield from keys()
    for number, device in enumerate(machine.devices):
        memory = get_known(device.state(), "vram", None)
        yield f"{_CONTROL}\\Class\\{_driver_key(number)}", {"HardwareInformation.qwMemorySize": memory}


def _pending_restart_keys(machine: HostState) -> Iterator[tuple[str, Properties]]:
    reasons = state_of(machine, "PendingReboot").get("reasons", ())
    yield from ((_PENDING[reason], {}) for reason in reasons if reason in _PENDING)
    renames = ["\\??\\C:\\old.tmp", "\\??\\C:\\new.tmp"] if "file-rename" in reasons else None
    yield f"{_CONTROL}\\Session Manager", {"PendingFileRenameOperations": renames}
    renamed = f"{machine.name}-NEW" if "computer-rename" in reasons else machine.name
    for key, name in (("ActiveComputerName", machine.name), ("ComputerName", renamed)):
        yield f"{_CONTROL}\\ComputerName\\{key}", {"ComputerName": name}


# ---- services and programs


def services(machine: HostState) -> dict[str, str]:
    """Return the services that scripts read, each with its status."""
    statuses = {"EventLog": "running"}
    if machine.service_runs:
        statuses["vmms"] = str(state_of(machine, "HyperVHost").get("service", "running"))
    if (cluster := state_of(machine, "ClusterService").get("state", "absent")) != "absent":
        statuses["ClusSvc"] = cluster
    if state_of(machine, "Wsl").get("present"):
        statuses["WslService"] = "running"
    return statuses


def driver_models(machine: HostState, models: Mapping[str, tuple[str, str]]) -> tuple[int, str] | None:
    """Return nvidia-smi's exit code and CSV, or None if no driver has installed the program."""
    if not any(is_nvidia_gpu(device) for device in machine.devices):
        return None
    lines = [
        f"{address}, {', '.join(models[device.location])}"
        for device, address in zip(machine.devices, gpu_addresses(machine), strict=True)
        if device.location in models
    ]
    return (0, "\n".join(lines)) if lines else (6, "No devices were found")


def gpu_addresses(machine: HostState) -> list[str]:
    """Return the PCI address of each device, as nvidia-smi writes it."""
    addresses = [_address(device, number) for number, device in enumerate(machine.devices)]
    return [f"{bus >> 8:08X}:{bus & 255:02X}:{slot:02X}.{function:X}" for bus, slot, function in addresses]
