"""Declarations that several resource types share: dependents, containers, consents and undo rules."""

from collections.abc import Mapping
from functools import partial

from winhost.core.answers import Json
from winhost.core.rules import Condition, ConsentRule, DependentRule, UndoRule
from winhost.resources.base import ResourceType

# Resources that must be set up before a Linux can be read: SSH access to a distro, and the seed of a new VM, which
# authorizes winhost's SSH key in the guest.
ACCESS = "WslAccess"
SEED = "VmSeed"
INSTALLER = "UbuntuInstaller"  # records the address and the SSH host key of a Linux that is installed for dual boot
RUNNING = "RunningSystem"  # with dual boot, the Linux can be read only while it runs
# What a step waits for if it needs facts that are read only by their key, such as a file of a Linux.
READING = "a new reading of the host"
NO_PROFILE: Mapping[str, Json] = {"unavailable": "AccountTasks"}

# ---- what depends on an instance

# The devices assigned to a VM depend on its MMIO windows, memory mode, checkpoints and automatic actions.
DEVICES = (DependentRule("AssignableDevice", at=("assignment", "assigned:{vm}"), lent=True),)
# Distros depend on the Windows feature and on WSL: without these they cannot start, and cannot be removed either.
DISTROS = DependentRule("WslDistro", disks=True)
# An account's distros depend on the account, its right, its tasks and its .wslconfig.
DISTROS_OF_ACCOUNT = DependentRule("WslDistro", on=("account",), disks=True)
TASKS_OF_ACCOUNT = DependentRule("AccountTasks", on=("account",), unless=("jobs", ("absent",)))
CONFIG_OF_ACCOUNT = DependentRule("WslConfig", on=("account",), unless=("text", (None, NO_PROFILE)))
# SSH access to distros depends on forwarded ports and the Hyper-V firewall. Rollback inside a distro uses it.
DISTRO_ACCESS = (DependentRule("WslAccess", unless=("active", (False,))),)
# Files, sources and packages that were added to a distro since, other than those of its image or its own packages.
DISTRO_CONTENTS = (
    DependentRule("LinuxFile", unless=("text", (None,)), since=()),
    DependentRule("AptSource", unless=("present", (False,)), since=()),
    DependentRule("DebianPackage", unless=("version", (None,)), since=()),
)
# Units that were enabled since the run. Which files and packages a unit uses is not known, so any of them counts.
UNITS = DependentRule("SystemdUnit", at=("enabled", "enabled"), since=())
PACKAGES = DependentRule("DebianPackage", unless=("version", (None,)), since=())
SPEC = DependentRule("CdiSpec", unless=("present", (False,)), since=())

# ---- what contains an instance

WITHIN_DISTRO = DependentRule("WslDistro", on=("account", "distro"), disks=True)
LinuxType = partial(ResourceType, requires=ACCESS, within=DISTROS)
WITHIN_VM = DependentRule("OwnVm", unless=("made", (False,)))
WITHIN_PARTITION = DependentRule("OwnPartition", unless=("made", (False,)))

# ---- consents that a change asks for


# The change takes effect with a restart, or may require one when consent can no longer be requested.
RESTART_CONSENT = (ConsentRule("restart"),)
# The change may interrupt network connections.
NETWORK_CONSENT = (ConsentRule("network"),)
# A change of these files may lock winhost out. The machine undoes it by itself unless winhost connects again.
REMOTE_ACCESS_FILES = tuple(
    ConsentRule("network", (Condition("path", of="key", starts_with=folder),))
    for folder in ("/etc/ssh/", "/etc/sudoers.d/", "/etc/netplan/")
)
# With these settings the gateway serves plain HTTP: API keys and prompts can be read on the network.
PLAIN_HTTP = ConsentRule("network", (Condition("path", of="key", starts_with="/opt/winhost/gateway-plain-http-"),))
# k3s listens for other nodes on all addresses, and inserts its own rules before the machine's firewall rules.
K3S_UNIT = ConsentRule(
    "network", (Condition("path", of="key", starts_with="/usr/local/lib/systemd/system/winhost-k3s.service"),)
)
# The change takes effect when the VM of WSL starts again. A property that was null belongs to a new distro or VM, which
# need not be stopped.
STOPS_DISTROS = (ConsentRule("vm-stop", (Condition(of="before", none_of=(None,)),)),)

# ---- undoing

# The properties are restored together or not at all. If the account's profile was removed, there is nothing to restore.
UNDO_WHOLE = UndoRule(gone_if=((Condition(one_of=(NO_PROFILE,)),),), whole=True)
NOTHING_TO_UNDO = UndoRule(gone_if=((Condition(),),))  # `set` only waits for a state, and changes nothing
# Work that was pending, such as a restart, and is done by now is never made pending again.
PENDING_WORK_DONE: Mapping[str, tuple[Json, Json]] = dict.fromkeys(("initramfs_due", "restart_due"), (True, False))
