"""Programs of a simulated Linux, as far as the scripts use them: their output, and what they change.

Sources: their manual pages, and that of systemd.mount.
"""

import json
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from hashlib import sha256
from typing import Any
from uuid import NAMESPACE_OID, uuid5

from winhost.core.answers import Json, Record
from winhost.lab.linux.containers import ContainerStore, SimulatedCluster, pack_weights
from winhost.lab.linux.disk import ACCOUNT_PROGRAMS, NFT_UNIT, RULES
from winhost.lab.linux.inner_python import ProgramResult, Programs
from winhost.lab.linux.linux_machine import CDI_SPEC, MODULE, PRIVATE_KEY_PREFIX, Linux, State, public, spec_text
from winhost.lab.linux.serving import ServedEngines, SimulatedServing
from winhost.lab.linux.software import NVIDIA_CTK, PACKAGE_PROGRAMS, SSHD

_MKFS_SECONDS = 5.0
_UUID_PATTERN = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_NOTHING: State = {"filesystem": None, "label": None, "uuid": None}


class DataDisks:
    """The disks of a Linux. formatted: file systems that winhost made, here or in the facts, by the disk's name."""

    def __init__(self, linux: Linux) -> None:
        self._linux = linux
        self.formatted: dict[str, State] = {}
        for record in linux.fact_records("LinuxDisk"):
            linux.disk.put(f"/dev/{record.key['disk']}", linux.disk.new(stat.S_IFBLK))
        for record in linux.fact_records("DataDisk"):
            self._add_file_system(str(record.state["disk"]), dict(record.state))

    def _add_file_system(self, disk: str, state: State) -> None:
        """Note the file system of a disk, and link the disk by its UUID, as udev does."""
        self.formatted[disk] = state
        if isinstance(state["uuid"], str):
            self._linux.disk.link(f"/dev/disk/by-uuid/{state['uuid']}", f"../../{disk}")

    def _mounts(self) -> Iterator[tuple[str, str]]:
        """Yield folder and disk of each mount: first those of others, then those of winhost's units."""
        ours = {record.key["path"] for record in self._linux.fact_records("Mount")}
        for record in self._linux.fact_records("LinuxDisk"):
            yield from ((path, record.key["disk"]) for path in record.state["mounted"] if path not in ours)
        for unit, text in self._linux.systemd.read_texts().items():
            settings = dict(re.findall(r"^(What|Where)=(.+)$", text, re.MULTILINE))
            if unit.endswith(".mount") and self._linux.systemd.find(unit).active:
                matches = (
                    name for name, each in self.formatted.items() if settings["What"].endswith(f"/{each['uuid']}")
                )
                yield from ((settings["Where"], name) for name in matches)

    def device_at(self, path: str) -> str | None:
        """Return the device that is mounted at a path, or None; of several, the last."""
        return next((f"/dev/{name}" for where, name in reversed([*self._mounts()]) if where == path), None)

    def disks(self) -> Iterator[Record]:
        """Yield the disks as lsblk lists them."""
        mounts = [*self._mounts()]
        for record in self._linux.fact_records("LinuxDisk"):
            formatted = self.formatted.get(record.key["disk"], record.state)
            mounted = sorted({path for path, name in mounts if name == record.key["disk"]})
            yield Record({**record.state, "filesystem": formatted["filesystem"], "mounted": mounted}, record.key)

    def data_disks(self) -> Iterator[Record]:
        for record in self.disks():
            name, state = record.key["disk"], record.state
            if state["serial"]:
                properties = {
                    "disk": name,
                    "holds": _list_uses(name, state),
                    **_NOTHING,
                    "filesystem": state["filesystem"],
                }
                key = {"serial": str(state["serial"]), "size": str(state["size"])}
                yield Record({**properties, **self.formatted.get(name, {})}, key)

    # ---- programs

    def lsblk(self, arguments: Sequence[str]) -> str:
        disks = ({"name": each.key["disk"], "type": "disk", **each.state} for each in self.disks())
        return json.dumps({"blockdevices": [{**each, "kname": each["name"]} for each in disks]})

    def mkfs(self, kind: str, arguments: Sequence[str]) -> str:
        disk = arguments[-1].removeprefix("/dev/")
        self._linux.sleep(_MKFS_SECONDS)
        requested = re.findall(_UUID_PATTERN, " ".join(arguments))
        state: State = {"filesystem": kind, "label": arguments[arguments.index("-L") + 1]}
        self._add_file_system(disk, state | {"uuid": requested[0] if requested else str(uuid5(NAMESPACE_OID, disk))})
        return ""

    def umount(self, arguments: Sequence[str]) -> str:
        for unit, text in self._linux.systemd.read_texts().items():
            if f"\nWhere={arguments[-1]}\n" in text:
                self._linux.systemd.find(unit).active = False
        return ""


def _list_uses(name: str, state: Mapping[str, Json]) -> list[str]:
    labels = (("table", "partition table"), ("filesystem", "signature"))
    uses = [f"{name}: {says} {state[each]}" for each, says in labels if state[each]]
    uses += [f"{name}: use at {each}" for each in state["mounted"]]
    uses += [f"it is part of {each}" for each in state["holders"]]
    return uses + (["it is read-only"] if state["read_only"] else [])


UNDO = "winhost-undo.timer"
_PYTHONS = {"22.04": "3.10", "12": "3.11", "13": "3.13"}  # by the version of Ubuntu or Debian
_INITRAMFS_SECONDS, _COMPILE_SECONDS = 20.0, 20.0


# ---- sshd


def _sshd(linux: Linux, arguments: Sequence[str]) -> str:
    return f"port {linux.distro.port}\nauthorizedkeysfile .ssh/authorized_keys\n" if "-T" in arguments else ""


def _ssh_keygen(linux: Linux, arguments: Sequence[str]) -> str:
    path, comment = arguments[-1], arguments[arguments.index("-C") + 1]
    seed = sha256(b"the next of " + linux.distro.seed).digest()
    linux.disk.write(path, f"{PRIVATE_KEY_PREFIX}{seed.hex()}\n", 0o600)
    linux.disk.write(f"{path}.pub", f"{public(seed)} {comment}\n")
    return ""


# ---- systemd


def _systemctl(linux: Linux, arguments: Sequence[str]) -> ProgramResult | str:
    words = [word for word in arguments if not word.startswith("-")]
    options, verb, units = [word for word in arguments if word.startswith("-")], words[0], words[1:]
    if verb == "show":
        return _show_units(linux, options, units)
    if verb == "list-unit-files":
        matches = [name for name in linux.systemd.loaded() if fnmatchcase(name, units[0])]
        return ProgramResult(0 if matches else 1, "".join(f"{name} -\n" for name in matches))
    if verb == "is-system-running":
        return "running\n" if linux.is_ready() else "starting\n"
    if verb in ("is-active", "is-enabled", "is-failed"):
        return ProgramResult(0 if linux.systemd.state(units[0])[verb.removeprefix("is-")] in (True, "enabled") else 1)
    if verb == "reboot":
        linux.reboot()
    elif verb == "daemon-reload":
        linux.systemd.reload()
    for unit in units:
        _change_unit(linux, verb, unit, options)
    return ""


def _change_unit(linux: Linux, verb: str, unit: str, options: Sequence[str]) -> None:
    """Apply a verb of systemctl to a unit. Raises CmdletError."""
    systemd, is_now = linux.systemd, "--now" in options
    if verb in ("enable", "disable", "mask", "unmask"):
        systemd.enable(unit, {"enable": "enabled", "mask": "masked"}.get(verb, "disabled"))
    if verb in ("start", "restart") or (verb == "enable" and is_now):
        engines, is_blocking = linux.part(ServedEngines), "--no-block" not in options
        if is_blocking and unit in engines.units:
            engines.start(unit)
        (systemd if is_blocking else linux.part(SimulatedServing)).start(unit)
    if verb.startswith("try-") and systemd.is_active(unit):
        systemd.start(unit)
    if verb == "stop" or (verb == "disable" and is_now):
        linux.part(SimulatedServing).stop(unit)
    if verb == "reset-failed" and systemd.state(unit)["loaded"]:
        systemd.find(unit).failed = False
    _apply_side_effects(linux, unit, verb)


def _apply_side_effects(linux: Linux, unit: str, verb: str) -> None:
    """Apply what starting or stopping these units changes elsewhere."""
    if unit == "docker.service" and verb in ("restart", "stop"):
        linux.containers.clear()
    if unit == NFT_UNIT and verb == "restart":
        linux.rules = linux.disk.text(RULES) or ""
    if unit == UNDO:
        match = re.search(r"^OnActiveSec=(\d+)$", linux.systemd.read_texts().get(UNDO, ""), re.MULTILINE)
        linux.undo_due = linux.now() + int(match[1]) if match and verb == "restart" else None


def _show_units(linux: Linux, options: Sequence[str], units: Sequence[str]) -> str:
    if "--property=FragmentPath" in options:
        return "\n".join(linux.unit_file(unit) or "" for unit in units) + "\n"
    if "--property=Listen" in options:
        return "\n"
    with_run = any("InvocationID" in option for option in options)
    return "\n".join(
        "".join(f"{name}={value}\n" for name, value in _properties(linux, unit, with_run)) for unit in units
    )


def _properties(linux: Linux, unit: str, with_run: bool) -> Sequence[tuple[str, object]]:
    """Return the properties of a unit. with_run: also those of its run, which each read advances."""
    serving = linux.part(SimulatedServing)
    if with_run:
        serving.advance(unit)
    state = linux.systemd.state(unit)
    is_loaded = unit in linux.systemd.loaded()
    enabled = str(state["enabled"]) if is_loaded else ""
    active = "failed" if state["failed"] else "active" if state["active"] is True else "inactive"
    load = "masked" if enabled == "masked" else "loaded" if is_loaded else "not-found"
    properties = (("Id", unit), ("LoadState", load), ("UnitFileState", enabled), ("ActiveState", active))
    return (*properties, ("NeedDaemonReload", "no"), *(serving.properties(unit) if with_run else ()))


# ---- others


def _initramfs(linux: Linux, arguments: Sequence[str]) -> str:
    linux.sleep(_INITRAMFS_SECONDS)
    return ""


def _succeed(linux: Linux, arguments: Sequence[str]) -> str:
    """Succeed without output, as a check that finds nothing wrong."""
    return ""


def _nvidia_ctk(linux: Linux, arguments: Sequence[str]) -> str:
    if "list" in arguments:
        return "nvidia.com/gpu=all\n" if linux.spec is not None else ""
    if arguments[-1] == f"--output={CDI_SPEC}":
        linux.generate()
    return spec_text(linux.driver)


_DROP = re.compile(r"tcp dport (\d+) .*?(?:(ip6?) saddr != \{ (.*?) \}|meta nfproto \w+)? drop$", re.MULTILINE)


def _nft(linux: Linux, arguments: Sequence[str]) -> ProgramResult | str:
    """List or delete winhost's rules, the only ones here. Its unit loads them from a file."""
    if "delete" in arguments:
        linux.rules = ""
    if "chains" in arguments:
        return json.dumps({"nftables": []})
    if "list" in arguments and not linux.rules:
        return ProgramResult(1, "", "Error: No such file or directory\n")
    rules: list[Any] = []
    for port, _, networks in _DROP.findall(linux.rules):
        matches: list[Any] = [{"match": {"left": {"payload": {"field": "dport"}}, "right": int(port)}}]
        if networks:
            allowed = {"set": networks.split(", ")}
            matches.append({"match": {"left": {"payload": {"field": "saddr"}}, "right": allowed}})
        rules.append({"rule": {"expr": matches}})
    return json.dumps({"nftables": rules}) if "list" in arguments else ""


def _journalctl(linux: Linux, arguments: Sequence[str]) -> str:
    """Print lines of units, or the kernel's messages about missing MMIO space."""
    if "--output=json" in arguments:
        return linux.part(SimulatedServing).journalctl(arguments)
    needs = linux.machine.instances("MmioNeed") if "--dmesg" in arguments else ()
    needs_by_kind = ((kind, size) for need in needs for kind, size in need.state.items() if size is not None)
    return "".join(f"hv_pci 0: Need {size:#x} of {kind} MMIO space\n" for kind, size in needs_by_kind)


def _python3(linux: Linux, arguments: Sequence[str]) -> str:
    """Print the version, or compile packages."""
    if "-c" in arguments:
        versions = (str(each.state["python"]) for each in linux.fact_records("PythonVenv") if each.state["python"])
        return next(versions, _PYTHONS.get(str(next(linux.system()).state["version"]), "3.12")) + "\n"
    linux.sleep(_COMPILE_SECONDS)
    return ""


def _modinfo(linux: Linux, arguments: Sequence[str]) -> ProgramResult | str:
    driver = linux.gpu_driver
    if not linux.is_standalone or driver.installed is None:
        return ProgramResult(1, "", "modinfo: ERROR: Module nvidia not found.\n")
    if linux.disk.text(MODULE) != driver.installed:
        linux.disk.write(MODULE, driver.installed).mtime_ns = int(linux.now() * 1e9)
    return {"version": driver.installed, "filename": MODULE}[arguments[0].partition("=")[2]]


PROGRAMS: Programs = {
    **{name: (None, lambda linux, argv, run=run: run(linux.disk, argv)) for name, run in ACCOUNT_PROGRAMS.items()},  # type: ignore[misc]
    **{name: (None, lambda linux, argv, run=run: run(linux.apt, argv)) for name, run in PACKAGE_PROGRAMS.items()},  # type: ignore[misc]
    **dict.fromkeys(("blkid", "netplan", "visudo", "wipefs"), (None, _succeed)),
    "docker": (("docker-ce-cli", "docker.io"), lambda linux, argv: linux.part(ContainerStore).run("docker", argv)),
    "dockerd": (("docker-ce", "docker.io"), _succeed),
    "journalctl": (None, _journalctl),
    "k3s": ((), lambda linux, argv: linux.part(SimulatedCluster).k3s(argv)),  # a downloaded file, of no package
    "lsblk": (None, lambda linux, argv: linux.part(DataDisks).lsblk(argv)),
    "mkfs.ext4": (None, lambda linux, argv: linux.part(DataDisks).mkfs("ext4", argv)),
    "mkfs.xfs": (None, lambda linux, argv: linux.part(DataDisks).mkfs("xfs", argv)),
    "modinfo": (None, _modinfo),
    "nft": (None, _nft),
    "nvidia-ctk": ((NVIDIA_CTK,), _nvidia_ctk),
    "podman": (("podman",), lambda linux, argv: linux.part(ContainerStore).run("podman", argv)),
    "python3": (None, _python3),
    "ssh-keygen": (None, _ssh_keygen),
    "sshd": ((SSHD,), _sshd),
    "systemctl": (None, _systemctl),
    "systemd-run": (None, pack_weights),
    "umount": (None, lambda linux, argv: linux.part(DataDisks).umount(argv)),
    "update-initramfs": (None, _initramfs),
}
