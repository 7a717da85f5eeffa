"""Find the address of this computer that a host sees."""

import socket

_DISCARD = 9  # a port that nothing is sent to: it is only asked which way leads there


def own_address(toward: str) -> str:
    """The address of the interface that leads to a host. Raises OSError where none does."""
    family, kind, protocol, _, address = socket.getaddrinfo(toward, _DISCARD, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as asked:
        asked.connect(address)
        return str(asked.getsockname()[0]).partition("%")[0]
