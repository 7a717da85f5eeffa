"""Files written to a Windows host through the SFTP of its OpenSSH server.

It is entered as fleet.yaml says at `sftp`, by a host key that is known before; nothing is ever run there.
"""

import logging
import re
from collections.abc import Iterator
from pathlib import Path

from winhost.connect.file_copy import NotWritten, copied
from winhost.connect.guard import Guard, place
from winhost.connect.logged import logged
from winhost.connect.ssh_logon import SshConnection, connecting
from winhost.connect.wire_errors import WireError, one_line
from winhost.model.fleet import Host, Login

log = logging.getLogger(__name__)

_ON_DRIVE = re.compile(r"[A-Za-z]:(\\[A-Za-z0-9._-]*[A-Za-z0-9_-])+")


def sent_by_sftp(host: Host, path: str, source: Path, at: int, root: str = "") -> Iterator[int]:
    """A local file's bytes from `at` on to a path on the host, as C:\\folder\\file, which must be there; gives how much
    of it is there, before each piece and after the last. root: what stands before the drive where that is no Windows.

    Raises NotWritten, UsageError (KeyUnusable, SecretUnreadable), OSError of the local file.
    """
    if host.sftp is None:
        raise NotWritten(f"fleet.yaml has no hosts.{host.name}.sftp")
    name = f"{host.name}/sftp"
    guard = Guard(name, place(host.sftp.address, host.sftp.port), timeouts="sftp")
    connection = SshConnection()
    try:
        yield from _written(connection, guard, host.sftp, root + _of_sftp(path), (source, at))
    except WireError as error:
        raise NotWritten(error.what) from None
    finally:
        connection.close()


def _of_sftp(path: str) -> str:
    """The path as OpenSSH of Windows names it: /C:/folder/file. Raises NotWritten."""
    if not _ON_DRIVE.fullmatch(path):
        raise NotWritten("it is no path on a drive of the host")
    return "/" + path.replace("\\", "/")


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
    except (SSHException, EOFError, OSError) as error:
        raise NotWritten(one_line(error)[:300] or type(error).__name__) from None
