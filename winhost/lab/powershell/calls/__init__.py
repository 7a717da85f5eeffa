"""The calls of the stand-ins, by cmdlet and parameters, which the simulated host does or answers. Importing this
package registers all.
"""

from winhost.lab.powershell.calls import cmdlet_process, disk_calls, host_calls, network_calls, vm_calls

__all__ = ["cmdlet_process", "disk_calls", "host_calls", "network_calls", "vm_calls"]
