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
    _put_folders(disk, found("LinuxFolder"))
    for user, lines in _keys(found("SshKey")).items():
        disk.write(f"/{user}/.ssh/authorized_keys" if user == "root" else f"/home/{user}/.ssh/authorized_keys", lines)
    for each in found("SecretFile"):
        if each.state["secret"] is not None:
            _put_secret(disk, each.key["path"], each.state["secret"])
    _put_brought(disk, found("ModelFiles"), found("ReleaseFile"))
    _put_venvs(disk, found("PythonVenv"))
    _put_images(disk, [each for each in found("ContainerImage") if each.state["present"] is True])
    _put_modules(disk, found("KernelModule"))
    _put_sources(disk, found("AptSource"))
    _put_kernel(disk, found("Sysctl"))
    return disk


def _put_folders(disk: Disk, found: Sequence[Record]) -> None:
    for each in found:
        for name, text in (each.state["files"] or {}).items():
            disk.write(f"{each.key['path']}/{name}", text)


def _put_sources(disk: Disk, found: Sequence[Record]) -> None:
    for each in found:
        if each.state["present"] is True:
            put_source(disk, each.key["name"], each.state)


def put_source(disk: Disk, name: str, state: Mapping[str, Any]) -> None:
    """As its script writes one."""
    key, components = f"/etc/apt/keyrings/{name}.asc", " ".join(state["components"])
    lines = ["# Written by winhost.", "Types: deb", f"URIs: {state['uri']}", f"Suites: {state['suite']}"]
    lines += [f"Components: {components}"] if components else []
    disk.write(f"/etc/apt/sources.list.d/{name}.sources", "\n".join([*lines, f"Signed-By: {key}"]) + "\n")
    disk.write(key, str(state["key"]))


def put_ports(disk: Disk, ports: Mapping[str, Sequence[str]]) -> str:
    """As its script writes the rules of nftables: a line for each port, and the notes that the script reads."""
    notes = [f"# port {port}: {json.dumps(list(ports[port]))}" for port in sorted(ports, key=int)]
    text = "\n".join(["# Written by winhost", *(_drops(port, ports[port]) for port in ports), *notes]) + "\n"
    disk.write(RULES, text)
    disk.write(f"/etc/systemd/system/{NFT_UNIT}", "[Install]\nWantedBy=sysinit.target\n")
    return text


def _drops(port: str, allowed: Sequence[str]) -> str:
    networks = ", ".join(allowed)
    return f"tcp dport {port} {f'ip saddr != {{ {networks} }}' if networks else ''} drop"


def put_file(disk: Disk, path: str, state: Mapping[str, Any]) -> None:
    """As a record has it; all null: there is none."""
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
    """What winhost made on it."""
    digest = hashlib.sha256(name.encode()).hexdigest()[:32]
    disk.write(f"/var/lib/winhost/made/{kind}-{digest}.json", json.dumps({"name": name, **what}) + "\n", 0o600)


def _put_secret(disk: Disk, path: str, secret: str) -> None:
    """Nobody knows what it was."""
    node = disk.write(path, "secret\n", 0o600)
    mark = [node.inode, len(node.data), node.changes, node.kind | node.mode]
    _keep(disk, "secrets", path, {"path": path, "secret": secret, "mark": mark})


def _put_brought(disk: Disk, models: Sequence[Record], releases: Sequence[Record]) -> None:
    for each in models:
        if each.state["source"] is not None:
            _put_model(disk, each.key["folder"], each.state)
    for each in releases:
        if each.state["sha256"] is not None:
            _put_release(disk, each.key["path"], each.state)


def _put_model(disk: Disk, folder: str, state: Mapping[str, Any]) -> None:
    marks = {}
    for line in state["files"]:
        digest, size, path = line.split(" ", 2)
        node = disk.write(f"{folder}/{path}", "")
        node.told = (int(size), digest)
        marks[path] = [node.inode, node.size, node.changes, node.changes]
    _keep(disk, "models", folder, {"folder": folder, **state, "marks": marks, "ours": sorted(marks)})


def _put_release(disk: Disk, path: str, state: Mapping[str, Any]) -> None:
    disk.write(path, "", 0o755).told = (state["bytes"], f"sha256:{state['sha256']}")
    if state["source"] is not None:
        _keep(disk, "releases", path, {"path": path, "source": state["source"], "sha256": state["sha256"]})


def _put_images(disk: Disk, found: Sequence[Record]) -> None:
    """What winhost was asked for; that it brought them, facts do not tell."""
    for each in found:
        asked = {name: each.state[name] for name in ("id", "archive", "archive_sha256", "bytes", "credentials")}
        digest = hashlib.sha256(each.key["image"].encode()).hexdigest()
        disk.write(
            f"/var/lib/winhost/images/{each.key['engine']}-{digest}.json", json.dumps({**each.key, **asked}), 0o600
        )


def _put_venvs(disk: Disk, found: Sequence[Record]) -> None:
    for each in found:
        folder, made = each.key["folder"], each.state["python"]
        if each.state["wheels"] is not None:
            disk.write(f"/var/lib/winhost/venvs/{folder[-16:]}.json", json.dumps({"folder": folder}), 0o600)
        if made is not None:
            disk.write(f"{folder}/winhost.json", json.dumps(dict(each.state)))


def _keep(disk: Disk, kind: str, name: str, record: Mapping[str, Any]) -> None:
    digest = hashlib.sha256(name.encode()).hexdigest()[:32]
    disk.write(f"/var/lib/winhost/{kind}/{digest}.json", json.dumps(record), 0o600)


def _keys(found: Sequence[Record]) -> dict[str, str]:
    """The lines of each user."""
    lines: dict[str, str] = {}
    for each in found:
        parts = filter(None, (each.state["options"], each.key["key"], each.state["comment"]))
        lines[each.key["user"]] = lines.get(each.key["user"], "") + " ".join(parts) + "\n"
    return lines


def _put_kernel(disk: Disk, found: Sequence[Record]) -> None:
    told = {each.key["name"]: each.state for each in found}
    for name, state in told.items():
        if state["at_boot"] is not None:
            disk.write(_sysctl_file(name), f"# Written by winhost.\n{name} = {state['at_boot']}\n")
    for name, live in {**_SYSCTLS, **{name: state["live"] for name, state in told.items()}}.items():
        disk.write(f"/proc/sys/{name.replace('.', '/')}", f"{live}\n")


def _put_modules(disk: Disk, found: Sequence[Record]) -> None:
    for each in found:
        name, state = each.key["module"], each.state
        lines = [f"options {name} {state['options']}\n"] if state["options"] is not None else []
        lines += [f"blacklist {name}\n"] if state["blacklisted"] else []
        if lines:
            disk.write(f"/etc/modprobe.d/winhost-{name}.conf", "# Written by winhost.\n" + "".join(lines))
        if state["at_boot"]:
            disk.write(f"/etc/modules-load.d/winhost-{name}.conf", f"# Written by winhost.\n{name}\n")
        if state["loaded"]:
            load_module(disk, name)


def _sysctl_file(name: str) -> str:
    return f"/etc/sysctl.d/99-winhost-{name.replace('/', '-')}.conf"


def load_module(disk: Disk, name: str) -> None:
    disk.write(f"/sys/module/{name}/initstate", "live\n")


def start_kernel(disk: Disk, settings: Mapping[str, bytes]) -> None:
    """With a start nothing is left in /run, settings are those of files, and nothing runs that is blacklisted."""
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
