"""One PowerShell process on a simulated host: it asks cmdlets by their names and parameters, and gets objects. Those
that are one call of a method of the host are here, keyed by name and the parameters that they may be called with.
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
from winhost.lab.powershell.windows_views import all_shown, our_word

BoundParameters = Mapping[str, Any]
Answer = Callable[["CmdletProcess", BoundParameters], Iterable[Any]]

_ANSWERS: dict[str, tuple[frozenset[str], Answer]] = {}
_HELPERS: list[str] = []
# Helpers of seams.ps1; each other one of the agent only hands on what it is given.
_IN_SEAMS = {"Enter-WinhostMutex", "Exit-WinhostMutex", "Get-WinhostSession", "Invoke-WinhostNative"}
_IN_SEAMS |= {"Open-WinhostRegistry", "Register-WinhostAccountTask", "Write-WinhostRegistry"}
_LOOK = ("Get", "Test", "Read", "Open")  # verbs of what changes nothing


def answers(name: str, *parameters: str) -> Callable[[Answer], Answer]:
    """Register the answer to calls of `name` with these parameters; any other parameter is refused, not ignored. Of
    helpers of the agent, `_helper` says what else they may have: `Read-WinhostBytes=bytes`, `Restart:bool`.
    """

    def note(answer: Answer) -> Answer:
        _ANSWERS[name.partition("=")[0]] = (frozenset(each.partition(":")[0] for each in parameters), answer)
        if "-Winhost" in name and name not in _IN_SEAMS:
            _HELPERS.append(" ".join((name, *parameters)))
        return answer

    return note


def calls(rows: Mapping[str, Callable[[Machine, BoundParameters], Any]]) -> None:
    """Register cmdlets that are one call of the host, by name and parameters. A call returns None for no object, and
    a list for several.
    """
    for line, call in rows.items():
        answers(*line.split())(partial(_one_call, call))


def _one_call(call: Callable[[Machine, BoundParameters], Any], process: "CmdletProcess", bound: BoundParameters) -> Any:
    found = call(process.machine, bound)
    return found if isinstance(found, list) else () if found is None else [found]


# How helpers of the agent hand on what they are given, and give what the lab gives. Bytes are text on the way: a list
# of so many numbers takes long.
_BODIES = {
    "": "Read-Lab {name} {given}",
    "bytes": "foreach ($text in @(Read-Lab {name} {given})) { , [System.Convert]::FromBase64String($text) }",
    "throws": "Read-LabOrThrow {name} {given}",
}
_SAYS = {
    "Read-WinhostOwnSid": "S-1-5-21-7-8-9-500",
    "Read-WinhostProgramDataFolder": "C:\\ProgramData",
    "Read-WinhostSystemFolder": "C:\\Windows\\System32",
    "Read-WinhostTemporaryFolder": "C:\\Windows\\Temp",
}


def seams() -> str:
    """The script of a runspace after the agent."""
    says = (f"function {name} {{\n    {quoted(word)}\n}}\n" for name, word in _SAYS.items())
    return "\n".join([script_text("seams.ps1"), *map(_helper, _HELPERS), *says])


def _helper(line: str) -> str:
    """Write a helper. line: its name, perhaps with what it does (_BODIES), and parameters, which are texts but for
    those with a type.
    """
    name, *words = line.split()
    name, _, does = name.partition("=")
    types = {each.partition(":")[0]: each.partition(":")[2] or "string" for each in words}
    declared = ", ".join(f"[{type_}]${each}" for each, type_ in types.items())
    on_wire = {"byte[]": "[System.Convert]::ToBase64String(${})"}
    given = "; ".join(f"{each} = {on_wire.get(type_, '${}').format(each)}" for each, type_ in types.items())
    body = _BODIES[does].replace("{name}", quoted(name)).replace("{given}", f"@{{ {given} }}")
    return f"function {name} {{\n    param({declared})\n    {body}\n}}\n"


class CmdletProcess:
    """One PowerShell process on one host. Time here is what that process has slept, in lab seconds."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.slept = 0.0
        self.stopping: dict[str, float] = {}  # VMs whose guests were asked to stop, and when they have
        self.jobs = 0  # that nobody has removed
        self.has_mutex = False

    def run(self, name: str, bound: BoundParameters) -> list[Any]:
        """The objects that the cmdlet gives. Raises CmdletError, HostDown."""
        known, answer = _ANSWERS.get(name) or _declared(name)
        if answer is None or set(bound) - known:
            what = "such a call" if answer is None else ", ".join(f"-{p}" for p in sorted(set(bound) - known))
            raise self.machine.windows_error("not-stood-in", name, what=what)
        module = cmdlets()[name]["module"] if name in cmdlets() else ""
        if name.split("-")[0] in _LOOK:
            with self.machine.reading(name, module):
                return list(answer(self, bound))
        return list(answer(self, bound))

    def close(self) -> None:
        """The process is gone; a mutex that it held is abandoned, and the next one takes it."""
        if self.has_mutex:
            self.machine.mutex.release()
            self.has_mutex = False

    def each_vm(self, bound: BoundParameters) -> Iterator[str]:
        for vm in bound["VM"]:
            yield vm["Id"]


def _declared(name: str) -> tuple[frozenset[str], Answer | None]:
    """A cmdlet that is one call of the machine, or of a part of it, as its method declares."""
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
        many = next((path[0] for path in paths.values() if path[0].endswith("[]")), "")
        for one in bound[many[:-2]] if many else (None,):
            given = {many: one, **bound}
            getattr(owner, method)(**{name: _at(given, path) for name, path in paths.items() if path[0] in given})
        return ()

    return frozenset(known), answer


def _at(value: Any, path: Sequence[str]) -> Any:
    """`word` is how Windows writes one of ours."""
    for name in path:
        value = our_word(value) if name == "word" else value[name]
    return value


def _start(machine: Machine, name: str) -> None:
    if name == TASK:
        machine.network.start()
    else:
        machine.accounts.start_scheduled_task(name)


def _names(bound: BoundParameters) -> list[str]:
    return [each["Name"] for each in bound["Name"]]


def _feature_result(restart: bool) -> WindowsObject:
    return windows_object("FeatureOperationResult", Success=True, RestartNeeded="Yes" if restart else "No")


def _write_registry(machine: Machine, bound: BoundParameters) -> None:
    if (written := machine.registry_writers.get(bound["Path"])) is not None:
        with machine.changing("Write-WinhostRegistry"):
            written(bound["Name"], bound["Value"])
        return
    if bound["Path"] != RECORD:
        raise machine.windows_error("not-stood-in", "Write-WinhostRegistry", what=bound["Path"])
    machine.software.write_registry(bound["Name"], bound["Value"])


def _allow(machine: Machine, bound: BoundParameters) -> None:
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
    "Set-NetFirewallRule Name InputObject RemoteAddress Enabled": _allow,
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

# They tell of all instances of a resource.
OBJECTS: Mapping[str, tuple[str, str]] = {
    "Get-VMHostPartitionableGpu": ("VMHostPartitionableGpu", "PartitionableGpu"),
    "Get-VMPartitionableGpu": ("VMHostPartitionableGpu", "PartitionableGpu"),
    "Get-Disk": ("MSFT_Disk", "Disk"),
}

calls(_CALLS)
calls({name: lambda machine, _, of=of: all_shown(machine, *of) for name, of in OBJECTS.items()})  # type: ignore[misc]
