"""The calls of the stand-ins, by cmdlet and parameters, which the simulated host does or answers. Importing this
package registers all.
"""

from winhost.lab.powershell.calls import disk_calls, host_calls, network_calls, plain_calls, vm_calls

__all__ = ["disk_calls", "host_calls", "network_calls", "plain_calls", "vm_calls"]
