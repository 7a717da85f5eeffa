"""What the stand-ins ask: cmdlets by their names and parameters, done or answered by the simulated host."""

from winhost.lab.powershell.calls import (
    account_calls,
    device_calls,
    host_calls,
    network_calls,
    plain_calls,
    software_calls,
    vm_calls,
)
from winhost.lab.powershell.calls.cmdlet_process import Cmdlets, Given

__all__ = [
    "Cmdlets",
    "Given",
    "account_calls",
    "device_calls",
    "host_calls",
    "network_calls",
    "plain_calls",
    "software_calls",
    "vm_calls",
]
