"""Generates PowerShell functions that stand in for cmdlets of Windows, from a table of Microsoft's documentation.

The stand-ins have the names, parameters, parameter sets and types of the real cmdlets, so that a wrong call fails as on
Windows. They call the simulated host.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from typing import Any

import yaml

from winhost.core.dataclass import dataclass
from winhost.model.once import once

_FOLDER = files(__package__)
_ENGINE_MODULES = "Microsoft.PowerShell."
_ACCOUNTS_MODULE = "Microsoft.PowerShell.LocalAccounts"
# Cmdlets that PowerShell itself has, and that here have to work on the simulated host.
_REPLACED_CMDLETS = {
    "Get-AuthenticodeSignature",
    "Get-Command",
    "Get-Module",
    "Get-Service",
    "Remove-Job",
    "Start-Sleep",
}
_REPLACED_CMDLETS |= {"Get-WinEvent", "Receive-Job", "Test-Connection"}
_TYPE_NAMES = {
    "Boolean": "bool",
    "Guid": "guid",
    "Int32": "int",
    "Int64": "long",
    "String": "string",
    "UInt16": "uint16",
    "UInt32": "uint32",
    "UInt64": "uint64",
    "switch": "switch",
}
_READ_ONLY = {"PSEdition"}  # read-only variables of PowerShell, which a function cannot have as a parameter
_RENAMED = {"CimInstance": "CimObject"}  # PowerShell has a type of that name, which cannot be used outside Windows


@once
def cmdlets() -> Mapping[str, Mapping[str, Any]]:
    """Return the cmdlets with a stand-in, by name: module, parameters, parameter sets and the other entries."""
    all_cmdlets: Mapping[str, Mapping[str, Any]] = json.loads(script_text("cmdlets.json"))["cmdlets"]
    modules = {c["module"] for c in all_cmdlets.values()}
    engine_modules = {each for each in modules if each.startswith(_ENGINE_MODULES) and each != _ACCOUNTS_MODULE}
    return {n: c for n, c in all_cmdlets.items() if n in _REPLACED_CMDLETS or c["module"] not in engine_modules}


@once
def standins() -> str:
    """Return the script that a runspace runs before the agent. It connects to the lab that WINHOST_LAB names."""
    parts = [*_types(), script_text("standins.ps1"), *(_function(name, entry) for name, entry in cmdlets().items())]
    return "\n".join(parts)


def script_text(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="ascii")


@dataclass(frozen=True)
class Types:
    """The table of types. classes: type of each property, perhaps with the resource's property that it shows; keys: the
    properties that identify an object.
    """

    enumerations: Mapping[str, Sequence[str]]
    classes: Mapping[str, Mapping[str, Sequence[str]]]
    keys: Mapping[str, Sequence[str]]


@once
def types() -> Types:
    table: dict[str, Any] = yaml.safe_load(script_text("types.yaml"))
    classes = {name: {prop: kind.split() for prop, kind in each.items()} for name, each in table["classes"].items()}
    return Types(table["enumerations"], classes, table["keys"])


def _types() -> Iterator[str]:
    for name, members in types().enumerations.items():
        yield f"enum {name} {{\n" + "\n".join(f"    {member}" for member in members) + "\n}"
    for name, properties in types().classes.items():
        base = f" : {properties['is'][0]}" if "is" in properties else ""
        lines = [f"    [{kind[0]}]${prop}" for prop, kind in properties.items() if prop != "is"]
        # Get-WindowsFeature's objects can be made from a name, which PowerShell does for parameters.
        if name == "Feature":
            lines += ["    Feature() {\n    }", "    Feature([string]$Name) {\n        $this.Name = $Name\n    }"]
        yield f"class {name}{base} {{\n" + "\n".join(lines) + "\n}"
    yield "$script:LabTypes = @{\n" + "\n".join(f"    {name} = [{name}]" for name in types().classes) + "\n}"
    keys = [f"    {name} = {_array(parts)}" for name, parts in types().keys.items()]
    yield "$script:LabKeys = @{\n" + "\n".join(keys) + "\n}"


def _function(name: str, entry: Mapping[str, Any]) -> str:
    binding = ["PositionalBinding = $false"]
    if "default_set" in entry:
        binding.append(f"DefaultParameterSetName = {quoted(entry['default_set'])}")
    if entry.get("confirms"):
        binding.append("SupportsShouldProcess = $true")
    if entry.get("asks"):
        binding.append("ConfirmImpact = 'High'")
    names = [parameter for parameter in entry["parameters"] if parameter not in _READ_ONLY]
    parameters = ",\n".join(_parameter(entry, parameter) for parameter in names)
    confirmation = [f"    if (-not $PSCmdlet.ShouldProcess({quoted(name)})) {{\n        return\n    }}"]
    return "\n".join(
        [
            f"function {name} {{",
            f"    [CmdletBinding({', '.join(binding)})]",
            f"    param(\n{parameters}\n    )",
            *(confirmation if entry.get("confirms") else []),
            f"    Invoke-LabCmdlet {quoted(name)} $PSCmdlet $PSBoundParameters {_array(names)}",
            "}",
        ]
    )


def _parameter(entry: Mapping[str, Any], name: str) -> str:
    lines = [f"        [Parameter({', '.join(attributes)})]" for attributes in _memberships(entry, name)]
    if name in entry.get("aliases", {}):
        lines.append(f"        [Alias({', '.join(map(quoted, entry['aliases'][name]))})]")
    return "\n".join([*lines, f"        [{_type(entry['parameters'][name])}]${name}"])


def _memberships(entry: Mapping[str, Any], name: str) -> Iterator[list[str]]:
    """Yield a parameter's attributes for each of its parameter sets; once if it belongs to all."""
    position = [f"Position = {entry['positions'][name]}"] if name in entry.get("positions", {}) else []
    sets: Mapping[str, list[str]] = entry.get("sets", {"*": [name]})
    for parameter_set, members in sets.items():
        mandatory = f"{name}!" in members
        if mandatory or name in members:
            set_name = [] if parameter_set == "*" else [f"ParameterSetName = {quoted(parameter_set)}"]
            yield [*set_name, *position, *(["Mandatory = $true"] if mandatory else [])]


def _type(documented: str) -> str:
    name, brackets = documented.removesuffix("[]"), "[]" * documented.endswith("[]")
    name = _RENAMED.get(name, name)
    is_generated = name in types().classes or name in types().enumerations
    return (name if is_generated else _TYPE_NAMES.get(name, "object")) + brackets


def quoted(text: str) -> str:
    return f"'{text}'"


def _array(names: Any) -> str:
    return f"@({', '.join(map(quoted, names))})"
