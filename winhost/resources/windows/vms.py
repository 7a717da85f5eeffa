"""VMs that winhost makes, what they have, and the role that runs them."""

from collections.abc import Mapping
from types import MappingProxyType

from winhost.core.answers import Json
from winhost.core.rules import Condition, ConsentRule, DependentRule, KeepIf, NeedRule, UndoRule, UnknownIf
from winhost.model.units import Bytes, MiB
from winhost.resources.base import NOT_REPORTED, ResourceType, State, resource
from winhost.resources.shared import DEVICES
from winhost.resources.values import (
    FLAG,
    GUID,
    INTERFACE,
    SHA256_OR_NOTHING,
    Value,
    one_of,
    or_nothing,
    sizes,
    text,
    texts,
)

INSTALLED = "installed"
PENDING = "install-pending"
UNINSTALLING = "uninstall-pending"
# Of a device that can be assigned:
ENABLED = "host-enabled"
DISABLED = "host-disabled"
DISMOUNTED = "dismounted"
ASSIGNED = "assigned:"


@resource(
    ResourceType(
        "HyperVRole",
        title="the Hyper-V role",
        order=80,
        sets={"role": one_of(INSTALLED, "available"), "tools": one_of(INSTALLED, "available")},
        restarts=True,
        asks=("restart", "vm-stop"),
        risks=(
            ConsentRule("restart", (Condition("role", of="desired"),)),
            ConsentRule(
                "vm-stop", (Condition("role", of="desired"), Condition("role", of="before", one_of=(INSTALLED,)))
            ),
        ),
        dependents=(
            DependentRule("AssignableDevice", unless=("assignment", (ENABLED, DISABLED))),
            DependentRule("ExternalSwitch", unless=("adapter", (None,)), since=()),
            DependentRule("VmMmio", since=("low", "high", "cache")),
            DependentRule("VmActions", since=("stop", "start")),
            DependentRule("VmCheckpoints", since=("kind", "automatic")),
            DependentRule("VmMemory", since=("dynamic",)),
        ),
        undo=UndoRule(
            # Without its tools nobody can tell what depends on the role.
            unknown_if=(
                UnknownIf(
                    (
                        Condition("role", one_of=(INSTALLED,)),
                        Condition("role", of="before", none_of=(INSTALLED,)),
                        Condition("tools", none_of=(INSTALLED,)),
                    ),
                    "what rests on the role",
                    "its PowerShell module",
                ),
            ),
            # VM definitions that were there when the role came stay on disk; one made since is somebody's work.
            keep_if=(KeepIf((Condition("vms", gained=True),), "{vms} VM(s) made since need it"),),
            # Between two restarts, either way, it is nobody else's state.
            transitional_states={"role": (PENDING, UNINSTALLING)},
        ),
    )
)
class HyperVRole(State):
    """The Windows feature and its PowerShell module.

    role, tools: available, installed, install-pending, uninstall-pending (both pending: until the restart) or removed
    (its files are not on this Windows). vms: how many VMs stand on it, 0 while the role or its tools are missing.
    """

    role: str
    tools: str
    vms: int


NAME = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
"""A VM of ours, its folder and its guest have one name, so it is one that all three can have."""

NO_VM: Mapping[str, Json] = MappingProxyType(
    {
        "made": False,
        "ours": False,
        "id": None,
        "cpus": None,
        "memory": None,
        "switch": None,
        "vlan": None,
        "mac": None,
        "secure_boot": None,
    }
)
_SET_OF_VM = ("made", "cpus", "memory", "switch", "vlan", "mac", "secure_boot")


def _up_to(most: int, expected: str) -> Value:
    return or_nothing(Value(expected, lambda value: type(value) is int and 0 < value <= most))


@resource(
    ResourceType(
        "OwnVm",
        title="the new VM",
        order=185,
        key=("name",),
        sets={
            "made": FLAG,
            "cpus": _up_to(2048, "a number of processors"),
            "memory": or_nothing(sizes(2 * MiB)),
            "switch": or_nothing(text(GUID, "the GUID of a switch")),
            "vlan": _up_to(4094, "a VLAN, 1 to 4094"),
            "mac": or_nothing(text("[0-9A-F]{12}", "a MAC address as Hyper-V writes it, 02AB00112233")),
            "secure_boot": or_nothing(FLAG),
        },
        after=("VmDisk", "NatSwitch"),
        requires="HyperVRole",
        absent=NO_VM,
        asks=("data",),
        risks=(ConsentRule("data", (Condition("made", of="desired", one_of=(False,)),)),),
        known_as=("vm", "id"),
        undo=UndoRule(
            keep_if=(
                KeepIf(
                    (
                        Condition("made", of="before", one_of=(False,)),
                        Condition("id", none_of=(None,)),
                        Condition("ours", one_of=(False,)),
                    ),
                    "its notes no longer have the mark that winhost put there",
                ),
            ),
            remove_if_created={name: NO_VM[name] for name in _SET_OF_VM},
        ),
    )
)
class OwnVm(State):
    """A VM that winhost made, by its name: generation 2, with its `VmDisk` and one network adapter.

    It is known by its id, which the host keeps a record of, and by a mark in the VM's notes; ours: it has both. made:
    null while it was begun and not finished, or somebody took it or its mark away since. Static memory, no checkpoints,
    no nested virtualization, turned off when the host stops; COM1 is the pipe \\\\.\\pipe\\<id>, for the boot log.
    secure_boot: on, with the template for Linux, Microsoft's UEFI certificate authority, asked for by id and read back.
    switch: the GUID of the switch that it is on; mac: static. Taken away it must be off, with no device assigned.
    """

    made: bool | None
    ours: bool
    id: str | None
    cpus: int | None
    memory: Bytes | None
    switch: str | None
    vlan: int | None
    mac: str | None
    secure_boot: bool | None


NONE, ATTACHED, RETIRED = "none", "attached", "retired"
USER = r"[a-z_][a-z0-9_-]{0,31}"
# The scripts have it, too.
HOST_KEY = r"ssh-ed25519 [A-Za-z0-9+/]{68}"
NO_SEED: Mapping[str, Json] = MappingProxyType(
    {
        "stage": NONE,
        "user": None,
        "address": None,
        "template": None,
        "host_keys": [],
        "vm": None,
        "neighbours": [],
    }
)
_SET_OF_SEED = ("stage", "user", "address", "template", "host_keys")


@resource(
    ResourceType(
        "VmSeed",
        title="the seed of the new VM",
        order=187,
        key=("name",),
        sets={
            "stage": one_of(NONE, ATTACHED, RETIRED),
            "user": or_nothing(text(USER, "the name of a user")),
            "address": or_nothing(INTERFACE),
            "template": or_nothing(text(r"[A-Za-z0-9+/]{4,16384}={0,2}", "a CD without keys, as gzip in base64")),
            "host_keys": texts(HOST_KEY, "a list of ed25519 keys, without names"),
        },
        after=("OwnVm",),
        requires="HyperVRole",
        absent=NO_SEED,
        undo=UndoRule(
            gone_if=((Condition("stage", one_of=(NONE,)),),),
            remove_if_created={name: NO_SEED[name] for name in _SET_OF_SEED},
            never="a guest reads its seed on its first start only, and has a key of its own since",
        ),
    )
)
class VmSeed(State):
    """The CD for cloud-init that gives the Linux of a new VM its identity on the first start; it is made when it is put
    in.

    stage: none, attached, or retired, when the CD is gone and what was told of it stays; null where that was begun and
    not finished. template: the CD as it is planned, without the id of the VM and without keys; the host fills them in.
    host_keys: the SSH keys by which the guest is known: the one on the CD, whose private half is nowhere else, then
    those that it made since. user: who may log on; address: where, null for DHCP. vm: its id; neighbours: addresses at
    which the host has seen the network adapter of the VM. Only the system, administrators and that VM read the CD.
    """

    stage: str | None
    user: str | None
    address: str | None
    template: str | None
    host_keys: tuple[str, ...]
    vm: str | None
    neighbours: tuple[str, ...]


NO_DISK: Mapping[str, Json] = MappingProxyType(
    {"made": False, "image": None, "size": None, "file_size": None, "path": None, "vm": None}
)
_MADE = Condition("made", of="before", one_of=(False,))


@resource(
    ResourceType(
        "VmDisk",
        title="disks of new VMs",
        order=174,
        key=("name",),
        sets={"made": FLAG, "image": SHA256_OR_NOTHING, "size": or_nothing(sizes(MiB))},
        after=("HyperVRole", "StagedFile"),
        requires="HyperVRole",
        absent=NO_DISK,
        asks=("data",),
        risks=(ConsentRule("data", (Condition("made", of="desired", one_of=(False,)),)),),
        timeout=lambda change: 3600,  # an image has GBs, and they are read again after they were written
        dependents=(DependentRule("OwnVm", on=("name",), unless=("made", (False,))),),
        undo=UndoRule(
            keep_if=(
                KeepIf(
                    (_MADE, Condition("made", one_of=(True,)), Condition("image", differs_from=("after",))),
                    "it is not the disk that winhost made any more",
                ),
            ),
            remove_if_created={name: NO_DISK[name] for name in ("made", "image", "size")},
        ),
    )
)
class VmDisk(State):
    """A disk that winhost made for a VM of this name: a copy of a staged VHDX, made as large as is wanted.

    It lies in a folder of its own, <the host's folder of virtual disks>\\winhost\\<name>\\disk.vhdx, where nothing was
    before; what is there already is never overwritten. image: SHA-256 of the staged file; size: bytes that the guest
    sees; file_size: bytes of the file, which grows as the guest writes; vm: the VM that it is attached to. made: null
    while it was begun and not finished.
    """

    made: bool | None
    image: str | None
    size: Bytes | None
    file_size: Bytes | None
    path: str | None
    vm: str | None


OFF = "off"
RUNNING = "running"
VM_OFF = NeedRule("VmPower", "vm", {"state": OFF}, key="vm")  # Set-VM refuses otherwise
_RUNNING = Condition("state", of="before", one_of=(RUNNING,))


@resource(
    ResourceType(
        "VmPower",
        title="power of VMs",
        order=230,
        key=("vm",),
        sets={"state": one_of(OFF, RUNNING, "saved", "paused")},
        after=("OwnVm", "VmMmio", "VmActions", "VmCheckpoints", "VmMemory", "AssignableDevice"),
        requires="HyperVRole",
        asks=("vm-stop", "vm-turn-off"),
        undo=UndoRule(ends_with_required=True),
        risks=(ConsentRule("vm-stop", (_RUNNING,)),),
        may_need=(ConsentRule("vm-turn-off", (_RUNNING,)),),
    )
)
class VmPower(State):
    """off, running, saved or paused. Stopping asks the guest and waits; turning off has its own consent."""

    state: str


@resource(
    ResourceType(
        "VmMmio",
        title="MMIO windows of VMs",
        order=190,
        key=("vm",),
        sets={"low": sizes(2 * MiB), "high": sizes(2 * MiB), "cache": FLAG},
        requires="HyperVRole",
        after=("OwnVm",),
        needs=(VM_OFF,),
        dependents=DEVICES,
    )
)
class VmMmio(State):
    """MMIO windows of a VM. Sizes in bytes, multiples of 2 MiB (Set-VM); cache: guest-controlled cache types."""

    low: Bytes
    high: Bytes
    cache: bool


@resource(
    ResourceType(
        "VmActions",
        title="automatic actions of VMs",
        order=200,
        key=("vm",),
        sets={
            "stop": one_of("turn-off", "save", "shut-down"),
            "start": one_of("nothing", "start-if-running", "start"),
        },
        requires="HyperVRole",
        after=("OwnVm",),
        needs=(VM_OFF,),
        dependents=DEVICES,
    )
)
class VmActions(State):
    """The actions on the VM when the host stops or starts.

    stop: turn-off, save or shut-down; start: nothing, start-if-running or start. A VM with an assigned device cannot be
    saved, so `stop` must not be `save`.
    """

    stop: str
    start: str


@resource(
    ResourceType(
        "VmCheckpoints",
        title="checkpoints of VMs",
        order=210,
        key=("vm",),
        sets={"kind": one_of("disabled", "production", "production-only", "standard"), "automatic": FLAG},
        requires="HyperVRole",
        after=("OwnVm",),
        dependents=DEVICES,
    )
)
class VmCheckpoints(State):
    """kind: disabled, production, production-only or standard; automatic: one at each start."""

    kind: str
    automatic: bool


@resource(
    ResourceType(
        "VmMemory",
        title="memory modes of VMs",
        order=220,
        key=("vm",),
        sets={"dynamic": FLAG},
        requires="HyperVRole",
        after=("OwnVm",),
        needs=(VM_OFF,),
        dependents=DEVICES,
    )
)
class VmMemory(State):
    """Memory of a VM in bytes. Only the mode is changed here: an assigned device needs all of `startup` pinned."""

    dynamic: bool
    startup: Bytes
    minimum: Bytes
    maximum: Bytes


def assigned(vm: str) -> str:
    """The top of the ladder: given to the VM with this GUID."""
    return ASSIGNED + vm


def owner(assignment: str) -> str | None:
    """The GUID of the VM that has it, if one does."""
    return assignment.removeprefix(ASSIGNED) if assignment.startswith(ASSIGNED) else None


@resource(
    ResourceType(
        "AssignableDevice",
        title="devices that can be assigned",
        order=170,
        key=("location", "device"),
        sets={
            "assignment": text(
                f"{ENABLED}|{DISABLED}|{DISMOUNTED}|{ASSIGNED}{GUID}",
                f"{ENABLED}, {DISABLED}, {DISMOUNTED} or {ASSIGNED}GUID",
            )
        },
        after=("HyperVRole", "VmMmio", "VmActions", "VmCheckpoints", "VmMemory"),
        requires="HyperVRole",
        asks=("force-dismount",),
        needs=(NeedRule("VmPower", "vm", {"state": OFF}, property="assignment", starts_with=ASSIGNED),),
        may_need=(
            ConsentRule(
                "force-dismount",
                (
                    Condition("assignment", of="before", one_of=(ENABLED, DISABLED)),
                    Condition("assignment", of="desired", none_of=(ENABLED, DISABLED)),
                ),
            ),
        ),
        # Any lower rung is still our doing; another VM's GPU is not ours to take.
        undo=UndoRule(
            keep_if=(
                KeepIf(
                    (Condition("assignment", starts_with=ASSIGNED, differs_from=("before", "after")),),
                    "VM {assignment} has it now",
                ),
            ),
            unconditional=True,
        ),
    )
)
class AssignableDevice(State):
    """assignment: host-enabled, host-disabled, dismounted or assigned:<VM GUID>. `set` walks the ladder both ways.

    Also whatever else a VM claims, which may be no GPU. present: Windows lists a device at this location; a
    VM that claims one where none is does not start.
    """

    assignment: str
    present: bool = NOT_REPORTED
