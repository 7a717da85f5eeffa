"""The Hyper-V role, the VMs that winhost creates, and the settings and devices of VMs."""

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
# Assignments of a device:
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
            # Without the PowerShell module, the resources that depend on the role cannot be read.
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
            # VM definitions from before the role was installed stay on disk. A VM created since keeps the role.
            keep_if=(KeepIf((Condition("vms", gained=True),), "{vms} VM(s) made since need it"),),
            # A state that is pending until a restart is the run's own.
            transitional_states={"role": (PENDING, UNINSTALLING)},
        ),
    )
)
class HyperVRole(State):
    """The Windows feature and its PowerShell module.

    role, tools: available, installed, install-pending or uninstall-pending (until the restart), or removed (the files
    are not on this Windows). vms: the number of VMs, 0 if the role or its module is missing.
    """

    role: str
    tools: str
    vms: int


NAME = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
"""The name of a VM that winhost creates. It must also be valid as a folder name and as a host name of the guest."""

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
_VM_SETTABLE = ("made", "cpus", "memory", "switch", "vlan", "mac", "secure_boot")


def _positive_up_to(most: int, expected: str) -> Value:
    return or_nothing(Value(expected, lambda value: type(value) is int and 0 < value <= most))


@resource(
    ResourceType(
        "OwnVm",
        title="the new VM",
        order=185,
        key=("name",),
        sets={
            "made": FLAG,
            "cpus": _positive_up_to(2048, "a number of processors"),
            "memory": or_nothing(sizes(2 * MiB)),
            "switch": or_nothing(text(GUID, "the GUID of a switch")),
            "vlan": _positive_up_to(4094, "a VLAN, 1 to 4094"),
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
            remove_if_created={name: NO_VM[name] for name in _VM_SETTABLE},
        ),
    )
)
class OwnVm(State):
    """A VM that winhost creates, by its name: generation 2, with its `VmDisk` and one network adapter.

    It has static memory, no checkpoints and no nested virtualization, and is turned off when the host stops. COM1 is
    the pipe \\\\.\\pipe\\<id>, for the boot log. To be removed, it must be off, without assigned devices.

    made: null if creating it was interrupted, or if the VM or its mark was removed since; ours: it has the id that the
    host recorded, and winhost's mark in its notes; switch: the GUID of its switch; mac: static; secure_boot: on, with
    the template for Linux (Microsoft's UEFI certificate authority), which is set by id and read back.
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
# The scripts contain the same pattern.
HOST_KEY = r"ssh-ed25519 [A-Za-z0-9+/]{68}"
NO_SEED: Mapping[str, Json] = MappingProxyType(
    {"stage": NONE, "user": None, "address": None, "template": None, "host_keys": [], "vm": None, "neighbours": []}
)
_SEED_SETTABLE = ("stage", "user", "address", "template", "host_keys")


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
            remove_if_created={name: NO_SEED[name] for name in _SEED_SETTABLE},
            never="a guest reads its seed on its first start only, and has a key of its own since",
        ),
    )
)
class VmSeed(State):
    """The CD with which cloud-init sets up the Linux of a new VM on its first start.

    - stage: none; attached; retired, if the CD was removed and its record kept; null if a change was interrupted.
    - template: the planned CD without the VM's id and without keys, which the host fills in when it attaches the CD.
    - host_keys: the SSH host keys of the guest: the one on the CD, whose private key exists nowhere else, then those
      that the guest has generated since.
    - user, address: the user who may log on, and the guest's address, null for DHCP.
    - vm: the VM's id; neighbours: addresses at which the host has seen the VM's network adapter.

    Only the system, administrators and the VM can read the CD.
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
_WAS_NOT_MADE = Condition("made", of="before", one_of=(False,))


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
        timeout=lambda change: 3600,  # an image of some GB is copied, and then read again
        dependents=(DependentRule("OwnVm", on=("name",), unless=("made", (False,))),),
        undo=UndoRule(
            keep_if=(
                KeepIf(
                    (_WAS_NOT_MADE, Condition("made", one_of=(True,)), Condition("image", differs_from=("after",))),
                    "it is not the disk that winhost made any more",
                ),
            ),
            remove_if_created={name: NO_DISK[name] for name in ("made", "image", "size")},
        ),
    )
)
class VmDisk(State):
    """A disk that winhost creates for a VM of this name: a copy of a staged VHDX, enlarged to the desired size.

    Its path is <the host's folder of virtual disks>\\winhost\\<name>\\disk.vhdx. An existing folder with content is
    never overwritten. image: SHA-256 of the staged file; size: bytes that the guest sees; file_size: bytes of the file,
    which grows as the guest writes; vm: the VM to which it is attached; made: null if creating it was interrupted.
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
_WAS_RUNNING = Condition("state", of="before", one_of=(RUNNING,))


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
        risks=(ConsentRule("vm-stop", (_WAS_RUNNING,)),),
        may_need=(ConsentRule("vm-turn-off", (_WAS_RUNNING,)),),
    )
)
class VmPower(State):
    """state: off, running, saved or paused. Stopping shuts the guest down; turning off needs its own consent."""

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
        sets={"stop": one_of("turn-off", "save", "shut-down"), "start": one_of("nothing", "start-if-running", "start")},
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


def assignment_to(vm: str) -> str:
    """Return the assignment of a device to the VM with this GUID."""
    return ASSIGNED + vm


def assigned_vm(assignment: str) -> str | None:
    """Return the GUID of the VM to which a device is assigned, or None."""
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
        # A device that is assigned to another VM by now stays there. Any other assignment is restored.
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
    """A device that can be assigned to a VM, and any other device that a VM has.

    assignment: host-enabled, host-disabled, dismounted or assigned:<VM GUID>. `set` takes all intermediate steps in
    either direction. present: Windows lists a device at this location; a VM with a device that is not present does not
    start.
    """

    assignment: str
    present: bool = NOT_REPORTED
