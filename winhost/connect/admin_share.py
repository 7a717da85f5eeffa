"""Files written to a Windows host through its administrative share, over SMB 3 with encryption.

By whoever manages the host anyway: members of its Administrators group alone may. Nothing is opened for it, on either
side; many hosts let SMB through where they let WinRM through, and some do not.
"""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from winhost.connect.file_copy import NotWritten, copied
from winhost.connect.logged import logged
from winhost.connect.wire_errors import one_line
from winhost.model.fleet import Host

log = logging.getLogger(__name__)

PORT = 445
_CONNECT_S = 15


def written(host: Host, path: str, source: Path, at: int, port: int = PORT) -> Iterator[int]:
    """A local file's bytes from `at` on to a path on the host, as C:\\folder\\file, which must be there; gives how much
    of it is there, before each piece and after the last. Raises NotWritten, OSError of the local file.
    """
    import smbclient  # type: ignore[import-untyped]  # it brings no types
    from smbprotocol.exceptions import SMBException  # type: ignore[import-untyped]
    from spnego.exceptions import SpnegoError

    how = host.transport
    password = how.password.resolve().reveal() if how.password else None
    try:
        with logged(log, host.name, f"open its administrative share on port {port}"):
            smbclient.register_session(
                host.address, how.user, password, port=port, encrypt=True, connection_timeout=_CONNECT_S
            )
        with smbclient.open_file(_on_share(host.address, path), mode="r+b", buffering=0, port=port) as target:
            target.seek(at)
            yield from copied(source, at, lambda piece: _write_all(target, piece))
    except (SMBException, SpnegoError, OSError, ValueError) as error:
        raise NotWritten(one_line(str(error))[:300]) from None
    finally:
        smbclient.delete_session(host.address, port=port)


def _on_share(address: str, path: str) -> str:
    drive, _, rest = path.partition(":\\")
    return rf"\\{address}\{drive}$\{rest}"


def _write_all(target: Any, piece: bytes) -> None:
    """One write takes as much as the server takes at a time, and says so by the count alone."""
    left = memoryview(piece)
    while left:
        taken = target.write(left)
        if not taken:
            raise NotWritten("the share takes no more bytes, and does not say why")
        left = left[taken:]
