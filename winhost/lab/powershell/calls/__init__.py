"""What the stand-ins ask, by cmdlet and parameters: done or answered by the simulated host. Importing it knows all."""

from winhost.lab.powershell.calls import (
    account_calls,
    disk_calls,
    host_calls,
    network_calls,
    plain_calls,
    software_calls,
    vm_calls,
    vm_making_calls,
)

__all__ = [
    "account_calls",
    "disk_calls",
    "host_calls",
    "network_calls",
    "plain_calls",
    "software_calls",
    "vm_calls",
    "vm_making_calls",
]
