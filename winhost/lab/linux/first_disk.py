"""The disk of a simulated Linux as it is found first: what every one has, and what the facts of this one tell."""

import hashlib
import json
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from winhost.core.answers import Record
from winhost.lab.linux.account_programs import GROUP, PASSWD, SHADOW, Rows, days_of, write_rows
from winhost.lab.linux.disk import Disk

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
RESOLVER = "/mnt/wsl/resolv.conf"  # to which WSL makes /etc/resolv.conf a link, unless there is a file


def first_disk(found: Callable[[str], Sequence[Record]]) -> Disk:
    """Made once. found: records of the facts, by resource."""
    disk = Disk()
    for folder in _FOLDERS:
        disk.make_folder(folder)
    disk.make_folder("/var/lib/dpkg/updates")
    disk.write("/etc/ssh/sshd_config", "Include /etc/ssh/sshd_config.d/*.conf\n")
    disk.link("/etc/resolv.conf", RESOLVER)
    _put_accounts(disk, found("LinuxUser"), found("LinuxGroup"))
    for each in found("LinuxFile"):
        put_file(disk, each.key["path"], each.state)
    for user, lines in _keys(found("SshKey")).items():
        disk.write(f"/{user}/.ssh/authorized_keys" if user == "root" else f"/home/{user}/.ssh/authorized_keys", lines)
    for each in found("ReleaseFile"):
        if each.state["sha256"] is not None and each.state["source"] is None:  # somebody else put it there
            disk.write(each.key["path"], "", 0o755).told = (each.state["bytes"], f"sha256:{each.state['sha256']}")
    for each in found("KernelModule"):
        if each.state["loaded"]:
            load_module(disk, each.key["module"])
    _put_images(disk, [each for each in found("ContainerImage") if each.state["present"] is True])
    _put_kernel(disk, found("Sysctl"))
    return disk


def put_file(disk: Disk, path: str, state: Mapping[str, Any]) -> None:
    """Write a file from a record; where all of it is null, there is no file."""
    if state["link"] is not None:
        disk.link(path, state["link"])
    elif state["text"] is None:
        disk.remove(path)
    else:
        disk.write(path, state["text"], int(state["mode"] or "0644", 8))


def _put_accounts(disk: Disk, users: Sequence[Record], groups: Sequence[Record]) -> None:
    told = {each.key["user"]: each.state for each in users}
    listed = {each.key["group"]: each.state for each in groups}
    if not (told and listed):
        told = {"root": _ROOT}
        listed = {name: {"gid": gid, "ours": False, "members": []} for name, gid in _GROUPS.items()}
    passwd: Rows = []
    shadow: Rows = []
    for name, state in told.items():
        gid = str(listed[name]["gid"] if name in listed else state["uid"])
        passwd.append([name, "x", str(state["uid"]), gid, "", state["home"], state["shell"]])
        shadow.append([name, "*", "20000", "0", "99999", "7", "", days_of(state["expires"] or ""), ""])
        disk.make_folder(state["home"])
        if state["ours"]:
            remember(disk, "user", name, {"uid": state["uid"], "joined": False, "home": None})
    table: Rows = []
    for name, state in listed.items():
        joined = {user for user, each in told.items() if name in each["groups"]}
        first = {user for user, _, _, gid, *_ in passwd if gid == str(state["gid"])}
        members = sorted(joined | ({*state["members"]} & {*told}) - first)
        table.append([name, "x", str(state["gid"]), ",".join(members)])
        if state["ours"]:
            remember(disk, "group", name, {"gid": state["gid"]})
    write_rows(disk, PASSWD, passwd)
    write_rows(disk, SHADOW, shadow)
    write_rows(disk, GROUP, table)


def remember(disk: Disk, kind: str, name: str, what: Mapping[str, Any]) -> None:
    """Record what winhost made on the disk."""
    digest = hashlib.sha256(name.encode()).hexdigest()[:32]
    disk.write(f"/var/lib/winhost/made/{kind}-{digest}.json", json.dumps({"name": name, **what}) + "\n", 0o600)


def _put_images(disk: Disk, found: Sequence[Record]) -> None:
    """Record the images that winhost was asked for; facts do not tell whether it brought them."""
    for each in found:
        asked = {name: each.state[name] for name in ("id", "archive", "archive_sha256", "bytes", "credentials")}
        digest = hashlib.sha256(each.key["image"].encode()).hexdigest()
        disk.write(
            f"/var/lib/winhost/images/{each.key['engine']}-{digest}.json", json.dumps({**each.key, **asked}), 0o600
        )


def _keys(found: Sequence[Record]) -> dict[str, str]:
    """The lines of each user."""
    lines: dict[str, str] = {}
    for each in found:
        parts = filter(None, (each.state["options"], each.key["key"], each.state["comment"]))
        lines[each.key["user"]] = lines.get(each.key["user"], "") + " ".join(parts) + "\n"
    return lines


def _put_kernel(disk: Disk, found: Sequence[Record]) -> None:
    for name, live in {**_SYSCTLS, **{each.key["name"]: each.state["live"] for each in found}}.items():
        disk.write(f"/proc/sys/{name.replace('.', '/')}", f"{live}\n")


def load_module(disk: Disk, name: str) -> None:
    disk.write(f"/sys/module/{name}/initstate", "live\n")


def start_kernel(disk: Disk, settings: Mapping[str, bytes]) -> None:
    """A start empties /run, sets the kernel's settings from files, and unloads NVIDIA's and blacklisted modules."""
    disk.remove("/run")
    disk.make_folder("/run")
    for path, data in settings.items():
        disk.write(path, data.decode())
    for name, words in _set_at_boot(disk):
        disk.write(f"/proc/sys/{name.replace('.', '/')}", f"{words}\n")
    for name in disk.names("/sys/module"):
        if name in ("nouveau", "nvidia") or is_blacklisted(disk, name):
            disk.remove(f"/sys/module/{name}")


def is_blacklisted(disk: Disk, module: str) -> bool:
    return f"blacklist {module}\n" in (disk.text(f"/etc/modprobe.d/winhost-{module}.conf") or "")


def _set_at_boot(disk: Disk) -> Iterator[tuple[str, str]]:
    for path, node in disk.walk("/etc/sysctl.d"):
        for line in node.data.decode().splitlines() if node.kind == stat.S_IFREG and path.endswith(".conf") else ():
            name, equals, words = line.partition("=")
            if equals and not line.startswith("#"):
                yield name.strip(), words.strip()
