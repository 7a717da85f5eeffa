"""Copy large files of this computer to a Windows host by SMB or SFTP, outside the agent's connection.

SMB uses the administrative share, with SMB 3 and encryption, for members of the host's Administrators group. SFTP uses
the host's OpenSSH server with the logon of `sftp` in fleet.yaml, and a known host key. Neither opens or runs anything
on the host.
"""

import logging
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from winhost.connect.guard import Guard, format_address
from winhost.connect.logged import logged
from winhost.connect.ssh_logon import SshConnection, translate_errors
from winhost.connect.wire_errors import WireError, one_line
from winhost.model.fleet import Host, Login

log = logging.getLogger(__name__)

_PIECE = 1 << 20
_SMB_PORT, _SMB_CONNECT_S = 445, 15
_DRIVE_PATH = re.compile(r"[A-Za-z]:(\\[A-Za-z0-9._-]*[A-Za-z0-9_-])+")


class NotWritten(Exception):
    """The file could not be written to the host, or not all of it."""


def copy_pieces(source: Path, offset: int, write: Callable[[bytes], None]) -> Iterator[int]:
    """Write a file in pieces, from an offset. Yields the position before each piece and after the last."""
    with source.open("rb") as file:
        file.seek(offset)
        while piece := file.read(_PIECE):
            yield offset
            write(piece)
            offset += len(piece)
    yield offset


def send_by_smb(host: Host, path: str, source: Path, offset: int, port: int = _SMB_PORT) -> Iterator[int]:
    """Write a local file from an offset to an existing file on the host. path: as C:\\folder\\file. Yields as
    `copy_pieces`. Raises NotWritten, OSError of the local file.
    """
    import smbclient  # type: ignore[import-untyped]  # it brings no types
    from smbprotocol.exceptions import SMBException  # type: ignore[import-untyped]
    from spnego.exceptions import SpnegoError

    transport = host.transport
    password = transport.password.resolve().reveal() if transport.password else None
    drive, _, relative = path.partition(":\\")
    try:
        with logged(log, host.name, f"open its administrative share on port {port}"):
            smbclient.register_session(
                host.address, transport.user, password, port=port, encrypt=True, connection_timeout=_SMB_CONNECT_S
            )
        share = rf"\\{host.address}\{drive}$\{relative}"
        with smbclient.open_file(share, mode="r+b", buffering=0, port=port) as target:
            target.seek(offset)
            yield from copy_pieces(source, offset, lambda piece: _write_all(target, piece))
    except (SMBException, SpnegoError, OSError, ValueError) as error:
        raise NotWritten(one_line(str(error))[:300]) from None
    finally:
        with suppress(Exception):  # logging off fails if the connection is lost, and must not hide that error
            smbclient.delete_session(host.address, port=port)


def _write_all(target: Any, piece: bytes) -> None:
    """Write all of a piece. The server may take a part of it at a time."""
    remaining = memoryview(piece)
    while remaining:
        written = target.write(remaining)
        if not written:
            raise NotWritten("the share takes no more bytes, and does not say why")
        remaining = remaining[written:]


def send_by_sftp(host: Host, path: str, source: Path, offset: int, root: str = "") -> Iterator[int]:
    """Write a local file from an offset to an existing file on the host. path: as C:\\folder\\file; root: a folder
    before the drive, for servers that are no Windows. Yields as `copy_pieces`.

    Raises NotWritten, UsageError (KeyUnusable, SecretUnreadable), OSError of the local file.
    """
    if host.sftp is None:
        raise NotWritten(f"fleet.yaml has no hosts.{host.name}.sftp")
    name = f"{host.name}/sftp"
    guard = Guard(name, format_address(host.sftp.address, host.sftp.port), timeouts="sftp")
    connection = SshConnection()
    try:
        if not _DRIVE_PATH.fullmatch(path):
            raise NotWritten("it is no path on a drive of the host")
        sftp_path = path.replace("\\", "/")  # OpenSSH of Windows names it /C:/folder/file
        yield from _write_by_sftp(connection, guard, host.sftp, f"{root}/{sftp_path}", (source, offset))
    except WireError as error:
        raise NotWritten(error.what) from None
    finally:
        connection.close()


def _write_by_sftp(
    connection: SshConnection, guard: Guard, login: Login, path: str, what: tuple[Path, int]
) -> Iterator[int]:
    from paramiko import SFTPClient, SSHException  # type: ignore[import-untyped]  # it brings no types

    guard.begin(login.call_timeout, opening=True)
    with logged(log, guard.host, "open SFTP"):
        connection.open(guard.host, login, None, guard)
        client = translate_errors(login, guard, lambda: SFTPClient.from_transport(connection.transport()))
    client.get_channel().settimeout(login.operation_timeout)
    source, offset = what
    try:
        with client.open(path, "r+") as target:
            target.set_pipelined(True)  # otherwise it waits for an answer to each 32 KiB
            target.seek(offset)
            for position in copy_pieces(source, offset, target.write):
                guard.begin(login.call_timeout)
                yield position
            written = target.stat().st_size or 0  # pipelined writes do not read their last answers
            if written < position:
                raise NotWritten(f"the host has {written:,} of {position:,} bytes; its disk may be full")
    except (SSHException, EOFError, OSError) as error:
        raise NotWritten(one_line(error)[:300] or type(error).__name__) from None
