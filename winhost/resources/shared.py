"""The declarations that several resources share: dependents, the consents that a change asks for, and undo."""

from collections.abc import Mapping
from functools import partial

from winhost.core.answers import Json
from winhost.core.rules import Condition, ConsentRule, DependentRule, UndoRule
from winhost.resources.base import ResourceType

ACCESS = "WslAccess"  # until SSH access is up, nothing in the distro can be read
SEED = "VmSeed"  # until it has told the guest of a new VM who may log on, nothing in that can be read either
BESIDE = "UbuntuInstaller"  # it keeps how the Linux that takes turns with Windows is known
RUNNING = "RunningSystem"  # which of the two runs: what is in that Linux can be read only while it does
READING = "a new reading of the host"  # a Linux tells what it does not list only when it is asked by name
NO_PROFILE: Mapping[str, Json] = {"unavailable": "AccountTasks"}

# ---- what depends on an instance

# What the VM has now: its windows, its memory and its automatic actions are as they are for them.
DEVICES = (DependentRule("AssignableDevice", at=("assignment", "assigned:{vm}"), lent=True),)
# Without the feature no VM of theirs starts, and without WSL nobody can take them back.
DISTROS = DependentRule("WslDistro", disks=True)
# Without the account, its right, its tasks or its configuration they could not run as they do.
DISTROS_OF = DependentRule("WslDistro", on=("account",), disks=True)
TASKS_OF = DependentRule("AccountTasks", on=("account",), unless=("jobs", ("absent",)))
CONFIG_OF = DependentRule("WslConfig", on=("account",), unless=("text", (None, NO_PROFILE)))
# Who goes back in a distro goes in by them.
WAYS_IN = (DependentRule("WslAccess", unless=("active", (False,))),)
# What came into a distro since, as far as winhost knows it: not what was in its image, or came with its own packages.
INSIDE = (
    DependentRule("LinuxFile", unless=("text", (None,)), since=()),
    DependentRule("AptSource", unless=("present", (False,)), since=()),
    DependentRule("DebianPackage", unless=("version", (None,)), since=()),
)
# Units enabled since the run: which files and packages a unit runs with is not known.
UNITS = DependentRule("SystemdUnit", at=("enabled", "enabled"), since=())
PACKAGES = DependentRule("DebianPackage", unless=("version", (None,)), since=())
SPEC = DependentRule("CdiSpec", unless=("present", (False,)), since=())

# ---- what an instance lies in

WITHIN_DISTRO = DependentRule("WslDistro", on=("account", "distro"), disks=True)
LinuxType = partial(ResourceType, requires=ACCESS, within=DISTROS)
WITHIN_VM = DependentRule("OwnVm", unless=("made", (False,)))
WITHIN_PARTITION = DependentRule("OwnPartition", unless=("made", (False,)))

# ---- consents that a change asks for


# It takes effect with a restart, or may come to ask for one when it is too late to ask anybody.
RESTART = (ConsentRule("restart"),)
# Whatever it changes, somebody may be on the other end of it.
CUTS_THE_WIRE = (ConsentRule("network"),)
# The machine undoes it by itself unless somebody gets in again: until then nobody knows.
ON_FILES_OF_SSH = tuple(
    ConsentRule("network", (Condition("path", of="key", starts_with=folder),))
    for folder in ("/etc/ssh/", "/etc/sudoers.d/", "/etc/netplan/")
)
# API keys and prompts can be read on their way: what the gateway's settings in such a folder agree to.
PLAIN_HTTP = ConsentRule("network", (Condition("path", of="key", starts_with="/opt/winhost/gateway-plain-http-"),))
# k3s listens for other nodes on all addresses, and puts rules of its own before those of the machine.
OF_A_NODE = ConsentRule(
    "network", (Condition("path", of="key", starts_with="/usr/local/lib/systemd/system/winhost-k3s.service"),)
)
# It takes effect with the next start. What has never been set is that of a distro, or of a VM, just made.
ENDS_DISTROS = (ConsentRule("vm-stop", (Condition(of="before", none_of=(None,)),)),)

# ---- undoing

# All of it, or nothing: its properties are of one piece. Nothing where it went with what it was in.
WHOLE = UndoRule(gone_if=((Condition(one_of=(NO_PROFILE,)),),), whole=True)
ONLY_AWAITED = UndoRule(gone_if=((Condition(),),))  # setting it waits, and changes nothing
# What a Linux still had to do, such as a restart, is done: nothing is put back to having to do it.
DUE_NO_MORE: Mapping[str, tuple[Json, Json]] = dict.fromkeys(("initramfs_due", "restart_due"), (True, False))
