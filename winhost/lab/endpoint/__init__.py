"""The WSMan endpoint of the lab: real PowerShell remoting on loopback, in front of a simulated host."""

from winhost.lab.endpoint.endpoint import Endpoint
from winhost.lab.endpoint.faults import Moment, When, WireTroubles, delay, drop, exceed_quota, refuse
from winhost.lab.endpoint.host import PipelineError, RemoteCommand, Runspace, SimulatedHost
from winhost.lab.endpoint.wsman import Action

__all__ = [
    "Action",
    "Endpoint",
    "Moment",
    "PipelineError",
    "RemoteCommand",
    "Runspace",
    "SimulatedHost",
    "When",
    "WireTroubles",
    "delay",
    "drop",
    "exceed_quota",
    "refuse",
]
