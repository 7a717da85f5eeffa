"""What the stand-ins ask: cmdlets by their names and parameters, done or answered by the simulated host."""

from winhost.lab.cmdlets import devices, host, vms
from winhost.lab.cmdlets.desk import Cmdlets, Given

__all__ = ["Cmdlets", "Given", "devices", "host", "vms"]
