"""Who we are on the host, and in which PowerShell."""

from typing import Annotated

from winhost.resources.base import ADDRESS, ResourceType, State, resource


@resource(ResourceType("Session", title="the session", order=10))
class Session(State):
    """The logon and engine that answer. `simulated` is true on lab hosts and makes their facts `synthetic`.

    peers: addresses that WinRM sessions come from now, of whomever: ours is among them.
    """

    user: str
    administrator: bool
    language_mode: str
    powershell: str
    is_64bit: bool
    simulated: bool
    peers: tuple[Annotated[str, ADDRESS], ...]
