"""The WSMan endpoint of the lab: real PowerShell remoting on loopback, in front of a simulated host."""

from winhost.lab.wire.served_host import PipelineError, RemoteCommand, Runspace, SimulatedHost
from winhost.lab.wire.wire_troubles import Moment, When, WireTroubles, delay, drop, exceed_quota, refuse
from winhost.lab.wire.wsman import Action
from winhost.lab.wire.wsman_endpoint import Endpoint

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
