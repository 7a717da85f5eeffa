"""Secure Boot: whether it is on, and whose signatures the firmware takes."""

from winhost.resources.base import ResourceType, State, resource


@resource(ResourceType("SecureBoot", title="Secure Boot", order=86))
class SecureBoot(State):
    """state: on, off, or unsupported (a BIOS, or firmware without it).

    authorities: the names of the certificates in `db`. revoked: how many programs and certificates `dbx` bars.
    """

    state: str
    authorities: tuple[str, ...]
    revoked: int
