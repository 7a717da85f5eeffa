"""What the stand-ins of cmdlets do on the simulated host. Importing this package registers all of them."""

from winhost.lab.powershell.calls import cmdlet_process, disk_calls, host_calls, network_calls, vm_calls

__all__ = ["cmdlet_process", "disk_calls", "host_calls", "network_calls", "vm_calls"]
