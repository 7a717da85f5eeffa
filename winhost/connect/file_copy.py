"""Large files of this computer, copied to a Windows host beside its own connection: by SMB or by SFTP.

SMB: through the administrative share, with SMB 3 and encryption; only members of the host's Administrators group may.
SFTP: through the host's OpenSSH server, entered as fleet.yaml says at `sftp`, by a host key that is known before.
Nothing is opened or run on the host for either.
"""

import logging
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from winhost.connect.guard import Guard, shown_address
from winhost.connect.logged import logged
from winhost.connect.ssh_logon import SshConnection, connecting
from winhost.connect.wire_errors import WireError, one_line
from winhost.model.fleet import Host, Login

log = logging.getLogger(__name__)

_PIECE = 1 << 20
_SMB_PORT, _SMB_CONNECT_S = 445, 15
_ON_DRIVE = re.compile(r"[A-Za-z]:(\\[A-Za-z0-9._-]*[A-Za-z0-9_-])+")


class NotWritten(Exception):
    """The file could not be written to the host, or not all of it."""


def copied(source: Path, at: int, write: Callable[[bytes], None]) -> Iterator[int]:
    """Write a file from byte `at` on, piece by piece. Yields how many bytes are there, before each piece and after the
    last.
    """
    with source.open("rb") as file:
        file.seek(at)
        while piece := file.read(_PIECE):
            yield at
            write(piece)
            at += len(piece)
    yield at


def sent_by_smb(host: Host, path: str, source: Path, at: int, port: int = _SMB_PORT) -> Iterator[int]:
    """Write a local file from byte `at` on to a file that exists on the host, as C:\\folder\\file. Yields as `copied`.
    Raises NotWritten, OSError of the local file.
    """
    import smbclient  # type: ignore[import-untyped]  # it brings no types
    from smbprotocol.exceptions import SMBException  # type: ignore[import-untyped]
    from spnego.exceptions import SpnegoError

    how = host.transport
    password = how.password.resolve().reveal() if how.password else None
    drive, _, below = path.partition(":\\")
    try:
        with logged(log, host.name, f"open its administrative share on port {port}"):
            smbclient.register_session(
                host.address, how.user, password, port=port, encrypt=True, connection_timeout=_SMB_CONNECT_S
            )
        share = rf"\\{host.address}\{drive}$\{below}"
        with smbclient.open_file(share, mode="r+b", buffering=0, port=port) as target:
            target.seek(at)
            yield from copied(source, at, lambda piece: _write_all(target, piece))
    except (SMBException, SpnegoError, OSError, ValueError) as error:
        raise NotWritten(one_line(str(error))[:300]) from None
    finally:
        with suppress(Exception):  # logging off fails where the host is gone, and must not hide why
            smbclient.delete_session(host.address, port=port)


def _write_all(target: Any, piece: bytes) -> None:
    """One write takes as much as the server takes at a time, and says so by the count alone."""
    left = memoryview(piece)
    while left:
        taken = target.write(left)
        if not taken:
            raise NotWritten("the share takes no more bytes, and does not say why")
        left = left[taken:]


def sent_by_sftp(host: Host, path: str, source: Path, at: int, root: str = "") -> Iterator[int]:
    """Write a local file from byte `at` on to a file that exists on the host, as C:\\folder\\file. Yields as `copied`.
    root: what stands before the drive where that is no Windows.

    Raises NotWritten, UsageError (KeyUnusable, SecretUnreadable), OSError of the local file.
    """
    if host.sftp is None:
        raise NotWritten(f"fleet.yaml has no hosts.{host.name}.sftp")
    name = f"{host.name}/sftp"
    guard = Guard(name, shown_address(host.sftp.address, host.sftp.port), timeouts="sftp")
    connection = SshConnection()
    try:
        if not _ON_DRIVE.fullmatch(path):
            raise NotWritten("it is no path on a drive of the host")
        named = path.replace("\\", "/")  # OpenSSH of Windows names it /C:/folder/file
        yield from _written(connection, guard, host.sftp, f"{root}/{named}", (source, at))
    except WireError as error:
        raise NotWritten(error.what) from None
    finally:
        connection.close()


def _written(connection: SshConnection, guard: Guard, login: Login, path: str, what: tuple[Path, int]) -> Iterator[int]:
    from paramiko import SFTPClient, SSHException  # type: ignore[import-untyped]  # it brings no types

    guard.begin(login.call_timeout, opening=True)
    with logged(log, guard.host, "open SFTP"):
        connection.open(guard.host, login, None, guard)
        client = connecting(login, guard, lambda: SFTPClient.from_transport(connection.transport()))
    client.get_channel().settimeout(login.operation_timeout)
    source, at = what
    try:
        with client.open(path, "r+") as target:
            target.set_pipelined(True)  # else each 32 KiB wait for an answer
            target.seek(at)
            for there in copied(source, at, target.write):
                guard.begin(login.call_timeout)
                yield there
            written = target.stat().st_size or 0  # nobody looks at the answers to the last writes
            if written < there:
                raise NotWritten(f"the host has {written:,} of {there:,} bytes; its disk may be full")
    except (SSHException, EOFError, OSError) as error:
        raise NotWritten(one_line(error)[:300] or type(error).__name__) from None
