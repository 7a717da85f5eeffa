"""What the stand-ins ask: cmdlets by their names and parameters, done or answered by the simulated host."""

from winhost.lab.cmdlets import accounts, devices, distros, host, network, software, vms
from winhost.lab.cmdlets.desk import Cmdlets, Given

__all__ = ["Cmdlets", "Given", "accounts", "devices", "distros", "host", "network", "software", "vms"]
