"""Cmdlets of devices: Plug and Play, and what Hyper-V takes from the host and gives to VMs."""

from collections.abc import Iterable
from typing import Any

from winhost.lab.powershell.calls.cmdlet_process import CmdletProcess, Given, answers
from winhost.lab.powershell.windows_views import Entity, entities


@answers("Get-PnpDevice", "PresentOnly")
def _pnp(process: CmdletProcess, _given: Given) -> Iterable[Any]:
    return [entity.as_object() for entity in entities(process.machine)]


@answers("Get-PnpDeviceProperty", "InputObject", "KeyName")
def _pnp_properties(process: CmdletProcess, given: Given) -> Iterable[Any]:
    known = {entity.instance: entity for entity in entities(process.machine)}
    asked: list[Entity] = [known[each["DeviceID"]] for each in given["InputObject"]]
    return [entity.property(key) for entity in asked for key in given["KeyName"]]
