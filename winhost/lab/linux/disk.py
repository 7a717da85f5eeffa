"""The file system of a simulated Linux, in memory, and the programs for users and groups, which work on its files.

It starts with the usual folders and the files of the facts. Source: the programs' manual pages.
"""

import errno
import hashlib
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

from winhost.core.answers import Record
from winhost.core.dataclass import dataclass

_MAX_LINKS = 40
_MODES = {stat.S_IFDIR: 0o755, stat.S_IFLNK: 0o777}


@dataclass(eq=False)
class Node:
    """A file, folder or link. kind: its type in st_mode; data: contents of a file, target of a link; entries: of a
    folder.
    """

    kind: int
    inode: int
    mode: int
    uid: int = 0
    gid: int = 0
    data: bytes = b""
    entries: dict[str, "Node"] | None = None
    attributes: tuple[str, ...] = ()
    mtime_ns: int = 0
    placeholder: tuple[int, str] | None = None
    """The size and hash of a file whose content is not stored."""

    def copy(self) -> "Node":
        copied = Node(self.kind, self.inode, self.mode, self.uid, self.gid, self.data)
        copied.attributes, copied.mtime_ns, copied.placeholder = self.attributes, self.mtime_ns, self.placeholder
        if self.entries is not None:
            copied.entries = {name: each.copy() for name, each in self.entries.items()}
        return copied

    @property
    def size(self) -> int:
        return self.placeholder[0] if self.placeholder else len(self.data)

    @property
    def sha256(self) -> str:
        return (
            self.placeholder[1].removeprefix("sha256:") if self.placeholder else hashlib.sha256(self.data).hexdigest()
        )

    def folder(self, path: str = "") -> dict[str, "Node"]:
        """Return the entries of a folder. Raises OSError if it is no folder."""
        if self.entries is None:
            raise_os_error(errno.ENOTDIR, path)
        return self.entries


Chain = list[tuple[str, Node]]  # from the root on


@dataclass
class PathLookup:
    """The result of resolving a path. above: the chain to the folder of the node; node: None if it does not exist."""

    above: Chain
    name: str
    node: Node | None

    @property
    def folder(self) -> dict[str, Node]:
        return self.above[-1][1].folder()

    @property
    def chain(self) -> Chain:
        assert self.node is not None
        return [*self.above, (self.name, self.node)] if self.name else self.above


def raise_os_error(number: int, path: object) -> NoReturn:
    """Raise OSError."""
    import os

    raise OSError(number, os.strerror(number), path)


class Disk:
    """A file system. Paths are absolute, unless a base is given."""

    def __init__(self) -> None:
        self._inodes = 1
        self.root = Node(stat.S_IFDIR, 1, 0o755, entries={})

    def __deepcopy__(self, memo: dict[int, Any]) -> "Disk":
        copied = Disk()
        copied._inodes, copied.root = self._inodes, self.root.copy()
        return copied

    def new(self, kind: int, mode: int | None = None, data: bytes = b"") -> Node:
        self._inodes += 1
        mode = _MODES.get(kind, 0o644) if mode is None else mode
        return Node(kind, self._inodes, mode, data=data, entries={} if kind == stat.S_IFDIR else None)

    def find(self, path: str, base: Chain | None = None, *, follow: bool = True) -> PathLookup:
        """Resolve a path. Raises OSError if its folder does not exist, or is no folder."""
        root: Chain = [("", self.root)]
        chain = root if base is None or path.startswith("/") else list(base)
        parts, links = [part for part in path.split("/") if part not in ("", ".")], 0
        while parts:
            part = parts.pop(0)
            if part == "..":
                chain = chain[:-1] or root
                continue
            node = chain[-1][1].folder(path).get(part)
            if node is None and not parts:
                return PathLookup(chain, part, None)
            if node is None:
                raise_os_error(errno.ENOENT, path)
            if node.kind == stat.S_IFLNK and (parts or follow):
                links += 1
                if links > _MAX_LINKS:
                    raise_os_error(errno.ELOOP, path)
                target = node.data.decode()
                chain = root if target.startswith("/") else chain
                parts = [each for each in target.split("/") if each not in ("", ".")] + parts
            elif not parts:
                return PathLookup(chain, part, node)
            else:
                chain = [*chain, (part, node)]
        return PathLookup(chain, "", chain[-1][1])

    @staticmethod
    def is_kernel_setting(chain: Chain) -> bool:
        """Tell whether it is a setting of the kernel below /proc/sys."""
        return [name for name, _ in chain[1:3]] == ["proc", "sys"]

    # ---- for the simulator itself

    def node(self, path: str, *, follow: bool = False) -> Node | None:
        try:
            return self.find(path, follow=follow).node
        except OSError:
            return None

    def text(self, path: str) -> str | None:
        """Return the text of a file, or None if it does not exist."""
        node = self.node(path, follow=True)
        return node.data.decode() if node is not None and node.kind == stat.S_IFREG else None

    def list_names(self, folder: str) -> list[str]:
        node = self.node(folder, follow=True)
        return sorted(node.entries) if node is not None and node.entries is not None else []

    def make_folder(self, path: str) -> dict[str, Node]:
        """Make a folder and its parents."""
        folder = self.root
        for part in path.strip("/").split("/"):
            folder = folder.folder().setdefault(part, self.new(stat.S_IFDIR)) if part else folder
        return folder.folder()

    def put(self, path: str, node: Node) -> Node:
        folder, _, name = path.rpartition("/")
        self.make_folder(folder)[name] = node
        return node

    def write(self, path: str, text: str, mode: int = 0o644) -> Node:
        return self.put(path, self.new(stat.S_IFREG, mode, text.encode()))

    def link(self, path: str, target: str) -> Node:
        return self.put(path, self.new(stat.S_IFLNK, data=target.encode()))

    def remove(self, path: str) -> None:
        """Remove a file, or a folder with its contents, if it exists."""
        if self.node(path) is not None:
            found = self.find(path, follow=False)
            del found.folder[found.name]

    def size(self) -> int:
        """Return the size of all files together, in bytes."""
        return sum(node.size for _, node in self.walk(""))

    def walk(self, path: str) -> Iterator[tuple[str, Node]]:
        """Yield path and node of everything below a folder."""
        node = self.node(path, follow=True)
        for name, each in sorted((node.entries or {}).items()) if node is not None else ():
            yield f"{path}/{name}", each
            if each.entries is not None:
                yield from self.walk(f"{path}/{name}")


PASSWD, GROUP, SHADOW = "/etc/passwd", "/etc/group", "/etc/shadow"
_FIRST_ID, _FIRST_SYSTEM_ID, _LAST_ID = 1000, 999, 60000
Rows = list[list[str]]


def rows(disk: Disk, path: str) -> Rows:
    return [line.split(":") for line in (disk.text(path) or "").splitlines()]


def write_rows(disk: Disk, path: str, lines: Rows) -> None:
    disk.write(path, "".join(":".join(each) + "\n" for each in lines), 0o640 if path == SHADOW else 0o644)


def to_days(text: str) -> str:
    """Convert a date to days since 1970; empty stays empty."""
    import datetime

    return str((datetime.date.fromisoformat(text) - datetime.date(1970, 1, 1)).days) if text else ""


def _options(arguments: Sequence[str]) -> tuple[dict[str, str], str]:
    """Parse options with and without a value, and the name after them."""
    options: dict[str, str] = {}
    remaining = list(arguments)
    while (word := remaining.pop(0)) != "--":
        is_flag = word in ("--system", "--no-create-home", "--create-home", "--user-group")
        options[word.removeprefix("--")] = "" if is_flag else remaining.pop(0)
    return options, remaining[0]


def _find_free_id(taken: Rows, *, system: bool) -> str:
    numbers = {int(each[2]) for each in taken}
    span = range(_FIRST_SYSTEM_ID, 0, -1) if system else range(_FIRST_ID, _LAST_ID)
    return str(next(number for number in span if number not in numbers))


def _useradd(disk: Disk, arguments: Sequence[str]) -> str:
    options, name = _options(arguments)
    users, groups, system = rows(disk, PASSWD), rows(disk, GROUP), "system" in options
    if "user-group" in options:
        groups.append([name, "x", _find_free_id(groups, system=system), ""])
        write_rows(disk, GROUP, groups)
    gid = next(each[2] for each in groups if each[0] == options.get("gid", name))
    home = options.get("home", f"/home/{name}")
    users.append([name, "x", _find_free_id(users, system=system), gid, "", home, options.get("shell", "/bin/sh")])
    write_rows(disk, PASSWD, users)
    days = to_days(options.get("expiredate", ""))
    write_rows(disk, SHADOW, [*rows(disk, SHADOW), [name, "!", "20000", "0", "99999", "7", "", days, ""]])
    _set_groups(disk, name, options.get("groups"))
    if "create-home" in options:
        disk.make_folder(home)
    return ""


def _set_groups(disk: Disk, name: str, groups_wanted: str | None) -> None:
    """Set the supplementary groups of a user. None: leave them unchanged."""
    if groups_wanted is None:
        return
    groups = rows(disk, GROUP)
    for each in groups:
        others = [member for member in each[3].split(",") if member and member != name]
        each[3] = ",".join([*others, *([name] if each[0] in groups_wanted.split(",") else [])])
    write_rows(disk, GROUP, groups)


def _usermod(disk: Disk, arguments: Sequence[str]) -> str:
    options, name = _options(arguments)
    users, dates = rows(disk, PASSWD), rows(disk, SHADOW)
    user = next(each for each in users if each[0] == name)
    if "gid" in options:
        user[3] = next(each[2] for each in rows(disk, GROUP) if each[0] == options["gid"])
    user[5], user[6] = options.get("home", user[5]), options.get("shell", user[6])
    for each in dates:
        if each[0] == name and "expiredate" in options:
            each[7] = to_days(options["expiredate"])
    write_rows(disk, PASSWD, users)
    write_rows(disk, SHADOW, dates)
    _set_groups(disk, name, options.get("groups"))
    return ""


def _userdel(disk: Disk, arguments: Sequence[str]) -> str:
    """Remove a user, and the group of the same name if it has no other members."""
    name = arguments[-1]
    users = [each for each in rows(disk, PASSWD) if each[0] != name]
    _set_groups(disk, name, "")
    groups = rows(disk, GROUP)
    is_kept = lambda group: group[0] != name or group[3] or any(each[3] == group[2] for each in users)  # noqa: E731
    write_rows(disk, PASSWD, users)
    write_rows(disk, GROUP, list(filter(is_kept, groups)))
    write_rows(disk, SHADOW, [each for each in rows(disk, SHADOW) if each[0] != name])
    return ""


def _groupadd(disk: Disk, arguments: Sequence[str]) -> str:
    options, name = _options(arguments)
    groups = rows(disk, GROUP)
    write_rows(disk, GROUP, [*groups, [name, "x", _find_free_id(groups, system="system" in options), ""]])
    return ""


def _groupdel(disk: Disk, arguments: Sequence[str]) -> str:
    write_rows(disk, GROUP, [each for each in rows(disk, GROUP) if each[0] != arguments[-1]])
    return ""


ACCOUNT_PROGRAMS: Mapping[str, Callable[[Disk, Sequence[str]], str]] = {
    "groupadd": _groupadd,
    "groupdel": _groupdel,
    "useradd": _useradd,
    "userdel": _userdel,
    "usermod": _usermod,
}


_FOLDERS = ("/boot", "/dev", "/etc", "/home", "/opt", "/proc", "/run", "/srv", "/sys/module", "/usr")
_SYSCTLS = {
    "kernel.numa_balancing": "1",
    "net.core.somaxconn": "4096",
    "vm.max_map_count": "65530",
    "vm.swappiness": "60",
}
_ROOT = {"uid": 0, "home": "/root", "shell": "/bin/bash", "groups": [], "expires": None, "ours": False}
_GROUPS = {"root": 0, "sudo": 27, "nogroup": 65534}
NFT_UNIT, RULES = "winhost-firewall.service", "/etc/nftables.d/90-winhost-ports.nft"
RESOLVER = "/mnt/wsl/resolv.conf"  # the target of the link /etc/resolv.conf that WSL makes


def make_disk(fact_records: Callable[[str], Sequence[Record]]) -> Disk:
    """Make a disk with the files of the facts. fact_records: returns the records of a resource."""
    disk = Disk()
    for folder in _FOLDERS:
        disk.make_folder(folder)
    disk.make_folder("/var/lib/dpkg/updates")
    disk.write("/etc/ssh/sshd_config", "Include /etc/ssh/sshd_config.d/*.conf\n")
    disk.link("/etc/resolv.conf", RESOLVER)
    _write_accounts(disk, fact_records("LinuxUser"), fact_records("LinuxGroup"))
    for each in fact_records("LinuxFile"):
        put_file(disk, each.key["path"], each.state)
    _write_keys(disk, fact_records("SshKey"))
    for each in fact_records("ReleaseFile"):
        if each.state["sha256"] is not None and each.state["source"] is None:  # not downloaded by winhost
            disk.write(each.key["path"], "", 0o755).placeholder = (
                each.state["bytes"],
                f"sha256:{each.state['sha256']}",
            )
    for each in fact_records("KernelModule"):
        if each.state["loaded"]:
            load_module(disk, each.key["module"])
    for name, live in {**_SYSCTLS, **{each.key["name"]: each.state["live"] for each in fact_records("Sysctl")}}.items():
        disk.write(f"/proc/sys/{name.replace('.', '/')}", f"{live}\n")
    return disk


def put_file(disk: Disk, path: str, state: Mapping[str, Any]) -> None:
    """Write a file from a state of resource LinuxFile; without text and link, remove it."""
    if state["link"] is not None:
        disk.link(path, state["link"])
    elif state["text"] is None:
        disk.remove(path)
    else:
        disk.write(path, state["text"], int(state["mode"] or "0644", 8))


def _write_accounts(disk: Disk, users: Sequence[Record], groups: Sequence[Record]) -> None:
    user_states = {each.key["user"]: each.state for each in users}
    group_states = {each.key["group"]: each.state for each in groups}
    if not (user_states and group_states):
        user_states = {"root": _ROOT}
        group_states = {name: {"gid": gid, "ours": False, "members": []} for name, gid in _GROUPS.items()}
    passwd: Rows = []
    shadow: Rows = []
    for name, state in user_states.items():
        gid = str(group_states[name]["gid"] if name in group_states else state["uid"])
        passwd.append([name, "x", str(state["uid"]), gid, "", state["home"], state["shell"]])
        shadow.append([name, "*", "20000", "0", "99999", "7", "", to_days(state["expires"] or ""), ""])
        disk.make_folder(state["home"])
    table: Rows = []
    for name, state in group_states.items():
        joined = {user for user, each in user_states.items() if name in each["groups"]}
        first = {user for user, _, _, gid, *_ in passwd if gid == str(state["gid"])}
        members = sorted(joined | ({*state["members"]} & {*user_states}) - first)
        table.append([name, "x", str(state["gid"]), ",".join(members)])
    write_rows(disk, PASSWD, passwd)
    write_rows(disk, SHADOW, shadow)
    write_rows(disk, GROUP, table)


def _write_keys(disk: Disk, found: Sequence[Record]) -> None:
    lines: dict[str, str] = {}
    for each in found:
        parts = filter(None, (each.state["options"], each.key["key"], each.state["comment"]))
        lines[each.key["user"]] = lines.get(each.key["user"], "") + " ".join(parts) + "\n"
    for user, text in lines.items():
        disk.write(f"/{user}/.ssh/authorized_keys" if user == "root" else f"/home/{user}/.ssh/authorized_keys", text)


def load_module(disk: Disk, name: str) -> None:
    disk.write(f"/sys/module/{name}/initstate", "live\n")


def start_kernel(disk: Disk, settings: Mapping[str, bytes]) -> None:
    """Empty /run, set the kernel's settings from files, and unload NVIDIA's and blacklisted modules."""
    disk.remove("/run")
    disk.make_folder("/run")
    for path, data in settings.items():
        disk.write(path, data.decode())
    for path, node in list(disk.walk("/etc/sysctl.d")):
        for line in node.data.decode().splitlines() if node.kind == stat.S_IFREG and path.endswith(".conf") else ():
            name, equals, value = line.partition("=")
            if equals and not line.startswith("#"):
                disk.write(f"/proc/sys/{name.strip().replace('.', '/')}", f"{value.strip()}\n")
    for name in disk.list_names("/sys/module"):
        if name in ("nouveau", "nvidia") or is_blacklisted(disk, name):
            disk.remove(f"/sys/module/{name}")


def is_blacklisted(disk: Disk, module: str) -> bool:
    return f"blacklist {module}\n" in (disk.text(f"/etc/modprobe.d/winhost-{module}.conf") or "")
