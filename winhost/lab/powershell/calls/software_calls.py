"""Cmdlets of optional features and signatures, and the helpers of our agent that bring files."""

from collections.abc import Iterable
from typing import Any

from winhost.lab.physics.windows_objects import WindowsObject, of_type
from winhost.lab.powershell.calls.cmdlet_process import BoundParameters, CmdletProcess, answers
from winhost.lab.powershell.windows_views import driver_models, gpu_addresses

_STATES = {
    "available": "Disabled",
    "installed": "Enabled",
    "install-pending": "EnablePending",
    "uninstall-pending": "DisablePending",
}


@answers("Get-WindowsOptionalFeature", "Online")
def _optional_features(process: CmdletProcess, _bound: BoundParameters) -> Iterable[Any]:
    known = process.machine.optional_features
    return [of_type("OptionalFeature", FeatureName=n, State=_STATES[s]) for n, s in known.items()]


@answers("Get-AuthenticodeSignature", "LiteralPath")
def _signature(process: CmdletProcess, bound: BoundParameters) -> Iterable[Any]:
    for path in bound["LiteralPath"]:
        status, subject = process.machine.software.signature(path)
        signer = of_type("SignerCertificate", Subject=subject) if subject else None
        yield of_type("Signature", Status=status, SignerCertificate=signer)


# ---- programs


def msiexec(process: CmdletProcess, arguments: list[str]) -> WindowsObject:
    """As Invoke-WinhostNative tells of it."""
    return _ended(process.machine.software.run_msiexec(arguments))


def nvidia_smi(process: CmdletProcess, arguments: list[str]) -> WindowsObject | None:
    """The same, or None where there is no such program."""
    found = driver_models(process.machine, process.machine.software.driver_models())
    if found is None or "-dm" not in arguments:
        return None if found is None else _ended(*found)
    asked = dict(zip(arguments[::2], arguments[1::2], strict=True))
    addresses = dict(zip(gpu_addresses(process.machine), process.machine.devices, strict=True))
    return _ended(*process.machine.software.set_driver_model(addresses[asked["-i"]].location, int(asked["-dm"])))


def _ended(code: int, output: str = "") -> WindowsObject:
    return WindowsObject(None, {"code": code, "output": output, "errors": ""})
