"""One PowerShell process on a simulated host, which runs cmdlets by name and parameters, and returns their objects.

Cmdlets that are one call of the host are here, each with the parameters that it accepts.
"""

import base64
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from winhost.lab.physics.own_switches import TASK
from winhost.lab.physics.parts import STANDINS
from winhost.lab.physics.simulated_machine import Machine
from winhost.lab.physics.windows_errors import WindowsObject, windows_object
from winhost.lab.physics.windows_files import encode_base64
from winhost.lab.physics.windows_software import RECORD
from winhost.lab.powershell.standins import cmdlets, quoted, script_text
from winhost.lab.powershell.windows_views import from_windows_enum, make_objects

BoundParameters = Mapping[str, Any]
Answer = Callable[["CmdletProcess", BoundParameters], Iterable[Any]]

_ANSWERS: dict[str, tuple[frozenset[str], Answer]] = {}
_HELPERS: list[str] = []
# Helpers of the agent that seams.ps1 defines. All others only pass on their parameters, and are generated.
_SEAM_HELPERS = {"Enter-WinhostMutex", "Exit-WinhostMutex", "Get-WinhostSession", "Invoke-WinhostNative"}
_SEAM_HELPERS |= {"Open-WinhostRegistry", "Register-WinhostAccountTask", "Write-WinhostRegistry"}
_READ_VERBS = ("Get", "Test", "Read", "Open")  # verbs of cmdlets that change nothing


def answers(name: str, *parameters: str) -> Callable[[Answer], Answer]:
    """Register a function that answers calls of `name` with these parameters. Other parameters are refused.

    Helpers of the agent may also have a kind and types (`_helper`): `Read-WinhostBytes=bytes`, `Restart:bool`.
    """

    def register(answer: Answer) -> Answer:
        _ANSWERS[name.partition("=")[0]] = (frozenset(each.partition(":")[0] for each in parameters), answer)
        if "-Winhost" in name and name not in _SEAM_HELPERS:
            _HELPERS.append(" ".join((name, *parameters)))
        return answer

    return register


def register_calls(rows: Mapping[str, Callable[[Machine, BoundParameters], Any]]) -> None:
    """Register cmdlets that are one call of the host. rows: name and parameters to the call.

    A call returns one object, a list of objects, or None.
    """
    for line, call in rows.items():
        answers(*line.split())(partial(_call_machine, call))


def _call_machine(
    call: Callable[[Machine, BoundParameters], Any], process: "CmdletProcess", bound: BoundParameters
) -> Any:
    result = call(process.machine, bound)
    return result if isinstance(result, list) else () if result is None else [result]


# The bodies of generated helpers, by kind. Bytes are sent as text: a JSON list of numbers would be slow.
_BODIES = {
    "": "Read-Lab {name} {given}",
    "bytes": "foreach ($text in @(Read-Lab {name} {given})) { , [System.Convert]::FromBase64String($text) }",
    "throws": "Read-LabOrThrow {name} {given}",
}
_CONSTANT_HELPERS = {
    "Read-WinhostOwnSid": "S-1-5-21-7-8-9-500",
    "Read-WinhostProgramDataFolder": "C:\\ProgramData",
    "Read-WinhostSystemFolder": "C:\\Windows\\System32",
    "Read-WinhostTemporaryFolder": "C:\\Windows\\Temp",
}


def seams() -> str:
    """Return the script that a runspace runs after the agent."""
    constants = (f"function {name} {{\n    {quoted(word)}\n}}\n" for name, word in _CONSTANT_HELPERS.items())
    return "\n".join([script_text("seams.ps1"), *map(_helper, _HELPERS), *constants])


def _helper(line: str) -> str:
    """Generate a helper. line: name and parameters, perhaps as `NAME=KIND` (_BODIES) and `PARAMETER:TYPE`."""
    name, *parameters = line.split()
    name, _, kind = name.partition("=")
    types = {each.partition(":")[0]: each.partition(":")[2] or "string" for each in parameters}
    declared = ", ".join(f"[{type_}]${each}" for each, type_ in types.items())
    encodings = {"byte[]": "[System.Convert]::ToBase64String(${})"}
    arguments = "; ".join(f"{each} = {encodings.get(type_, '${}').format(each)}" for each, type_ in types.items())
    body = _BODIES[kind].replace("{name}", quoted(name)).replace("{given}", f"@{{ {arguments} }}")
    return f"function {name} {{\n    param({declared})\n    {body}\n}}\n"


class CmdletProcess:
    """One PowerShell process on one host. slept: its clock, the lab seconds that it has slept."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.slept = 0.0
        self.stopping: dict[str, float] = {}  # VMs whose guests are shutting down, and when they will be off
        self.jobs = 0  # jobs that were not removed
        self.has_mutex = False

    def run(self, name: str, bound: BoundParameters) -> list[Any]:
        """Run a cmdlet, and return its objects. Raises CmdletError, HostDown."""
        known, answer = _ANSWERS.get(name) or _find_stand_in(name)
        if answer is None or set(bound) - known:
            what = "such a call" if answer is None else ", ".join(f"-{p}" for p in sorted(set(bound) - known))
            raise self.machine.windows_error("not-stood-in", name, what=what)
        module = cmdlets()[name]["module"] if name in cmdlets() else ""
        if name.split("-")[0] in _READ_VERBS:
            with self.machine.reading(name, module):
                return list(answer(self, bound))
        return list(answer(self, bound))

    def close(self) -> None:
        """End the process, and release its mutex."""
        if self.has_mutex:
            self.machine.mutex.release()
            self.has_mutex = False

    def vm_ids(self, bound: BoundParameters) -> Iterator[str]:
        for vm in bound["VM"]:
            yield vm["Id"]


def _find_stand_in(name: str) -> tuple[frozenset[str], Answer | None]:
    """Return the parameters and answer of a cmdlet that a method of the machine or a part declares with @as_cmdlet."""
    if (stand_in := STANDINS.get(name)) is None:
        return frozenset(), None
    paths = {argument: re.split(r"[.:]", path) for argument, path in stand_in.parameters.items()}
    required = {each[1:] for each in stand_in.ignored if each.startswith("!")}
    known = {each.lstrip("!") for each in stand_in.ignored} | {path[0].removesuffix("[]") for path in paths.values()}

    def answer(process: CmdletProcess, bound: BoundParameters) -> Iterable[Any]:
        if any(not bound.get(each) for each in required):
            raise process.machine.windows_error("not-stood-in", name, what="somebody who answers its question")
        method = stand_in.method.__name__
        owner = next(each for each in (process.machine, *process.machine.parts) if hasattr(each, method))
        list_parameter = next((path[0] for path in paths.values() if path[0].endswith("[]")), "")
        for item in bound[list_parameter[:-2]] if list_parameter else (None,):
            arguments = {list_parameter: item, **bound}
            getattr(owner, method)(
                **{name: _resolve_path(arguments, path) for name, path in paths.items() if path[0] in arguments}
            )
        return ()

    return frozenset(known), answer


def _resolve_path(value: Any, path: Sequence[str]) -> Any:
    """Follow a path of property names. `word` converts an enumeration value of Windows to a resource's."""
    for name in path:
        value = from_windows_enum(value) if name == "word" else value[name]
    return value


def _start(machine: Machine, name: str) -> None:
    if name == TASK:
        machine.network.start()
    else:
        machine.accounts.start_scheduled_task(name)


def _names(bound: BoundParameters) -> list[str]:
    return [each["Name"] for each in bound["Name"]]


def _feature_result(restart: bool) -> WindowsObject:
    return windows_object("FeatureOperationResult", RestartNeeded="Yes" if restart else "No")


def _write_registry(machine: Machine, bound: BoundParameters) -> None:
    if (write := machine.registry_writers.get(bound["Path"])) is not None:
        with machine.changing("Write-WinhostRegistry"):
            write(bound["Name"], bound["Value"])
        return
    if bound["Path"] != RECORD:
        raise machine.windows_error("not-stood-in", "Write-WinhostRegistry", what=bound["Path"])
    machine.software.write_registry(bound["Name"], bound["Value"])


def _set_firewall_rule(machine: Machine, bound: BoundParameters) -> None:
    names = bound["Name"] if "Name" in bound else [each["DeviceID"] for each in bound["InputObject"]]
    for name in names:
        machine.network.set_net_firewall_rule(name, bound["RemoteAddress"] if bound["Enabled"] == "True" else [])


def _set_vlan(machine: Machine, bound: BoundParameters) -> None:
    """Set the VLAN of a VM that was made here, or of the host's own port, which has a device."""
    for port in bound["VMNetworkAdapter"]:
        if port["DeviceId"]:
            machine.network.set_vm_network_adapter_vlan(port["DeviceId"].strip("{}").lower(), bound["VlanId"])
        else:
            machine.set_vm(port["VMId"], vlan=bound.get("VlanId"))


_CALLS: Mapping[str, Callable[[Machine, BoundParameters], Any]] = {
    "Start-ScheduledTask InputObject": lambda m, g: _start(m, g["InputObject"]["DeviceID"]),
    "Set-VMNetworkAdapterVlan VMNetworkAdapter Access VlanId Untagged": _set_vlan,
    "Set-NetFirewallRule Name InputObject RemoteAddress Enabled": _set_firewall_rule,
    "Write-WinhostRegistry Path Name Value": _write_registry,
    "Write-WinhostFile Path Bytes:byte[]": lambda m, g: m.files.write(g["Path"], base64.b64decode(g["Bytes"])),
    "Write-WinhostFileRights Path Rights": lambda m, g: m.files.set_rights(g["Path"], g["Rights"]),
    "Remove-WinhostFile Path": lambda m, g: m.files.remove(g["Path"]),
    "Remove-WinhostFolder Path": lambda m, g: m.files.remove_folder(g["Path"]),
    "Add-WinhostPiece Path Restart:bool Bytes:byte[]": lambda m, g: m.files.append(
        g["Path"], base64.b64decode(g["Bytes"]), restart=g["Restart"]
    ),
    "Move-WinhostFile Path Target": lambda m, g: m.software.move_file(g["Path"], g["Target"]),
    "Install-WindowsFeature Name": lambda m, g: _feature_result(m.install_windows_feature(*_names(g))),
    "Uninstall-WindowsFeature Name": lambda m, g: _feature_result(m.uninstall_windows_feature(*_names(g))),
    "Enable-WindowsOptionalFeature Online FeatureName All NoRestart": lambda m, g: windows_object(
        "ImageObject", RestartNeeded=m.enable_windows_optional_feature(*g["FeatureName"])
    ),
    "Disable-WindowsOptionalFeature Online FeatureName NoRestart": lambda m, g: windows_object(
        "ImageObject", RestartNeeded=m.disable_windows_optional_feature(*g["FeatureName"])
    ),
    "Read-WinhostBytes=bytes Path": lambda m, g: (
        None if (found := m.files.read(g["Path"])) is None else encode_base64(found)
    ),
    "Test-WinhostLink Path": lambda m, g: m.files.is_link(g["Path"]),
    "Test-WinhostFolder Path": lambda m, g: m.files.has_folder(g["Path"]),
    "Test-WinhostEmptyPath Path": lambda m, g: not m.files.is_occupied(g["Path"]),
    "Read-WinhostOwner Path": lambda m, g: m.files.owner(g["Path"]),
    "Read-WinhostFileTime Path": lambda m, g: m.distros.config_time(g["Path"]),
    "Read-WinhostHash Path": lambda m, g: m.software.read_hash(g["Path"]),
    "Read-WinhostLength Path": lambda m, g: m.files.length(g["Path"]),
    "Test-WinhostFile Path": lambda m, g: m.files.read(g["Path"]) is not None,
    "Test-VHD Path": lambda m, g: all(map(m.test_vhd, g["Path"])),
    "Measure-WinhostFiles Folder Name": lambda m, g: m.accounts.count_files(g["Folder"], g["Name"]),
    "Copy-WinhostSource=throws Source Path": lambda m, g: m.software.copy_source(g["Source"], g["Path"]),
    "Receive-WinhostSlice=throws Source Path Version Seconds:int": lambda m, g: WindowsObject(
        None, m.software.receive_slice(g["Source"], g["Path"], g["Version"])
    ),
}

# Cmdlets that list all instances of a resource: the type of the objects, and the resource.
OBJECTS: Mapping[str, tuple[str, str]] = {
    "Get-VMHostPartitionableGpu": ("VMHostPartitionableGpu", "PartitionableGpu"),
    "Get-VMPartitionableGpu": ("VMHostPartitionableGpu", "PartitionableGpu"),
    "Get-Disk": ("MSFT_Disk", "Disk"),
}

register_calls(_CALLS)
register_calls({name: lambda machine, _, of=of: make_objects(machine, *of) for name, of in OBJECTS.items()})  # type: ignore[misc]
