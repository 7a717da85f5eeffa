"""Rollback of each resource type, according to its declaration."""

from collections.abc import Mapping
from typing import Any

import pytest

from tests.core.declared import is_at_one
from tests.rows import each_row
from winhost.core.answers import Json, MissingFact
from winhost.core.conditions import irreversible_reason
from winhost.core.steps import Change
from winhost.core.undo import Keep, find_undo
from winhost.resources.registry import RESOURCE_TYPES, RULES
from winhost.resources.shared import NO_PROFILE
from winhost.resources.windows.boot_entries import NO_INSTALLER
from winhost.resources.windows.disks import NO_PARTITION
from winhost.resources.windows.network import NO_NAT
from winhost.resources.windows.vms import NO_SEED, NO_VM

VM, OTHER_VM = (f"assigned:{digit * 8}-{digit * 4}-{digit * 4}-{digit * 4}-{digit * 12}" for digit in "12")
MOUNTED = {"uuid": "a", "filesystem": "ext4", "options": None, "mounted": True}
USER = {"there": True, "system": False, "home": "/home/a", "shell": "/bin/bash", "groups": [], "expires": None}
MISSING = "cannot be judged"
State = Mapping[str, Json]
# The resource; what the run changed, as it was found; as the run left it; as it is now; what rollback makes of that.
DECISIONS: dict[str, tuple[str, State, State, State, Any]] = {
    "a right that was granted": ("AccountRight", {"granted": False}, {"granted": True}, {"granted": True}, "back"),
    "tasks that others changed": ("AccountTasks", {"jobs": "absent"}, {"jobs": "ready"}, {"jobs": "disabled"}, "back"),
    "tasks that could not log on": (
        *("AccountTasks", {"logon": "refused"}, {"logon": "password"}, {"logon": "password"}),
        Keep("they log on again"),
    ),
    "a watcher that was installed": (
        *("YieldWatcher", {"task": "absent", "key": None}, {"task": "ready", "key": "env:A"}),
        {"task": "disabled", "key": "env:A"},
        "back",
    ),
    "a watcher whose key was another": (
        *("YieldWatcher", {"digest": "1", "key": "env:A"}, {"digest": "2", "key": "env:A"}),
        {"digest": "2", "key": "env:A"},
        Keep("the key that was there is not kept"),
    ),
    "a watcher that did not work": (
        *("YieldWatcher", {"task": "stale"}, {"task": "ready"}, {"task": "ready"}),
        Keep("it watches again"),
    ),
    "a module that was blacklisted": (
        *("KernelModule", {"blacklisted": False}, {"blacklisted": True}, {"blacklisted": True, "options": None}),
        "back",
    ),
    "an initramfs that was not made again": (
        *("KernelModule", {"blacklisted": False, "initramfs_due": False}, {"blacklisted": True, "initramfs_due": True}),
        {"blacklisted": True, "initramfs_due": True},
        "back",
    ),
    "a setting of the kernel": (
        *("Sysctl", {"live": "60", "at_boot": None}, {"live": "1", "at_boot": "1"}, {"live": "1", "at_boot": "1"}),
        "back",
    ),
    "a setting of the kernel that others changed": (
        *("Sysctl", {"live": "60", "at_boot": None}, {"live": "1", "at_boot": "1"}, {"live": "10", "at_boot": "1"}),
        Keep("live changed since by somebody else", {"at_boot": None}),
    ),
    "packages that were installed": (
        *("AptPackages", {"installed": False, "held": False, "to_add": ["a 1"]}, {"installed": True, "needed_by": []}),
        {"installed": True, "held": True, "to_add": [], "needed_by": []},
        {"installed": False},
    ),
    "packages of a transaction that was broken off": (
        *("AptPackages", {"installed": False, "to_add": ["a 1"]}, {"installed": True, "needed_by": []}),
        {"installed": None, "to_add": ["a 1"], "needed_by": []},
        {"installed": False},
    ),
    "packages that others need now": (
        *("AptPackages", {"installed": False}, {"installed": True, "needed_by": []}),
        {"installed": True, "needed_by": ["b"]},
        Keep("b needs it now"),
    ),
    "packages that were there and are held": (
        *("AptPackages", {"held": False}, {"held": True, "needed_by": []}, {"held": True, "needed_by": []}),
        "back",
    ),
    "a source that was added": (
        *("AptSource", {"present": False, "uri": None}, {"present": True, "uri": "a"}, {"present": True, "uri": "a"}),
        {"present": False},
    ),
    "a source that was added and changed": (
        *("AptSource", {"present": False, "uri": None}, {"present": True, "uri": "a"}, {"present": True, "uri": "b"}),
        Keep("uri changed since by somebody else", {"present": False}),
    ),
    "a source that is gone again": (
        *("AptSource", {"present": False, "uri": None}, {"present": True, "uri": "a"}, {"present": False, "uri": None}),
        {},
    ),
    "a source of others": ("AptSource", {"uri": "a"}, {"uri": "b"}, {"present": True, "uri": "b"}, "back"),
    "a GPU on its way": (
        "AssignableDevice",
        {"assignment": "host-enabled"},
        {"assignment": VM},
        {"assignment": "dismounted"},
        "back",
    ),
    "a GPU as it was found": (
        "AssignableDevice",
        {"assignment": VM},
        {"assignment": "dismounted"},
        {"assignment": VM},
        {},
    ),
    "a GPU of another VM": (
        *("AssignableDevice", {"assignment": "host-enabled"}, {"assignment": VM}, {"assignment": OTHER_VM}),
        Keep(f"VM {OTHER_VM.removeprefix('assigned:')} has it now"),
    ),
    "a spec that was made": (
        *("CdiSpec", {"present": False, "fresh": False}, {"present": True}, {"present": True, "fresh": True}),
        {"present": False},
    ),
    "a spec that is gone": (
        *("CdiSpec", {"present": False, "fresh": False}, {"present": True}, {"present": False, "fresh": False}),
        {},
    ),
    "a spec that was stale": (
        *("CdiSpec", {"fresh": False}, {"fresh": True}, {"present": True, "fresh": True}),
        Keep("a spec that did not match the driver is of no use to anybody"),
    ),
    "a package that others need now": (
        *("DebianPackage", {"version": None}, {"version": "1", "needed_by": ["a"]}),
        {"version": "1", "needed_by": ["c", "a", "b"]},
        Keep("b, c needs it now"),
    ),
    "a package that was there, needed now": (
        *("DebianPackage", {"held": False}, {"held": True, "needed_by": []}, {"held": True, "needed_by": ["a"]}),
        "back",
    ),
    "an image that was pulled": (
        *("ContainerImage", {"present": False}, {"present": True}, {"present": True, "used_by": []}),
        {"present": False},
    ),
    "an image that is used now": (
        *("ContainerImage", {"present": False}, {"present": True, "used_by": []}),
        {"present": True, "used_by": ["llm-01"]},
        Keep("llm-01 uses it now"),
    ),
    "an image that was there": (
        *("ContainerImage", {"bytes": None}, {"bytes": 1, "used_by": []}, {"bytes": 1, "used_by": ["a"]}),
        "back",
    ),
    "a model that was brought": (
        *(
            "ModelFiles",
            {"source": None, "files": None},
            {"source": "a", "files": ["x"]},
            {"source": "a", "files": ["x"]},
        ),
        {"source": None},
    ),
    "a model of which files are gone": (
        *("ModelFiles", {"source": None, "files": None}, {"source": "a", "files": ["x"]}, {"source": "a", "files": []}),
        {"source": None},
    ),
    "a model that got another revision": (
        *("ModelFiles", {"revision": "a"}, {"source": "x", "revision": "b"}, {"source": "x", "revision": "b"}),
        "back",
    ),
    "an environment of Python that was made": (
        *("PythonVenv", {"wheels": None, "python": None}, {"wheels": ["x"], "python": "3.12"}),
        *({"wheels": ["x"], "python": "3.12"}, {"wheels": None}),
    ),
    "a model that was packed": (
        *("PackedModel", {"source": None, "files": None}, {"source": "a", "files": ["x"]}),
        *({"source": "a", "files": ["x"]}, {"source": None}),
    ),
    "a packed model of which a file was gone before": (
        *("PackedModel", {"files": []}, {"source": "a", "files": ["x"]}, {"source": "a", "files": ["x"]}),
        "back",
    ),
    "a setting of Docker": ("DockerSetting", {"value": None}, {"value": True}, {"value": True}, "back"),
    "a setting of Docker that others changed": (
        *("DockerSetting", {"value": None}, {"value": True}, {"value": False}),
        Keep("value changed since by somebody else"),
    ),
    "a switch that was made": (
        *("ExternalSwitch", {"adapter": None}, {"adapter": "a"}, {"adapter": "a", "phase": "settled", "vms": 0}),
        "back",
    ),
    "a switch of others": (
        *("ExternalSwitch", {"adapter": None}, {"adapter": "a"}, {"adapter": "a", "phase": "none", "vms": 0}),
        Keep("this switch is not the one that winhost made"),
    ),
    "a switch in use": (
        *("ExternalSwitch", {"adapter": None}, {"adapter": "a"}, {"adapter": "a", "phase": "settled", "vms": 2}),
        Keep("2 VM adapter(s) are connected to it"),
    ),
    "a driver model": ("GpuDriverModel", {"pending": "TCC"}, {"pending": "MCDM"}, {"pending": "MCDM"}, "back"),
    "a disk that was formatted": (
        *("DataDisk", {"filesystem": None}, {"filesystem": "ext4", "holds": ["ext4"]}, {"filesystem": "ext4"}),
        Keep("winhost never wipes a disk; its file system and what is on it stay"),
    ),
    "a mount that was made": (
        *("Mount", {"uuid": None, "filesystem": None, "mounted": False}, MOUNTED, MOUNTED),
        {"uuid": None, "filesystem": None, "mounted": False},
    ),
    "a mount of a disk that lacks": (
        *("Mount", {"uuid": None, "mounted": False}, MOUNTED, {**MOUNTED, "mounted": False}),
        {"uuid": None, "filesystem": None},
    ),
    "a mount that others changed": (
        *("Mount", {"uuid": None, "mounted": False}, MOUNTED, {**MOUNTED, "uuid": "b"}),
        Keep("uuid changed since by somebody else"),
    ),
    "a port that was limited": (
        *("FirewallPort", {"allowed": None}, {"allowed": [], "by": "ufw"}, {"allowed": [], "by": "ufw"}),
        "back",
    ),
    "a port that others limited otherwise": (
        *("FirewallPort", {"allowed": None}, {"allowed": []}, {"allowed": ["10.0.0.0/8"], "by": "ufw"}),
        Keep("allowed changed since by somebody else"),
    ),
    "a firewall": (
        *("HyperVFirewall", {"ports": []}, {"ports": [22]}, {"ports": [22, 80]}),
        Keep("ports changed since by somebody else"),
    ),
    "a role with VMs made since": (
        *("HyperVRole", {"role": "available"}, {"vms": 0}, {"role": "installed", "tools": "installed", "vms": 2}),
        Keep("2 VM(s) made since need it"),
    ),
    "a role between two restarts": (
        *("HyperVRole", {"role": "available"}, {"role": "installed", "vms": 0}),
        {"role": "uninstall-pending", "tools": "installed", "vms": 0},
        "back",
    ),
    "a role without its tools": (
        *("HyperVRole", {"role": "available"}, {"role": "installed", "vms": 0}),
        {"role": "installed", "tools": "available", "vms": 0},
        MISSING,
    ),
    "tools of a role that was there": (
        *("HyperVRole", {"tools": "available"}, {"tools": "installed", "vms": 0}),
        {"role": "installed", "tools": "installed", "vms": 0},
        "back",
    ),
    "a file whose mode others changed": (
        *("LinuxFile", {"text": None, "mode": None}, {"text": "a", "mode": "0644"}, {"text": "a", "mode": "0600"}),
        Keep("mode changed since by somebody else"),
    ),
    "a program that others changed": (
        *("LinuxFolder", {"files": None, "only_root": None}, {"files": {"a.py": "1\n"}, "only_root": True}),
        {"files": {"a.py": "2\n"}, "only_root": True},
        Keep("files changed since by somebody else"),
    ),
    "an account that was made": (
        *("LocalAccount", {"there": False, "administrator": False}, {}),
        {"there": True, "administrator": True, "ours": True},
        {"there": False},
    ),
    "an account that is another's by now": (
        *("LocalAccount", {"there": False}, {}, {"there": True, "ours": False}),
        Keep("it is not the account that winhost made any more"),
    ),
    "a group that was made": (
        *("LinuxGroup", {"there": False, "system": False}, {"there": True, "system": True, "members": []}),
        {"there": True, "system": True, "ours": True, "gid": 998, "members": []},
        {"there": False, "system": False},
    ),
    "a group that has somebody now": (
        *("LinuxGroup", {"there": False}, {"there": True, "members": []}),
        {"there": True, "system": False, "ours": True, "gid": 1001, "members": ["ada"]},
        Keep("ada belongs to it now"),
    ),
    "a group that is another's by now": (
        *("LinuxGroup", {"there": False}, {"there": True, "members": []}),
        {"there": True, "system": False, "ours": False, "gid": 1001, "members": []},
        Keep("it is not the group that winhost made any more"),
    ),
    "a user that was made": (
        *("LinuxUser", {"there": False, "shell": None}, {**USER, "ours": True}, {**USER, "ours": True}),
        {"there": False, "home": None, "shell": None, "groups": None},
    ),
    "a user that others gave a group": (
        *("LinuxUser", {"there": False, "groups": None}, {**USER, "ours": True}),
        {**USER, "ours": True, "groups": ["sudo"]},
        Keep("groups changed since by somebody else"),
    ),
    "a user that is another's by now": (
        *("LinuxUser", {"there": False}, {**USER, "ours": True}, {**USER, "ours": False}),
        Keep("it is not the user that winhost made any more"),
    ),
    "a shell of a user": ("LinuxUser", {"shell": "/bin/sh"}, USER, USER, "back"),
    "a key that was added": (
        *("SshKey", {"present": False, "comment": None}, {"present": True, "comment": "a"}),
        {"present": True, "options": None, "comment": "a"},
        {"present": False},
    ),
    "a key that others limited": (
        *("SshKey", {"present": False, "options": None}, {"present": True, "options": None}),
        {"present": True, "options": "restrict", "comment": None},
        Keep("options changed since by somebody else"),
    ),
    "a key that went": ("SshKey", {"present": True}, {"present": False}, {"present": False}, "back"),
    "a VM that was made": (
        *("OwnVm", {"made": False, "cpus": None, "memory": None}, {"made": True, "cpus": 8, "memory": 1}),
        {**NO_VM, "made": True, "ours": True, "cpus": 16, "memory": 1},
        {"made": False, "cpus": None, "memory": None},
    ),
    "a VM that lost its mark": (
        *("OwnVm", {"made": False, "cpus": None}, {"made": True, "cpus": 8}),
        {**NO_VM, "made": None, "id": "a"},
        Keep("its notes no longer have the mark that winhost put there"),
    ),
    "a VM that was begun": (
        *("OwnVm", {"made": False, "cpus": None}, {"made": True, "cpus": 8}),
        {**NO_VM, "made": None},
        {"made": False},
    ),
    "a network behind NAT": (
        *("NatSwitch", {"made": False, "network": None}, {"made": True, "network": "a"}),
        {**NO_NAT, "made": True, "network": "a"},
        {"made": False, "network": None},
    ),
    "a network behind NAT with a VM on it": (
        *("NatSwitch", {"made": False, "network": None}, {"made": True, "network": "a"}),
        {**NO_NAT, "made": True, "network": "a", "vms": 2},
        Keep("2 VM adapter(s) are connected to it"),
    ),
    "a forwarded port": ("PortForward", {"target": None}, {"target": "10.0.0.1"}, {"target": "10.0.0.1"}, "back"),
    "a volume of Windows that was made smaller": ("Partition", {"size": 900}, {"size": 500}, {"size": 500}, "back"),
    "a volume of Windows that others resized since": (
        *("Partition", {"size": 900}, {"size": 500}, {"size": 600}),
        Keep("size changed since by somebody else"),
    ),
    "a suspension that a restart used up": (
        *("BitLocker", {"suspended": None}, {"suspended": 2}, {"suspended": 1}),
        "back",
    ),
    "a proof of a recovery key": (
        *("KeyEscrow", {"proof": "none", "last_group": None}, {"proof": "typed", "last_group": "env:A"}),
        {"proof": "typed", "last_group": "env:A", "protector": "b"},
        "back",
    ),
    "a partition that was made": (
        *("OwnPartition", {"made": False, "size": None}, {"made": True, "size": 5}),
        {**NO_PARTITION, "made": True, "ours": True, "size": 5, "partition": "a"},
        "back",
    ),
    "a partition that others moved": (
        *("OwnPartition", {"made": False, "size": None}, {"made": True, "size": 5}),
        {**NO_PARTITION, "made": None, "size": 5, "partition": "a"},
        Keep("it is not where winhost put it, or not as large any more"),
    ),
    "a copy of the efi partition": (
        *("EfiBackup", {"kept": False}, {"kept": True}, {"kept": True, "changed": ["a"], "added": ["b"]}),
        "back",
    ),
    "a boot entry that was made": (
        *("OwnBootEntry", {"made": False, "path": None}, {"made": True, "path": "a"}),
        {"made": True, "partition": "b", "path": "a", "entry": "0010"},
        {"made": False, "partition": None, "path": None},
    ),
    "a next start that was used up": ("FirmwareBoot", {"next": None}, {"next": "0010"}, {"next": None}, {}),
    "a linux that runs in place of windows": (
        *("RunningSystem", {"system": "windows"}, {"system": "linux-next"}),
        {"system": "linux", "linux": "0006", "installer": "0010"},
        "back",
    ),
    "a linux that was only to come": (
        *("RunningSystem", {"system": "windows"}, {"system": "linux-next"}),
        {"system": "linux-next", "linux": "0006", "installer": "0010"},
        "back",
    ),
    "windows that came up again by itself": (
        *("RunningSystem", {"system": "windows"}, {"system": "linux-next"}),
        {"system": "windows", "linux": "0006", "installer": "0010"},
        {},
    ),
    "an installer that was made": (
        *("UbuntuInstaller", {"made": False, "image": None}, {"made": True, "image": "a"}),
        {**NO_INSTALLER, "made": True, "image": "a", "host_key": "b", "ticket": "c"},
        {"made": False, "image": None, "host_key": None, "ticket": None},
    ),
    "fast startup": (
        *("FastStartup", {"hibernation": True, "fast_startup": True}, {"hibernation": False, "fast_startup": False}),
        {"hibernation": False, "fast_startup": False},
        "back",
    ),
    "a power plan": ("PowerPlan", {"standby": 900}, {"standby": 0}, {"standby": 0}, "back"),
    "a file that came in part": (
        *("StagedFile", {"present": None}, {"present": True}, {"present": None}),
        {"present": False},
    ),
    "a unit that went with its file": (
        *("SystemdUnit", {"enabled": "disabled"}, {"enabled": "enabled"}),
        {"enabled": {"unavailable": "LinuxFile"}, "active": {"unavailable": "LinuxFile"}},
        {},
    ),
    "a unit that still runs without its file": (
        *("SystemdUnit", {"enabled": "disabled"}, {"enabled": "enabled"}),
        {"enabled": {"unavailable": "LinuxFile"}, "active": True},
        MISSING,
    ),
    "a feature between two restarts": (
        *("VirtualMachinePlatform", {"feature": "available"}, {"feature": "installed"}),
        {"feature": "install-pending"},
        "back",
    ),
    "actions of a VM": ("VmActions", {"stop": "save"}, {"stop": "turn-off"}, {"stop": "turn-off"}, "back"),
    "checkpoints of a VM": ("VmCheckpoints", {"automatic": True}, {"automatic": False}, {"automatic": False}, "back"),
    "memory of a VM": ("VmMemory", {"dynamic": True}, {"dynamic": False}, {"dynamic": False}, "back"),
    "a disk that was made": (
        *("VmDisk", {"made": False, "image": None, "size": None}, {"made": True, "image": "a", "size": 1}),
        {"made": True, "image": "a", "size": 2, "path": "p", "vm": None},
        {"made": False, "image": None, "size": None},
    ),
    "a disk that is another's by now": (
        *("VmDisk", {"made": False, "image": None}, {"made": True, "image": "a"}),
        {"made": True, "image": "b", "size": 2, "path": "p", "vm": None},
        Keep("it is not the disk that winhost made any more"),
    ),
    "windows of a VM": (
        *("VmMmio", {"low": 1, "high": 1}, {"low": 2, "high": 2}, {"low": 2, "high": 3}),
        Keep("high changed since by somebody else", {"low": 1}),
    ),
    "power of a VM": ("VmPower", {"state": "running"}, {"state": "off"}, {"state": "off"}, "back"),
    "a newer WSL": (
        *("Wsl", {"version": "2.6.1.0"}, {"version": "2.7.14.0"}, {"version": "2.7.14.0"}),
        Keep("winhost never downgrades WSL"),
    ),
    "SSH access that went with its distro": (
        *("WslAccess", {"port": None}, {"port": 22}, {"port": NO_PROFILE, "active": NO_PROFILE}),
        {},
    ),
    "settings inside a distro": ("WslConf", {"conf": None}, {"conf": "a"}, {"conf": "a"}, "back"),
    "a configuration that others changed": (
        *("WslConfig", {"text": None, "encoding": None}, {"text": "a", "encoding": "utf-8"}),
        {"text": "b", "encoding": "utf-8"},
        Keep("text changed since by somebody else"),
    ),
    "a distro that was made": (
        *("WslDistro", {"installed": False}, {"image": "a"}, {"installed": True, "image": "a", "running": True}),
        {"installed": False, "image": None, "running": False},
    ),
    "a distro that is another's by now": (
        *("WslDistro", {"installed": False}, {"image": "a"}, {"installed": True, "image": "b", "running": True}),
        Keep("it is not the distro that winhost made any more"),
    ),
    "a seed that was put in": (
        *("VmSeed", {"stage": "none", "user": None, "template": None}, {"stage": "attached", "user": "admin"}),
        {**NO_SEED, "stage": "retired", "user": "admin", "template": "a", "host_keys": ["b"]},
        {"stage": "none", "user": None, "template": None, "host_keys": []},
    ),
    "a seed that was retired by another run than made it": (
        *("VmSeed", {"stage": "attached", "host_keys": ["a", "b"]}, {"stage": "retired", "host_keys": ["b"]}),
        {**NO_SEED, "stage": "retired", "user": "admin", "template": "a", "host_keys": ["b"]},
        Keep("a guest reads its seed on its first start only, and has a key of its own since"),
    ),
    "a host key that replaced the one of a seed": (
        *("SshHostKey", {"key": "a", "prepared": False}, {"key": "b"}, {"key": "b", "next": None, "prepared": False}),
        {},
    ),
    "an engine that was put there": (
        *("EngineUnit", {"text": None, "enabled": False}, {"text": "a", "enabled": True}),
        {"text": "a", "enabled": True, "active": True, "failed": False},
        "back",
    ),
    "an engine whose unit others changed": (
        *("EngineUnit", {"text": None, "active": False}, {"text": "a", "active": True}),
        {"text": "b", "enabled": True, "active": True, "failed": False},
        Keep("text changed since by somebody else"),
    ),
    "an endpoint that was waited for": ("ServingReady", {"ready": False}, {"ready": True}, {"ready": True}, {}),
    "a node that was waited for": ("ClusterNode", {"ready": False}, {"ready": True}, {"ready": True}, {}),
    "what was put into a cluster": (
        *("ClusterObjects", {"text": None, "serves": False}, {"text": "a", "serves": True}),
        {"text": "a", "serves": True},
        {"text": None},
    ),
    "what was put into a cluster anew": (
        *("ClusterObjects", {"text": "a", "serves": False}, {"text": "b", "serves": True}),
        {"text": "b", "serves": True},
        Keep("it is only waited for", {"text": "a"}),
    ),
    "a program of a release": (
        *("ReleaseFile", {"source": None, "sha256": None, "bytes": None}, {"source": "a", "sha256": "b", "bytes": 1}),
        {"source": "a", "sha256": "b", "bytes": 1},
        {"source": None},
    ),
    "a file with a secret": (
        "SecretFile",
        {"secret": None},
        {"secret": "env:A"},
        {"secret": "env:A"},
        {"secret": None},
    ),
    "GPUs that were waited for": ("ShownGpus", {"count": 0}, {"count": 2}, {"count": 2}, {}),
    "a VM of WSL that runs": (
        *("WslVm", {"mode": "nat"}, {"mode": "bridged"}, {"mode": "bridged", "running": True}),
        Keep("WSL reads the .wslconfig that was put back at its next start"),
    ),
    "a VM of WSL that does not run": ("WslVm", {"mode": "nat"}, {}, {"mode": "bridged", "running": False}, {}),
}


@each_row("name", DECISIONS)
def test_rollback_decides(name: str) -> None:
    resource, before, after, now, decided = DECISIONS[name]
    if decided == MISSING:
        with pytest.raises(MissingFact):
            find_undo(RULES[resource], before, after, now)
    else:
        assert find_undo(RULES[resource], before, after, now) == (before if decided == "back" else decided)


def test_every_resource_that_can_be_changed_has_its_decisions() -> None:
    shown = {resource for resource, *_ in DECISIONS.values()}
    assert shown == {resource.name for resource in RESOURCE_TYPES.values() if resource.sets}


@each_row("name", sorted(RULES))
def test_what_was_not_there_is_undone_in_one_way(name: str) -> None:
    assert is_at_one(RULES[name].undo)


# What a change cannot take back: the resource, what it is found as, and the sentence of the plan.
LASTING: dict[str, tuple[str, State, str | None]] = {
    "the key of a watcher": ("YieldWatcher", {"digest": "a" * 64}, "the key that was there is not kept"),
    "a stale watcher": ("YieldWatcher", {"task": "stale"}, "the script that was there is not kept"),
    "a stale watcher with a key": (
        *("YieldWatcher", {"task": "stale", "digest": "a" * 64}),
        "the key that was there is not kept, and the script that was there is not kept",
    ),
    "a new watcher": ("YieldWatcher", {"task": "absent", "digest": None}, None),
    "a disk": (
        *("DataDisk", {"filesystem": None}),
        "disk S1 of 10 bytes: winhost never wipes a disk; its file system and what is on it stay",
    ),
}


@each_row("name", LASTING)
def test_a_plan_says_what_stays(name: str) -> None:
    resource, before, said = LASTING[name]
    change = Change({"serial": "S1", "size": "10"}, before, dict.fromkeys(before, "other"))
    assert irreversible_reason(RULES[resource].irreversible, change) == said


def test_every_irreversible_change_has_its_sentence() -> None:
    shown = {resource for resource, *_ in LASTING.values()} | {"AccountTasks", "Wsl"}  # in tests of their own
    assert shown == {name for name, rules in RULES.items() if rules.irreversible}
