# key {address: text, port: text}   state {processes: [text], everywhere: bool}
from __future__ import annotations

import socket

from winhost.agent.linux_head import *

LISTENING = "0A"
TABLES = (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6))
EVERYWHERE = ("0.0.0.0", "::")  # noqa: S104 - that is looked for


@reads("ListeningPort", address=ANY_TEXT, port=ANY_TEXT)
def listening_ports(key: Key | None) -> Found:
    found: dict[tuple[str, str], set[str]] = {}
    for address, port, inode in listeners():
        found.setdefault((address, port), set()).add(inode)
    owners = socket_owners({inode for inodes in found.values() for inode in inodes})
    for (address, port), inodes in sorted(found.items()):
        names = sorted({name for inode in inodes for name in owners.get(inode, ())})
        yield {"address": address, "port": port}, {"processes": names, "everywhere": address in EVERYWHERE}


def listeners() -> Iterator[tuple[str, str, str]]:
    """Yield the address, port and inode of each listening socket."""
    for name, family in TABLES:
        path = f"/proc/{os.getpid()}/net/{name}"
        if file_status(path) is None:
            continue  # a kernel without IPv6
        with open_file(path) as table:  # line by line: the table has a line for each connection of the machine
            next(table, None)
            for line in table:
                words = line.decode("ascii").split()
                if words[3] == LISTENING:
                    address, _, port = words[1].partition(":")
                    yield format_address(address, family), str(int(port, 16)), words[9]


def format_address(text: str, family: int) -> str:
    """Format an address of /proc/net/tcp, which consists of 32-bit numbers in the kernel's byte order."""
    packed = b"".join(int(text[at : at + 8], 16).to_bytes(4, sys.byteorder) for at in range(0, len(text), 8))
    return socket.inet_ntop(family, packed)


def socket_owners(inodes: set[str]) -> dict[str, set[str]]:
    """Return the names of the processes that own these sockets, as far as they can be read."""
    owners: dict[str, set[str]] = {}
    wanted = {f"socket:[{inode}]": inode for inode in inodes}
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        with suppress(OSError):  # it has ended, or is another user's
            for each in (process / "fd").iterdir():
                inode = wanted.get(os.readlink(each))
                if inode:
                    name = read_file(f"{process}/comm").decode("utf-8", "replace").strip()
                    owners.setdefault(inode, set()).add(name)
    return owners
