"""The kernel of a Linux, its units, its firewall and what its GPU driver shows."""

from winhost.core.rules import Condition, ConsentRule, UndoRule
from winhost.model.units import Bytes
from winhost.resources.base import NOT_REPORTED, State, resource
from winhost.resources.shared import NETWORK_CONSENT, NOTHING_TO_UNDO, PENDING_WORK_DONE, LinuxType
from winhost.resources.values import CLEARED, FLAG, ORDERED_NETWORKS, Value, or_nothing, text

_WORDS = text(r"[!-~]+( [!-~]+)*", "words with one space between them")


@resource(
    LinuxType(
        "Sysctl",
        title="settings of the kernel",
        order=35,
        key=("name",),
        sets={"live": _WORDS, "at_boot": or_nothing(_WORDS)},
        asks=("network",),
        risks=tuple(
            ConsentRule("network", (Condition("name", of="key", starts_with=each),))
            for each in ("net.ipv4.", "net.ipv6.", "net.netfilter.", "net.bridge.")
        ),
    )
)
class Sysctl(State):
    """live: what holds now, with one space for each gap; at_boot: what winhost's own file sets with each start
    (`/etc/sysctl.d/99-winhost-NAME.conf`), null where it sets nothing. What routes packets may cut SSH access.
    """

    live: str
    at_boot: str | None


@resource(
    LinuxType(
        "KernelModule",
        title="modules of the kernel",
        order=36,
        key=("module",),
        sets={
            "options": or_nothing(text(r"[a-zA-Z0-9_]+=[!-~]+( [a-zA-Z0-9_]+=[!-~]+)*", "options, as NAME=VALUE")),
            "blacklisted": FLAG,
            "at_boot": FLAG,
            "initramfs_due": CLEARED,
            "restart_due": CLEARED,
        },
        restarts=True,
        asks=("restart",),
        # Whether the module runs by then, and so takes it only then, is known once it is done.
        risks=tuple(
            ConsentRule("restart", (Condition(each, of="desired"),))
            for each in ("options", "blacklisted", "restart_due")
        ),
        undo=UndoRule(instead=PENDING_WORK_DONE),
    )
)
class KernelModule(State):
    """options, blacklisted, at_boot: what winhost's own files say, `/etc/modprobe.d/winhost-MODULE.conf` and
    `/etc/modules-load.d/winhost-MODULE.conf`; those of others are left alone. initramfs_due: the initramfs does not
    have that yet, because making it was broken off; a desired state has it false. loaded: it runs now.
    restart_due: it runs and is blacklisted, or runs with other options than it would after a restart; a desired state
    may have it false.
    """

    options: str | None
    blacklisted: bool
    at_boot: bool
    initramfs_due: bool
    loaded: bool
    restart_due: bool


@resource(
    LinuxType(
        "SystemdUnit",
        title="units in Linux",
        order=60,
        key=("unit",),
        sets={"enabled": text(r"[a-z-]+", "enabled, disabled, masked, or what it was"), "active": FLAG},
        after=("LinuxFile", "DebianPackage", "CdiSpec", "ReleaseFile", "SecretFile"),
        # A unit that is no longer there went with its file or package.
        undo=UndoRule(gone_if=((Condition("enabled", unavailable=True), Condition("active", none_of=(True,))),)),
    )
)
class SystemdUnit(State):
    """loaded: systemd knows it and could read it; enabled: enabled, disabled, masked, or static and the like, which
    cannot be chosen; active: it runs, or ran and stays; failed: it ended badly. How a unit begins that does not
    exist yet depends on the file or package that brings it; until then its state is unavailable.
    """

    loaded: bool
    enabled: str
    active: bool
    failed: bool


@resource(
    LinuxType(
        "FirewallPort",
        title="ports in the firewall of Linux",
        order=36,
        key=("port",),
        sets={"allowed": or_nothing(ORDERED_NETWORKS)},
        after=("AptPackages", "DebianPackage"),
        absent={"allowed": None, "by": None, "others": []},
        asks=("network",),
        risks=NETWORK_CONSENT,
    )
)
class FirewallPort(State):
    """A TCP port, which only these networks reach, and the machine itself; an empty list: nobody else.

    allowed: null where winhost has no rule that holds now and with each start; by: what has the rule, ufw where that
    is enabled, or else a table `inet winhost` of nftables; others: chains of nftables that drop what they do not
    accept, and so perhaps this port as well. Rules of others stay, and a port of sshd is never limited.
    """

    allowed: tuple[str, ...] | None
    by: str | None
    others: tuple[str, ...]


@resource(
    LinuxType(
        "ShownGpus",
        title="the GPUs that the driver in Linux shows",
        order=24,
        sets={
            "count": Value("a number of GPUs", lambda value: type(value) is int and 0 <= value <= 1024),
            "loaded": Value("true", lambda value: value is True),
            "unplaced": Value("0", lambda value: type(value) is int and value == 0),
        },
        after=("VmPower", "AptPackages"),
        undo=NOTHING_TO_UNDO,
    )
)
class ShownGpus(State):
    """count: by `nvidia-smi -L`, 0 without a driver; loaded: NVIDIA's kernel module runs, by
    `/proc/driver/nvidia/version`; unplaced: BARs of these GPUs to which the kernel gave no address. Setting them waits
    until all are so, and changes nothing.

    needed_high, needed_low: bytes of MMIO space that one of the GPUs of a Hyper-V VM did not get when the kernel
    started, as that says (`hv_pci …: Need 0x… of high MMIO space`); null where it does not.
    """

    count: int
    needed_high: Bytes | None
    needed_low: Bytes | None
    loaded: bool = NOT_REPORTED
    unplaced: int = NOT_REPORTED
