"""The WSMan endpoint of the lab: real PowerShell remoting on loopback, in front of a simulated host."""

from winhost.lab.endpoint.endpoint import Endpoint
from winhost.lab.endpoint.faults import Faults, Moment, When, delay, drop, exceed_quota, refuse
from winhost.lab.endpoint.host import Command, PipelineError, Runspace, SimulatedHost
from winhost.lab.endpoint.wsman import Action

__all__ = [
    "Action",
    "Command",
    "Endpoint",
    "Faults",
    "Moment",
    "PipelineError",
    "Runspace",
    "SimulatedHost",
    "When",
    "delay",
    "drop",
    "exceed_quota",
    "refuse",
]
