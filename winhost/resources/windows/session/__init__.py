"""The account and the PowerShell of our session on the host."""

from typing import Annotated

from winhost.resources.base import ADDRESS, ResourceType, State, resource

UNSIGNED_REFUSED = ("restricted", "all-signed")


@resource(ResourceType("Session", title="the session", order=10))
class Session(State):
    """The logon and engine that answer. `simulated` is true on lab hosts and makes their facts `synthetic`.

    execution_policy: what group policy has the computer's Windows PowerShell run, over anything that a command line
    says: restricted, all-signed, remote-signed, unrestricted; null where no such policy is set.
    peers: addresses that WinRM sessions come from now, of whomever: ours is among them.
    """

    user: str
    administrator: bool
    language_mode: str
    powershell: str
    is_64bit: bool
    execution_policy: str | None
    simulated: bool
    peers: tuple[Annotated[str, ADDRESS], ...]
