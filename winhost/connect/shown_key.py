"""Ask a machine for its host key without logging on: an installed system is recognized by it."""

import socket
from contextlib import suppress

_TIMEOUT_S = 15


def shown_host_key(address: str, port: int) -> str | None:
    """Its Ed25519 key as in a .pub file, without a comment; None where no SSH server answers."""
    from paramiko import SSHException, Transport  # type: ignore[import-untyped]

    with suppress(SSHException, EOFError, OSError), socket.create_connection((address, port), _TIMEOUT_S) as line:
        transport = Transport(line)
        try:
            transport.get_security_options().key_types = ("ssh-ed25519",)
            transport.start_client(timeout=_TIMEOUT_S)
            key = transport.get_remote_server_key()
            return f"{key.get_name()} {key.get_base64()}"
        finally:
            transport.close()
    return None
