"""What the stand-ins ask, by cmdlet and parameters: done or answered by the simulated host. Importing it knows all."""

from winhost.lab.powershell.calls import disk_calls, host_calls, network_calls, plain_calls, vm_calls

__all__ = ["disk_calls", "host_calls", "network_calls", "plain_calls", "vm_calls"]
