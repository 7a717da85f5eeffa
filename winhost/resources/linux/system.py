"""Kernel settings and modules, systemd units, firewall ports and GPUs of a Linux."""

from winhost.core.rules import Condition, ConsentRule, UndoRule
from winhost.model.units import Bytes
from winhost.resources.base import NOT_REPORTED, State, resource
from winhost.resources.shared import NETWORK_CONSENT, NOTHING_TO_UNDO, PENDING_WORK_DONE, LinuxType
from winhost.resources.values import CLEARED, FLAG, ORDERED_NETWORKS, Value, or_nothing, text

_TOKENS = text(r"[!-~]+( [!-~]+)*", "words with one space between them")


@resource(
    LinuxType(
        "Sysctl",
        title="settings of the kernel",
        order=35,
        key=("name",),
        sets={"live": _TOKENS, "at_boot": or_nothing(_TOKENS)},
        asks=("network",),
        risks=tuple(
            ConsentRule("network", (Condition("name", of="key", starts_with=each),))
            for each in ("net.ipv4.", "net.ipv6.", "net.netfilter.", "net.bridge.")
        ),
    )
)
class Sysctl(State):
    """A kernel parameter. live: its current value, with single spaces; at_boot: the value in winhost's own file
    (`/etc/sysctl.d/99-winhost-NAME.conf`), null if there is none. Network parameters may interrupt SSH access.
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
        # Whether the module is loaded, so that it needs a restart, is known only after the change.
        risks=tuple(
            ConsentRule("restart", (Condition(each, of="desired"),))
            for each in ("options", "blacklisted", "restart_due")
        ),
        undo=UndoRule(instead=PENDING_WORK_DONE),
    )
)
class KernelModule(State):
    """A kernel module.

    options, blacklisted, at_boot: as in winhost's own files, `/etc/modprobe.d/winhost-MODULE.conf` and
    `/etc/modules-load.d/winhost-MODULE.conf`; other files are left alone. initramfs_due: the initramfs does not contain
    these yet, because building it was interrupted; a desired state has it false. loaded: the module is loaded.
    restart_due: it is loaded although blacklisted, or with other options than after a restart; a desired state may have
    it false.
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
        # A unit that no longer exists was removed with its file or package.
        undo=UndoRule(gone_if=((Condition("enabled", unavailable=True), Condition("active", none_of=(True,))),)),
    )
)
class SystemdUnit(State):
    """A systemd unit. loaded: systemd has loaded it; enabled: enabled, disabled, masked, or a state such as static,
    which cannot be set; active: it runs, or has run and remains active; failed: it ended with an error. The state of a
    unit that does not exist yet is unavailable until the file or package that provides it is installed.
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
    """A TCP port that only some networks, and the machine itself, can reach.

    allowed: those networks, empty for none; null if winhost has no rule that is effective both now and after a restart;
    by: ufw if it is enabled, otherwise nftables (the table `inet winhost`); others: nftables chains with the policy
    drop, which may block this port as well. Rules of others are not changed, and a port of sshd is never limited.
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
    """The GPUs that NVIDIA's driver shows.

    count: according to `nvidia-smi -L`, 0 without a driver; loaded: NVIDIA's kernel module is loaded, according to
    `/proc/driver/nvidia/version`; unplaced: the number of their BARs without an address. Setting these waits until all
    have the desired values, and changes nothing.

    needed_high, needed_low: bytes of MMIO space that a GPU of a Hyper-V VM requested in vain, according to the kernel
    log (`hv_pci …: Need 0x… of high MMIO space`); null if it logged nothing.
    """

    count: int
    needed_high: Bytes | None
    needed_low: Bytes | None
    loaded: bool = NOT_REPORTED
    unplaced: int = NOT_REPORTED
