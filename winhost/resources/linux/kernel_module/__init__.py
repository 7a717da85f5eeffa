"""Modules of the kernel: their options, and whether they are loaded."""

from winhost.core.rules import Condition, ConsentRule, UndoRule
from winhost.resources.base import ResourceType, State, resource
from winhost.resources.shared import ACCESS, DISTROS, DUE_NO_MORE
from winhost.resources.values import DONE, FLAG, or_nothing, text


@resource(
    ResourceType(
        "KernelModule",
        title="modules of the kernel",
        order=36,
        key=("module",),
        sets={
            "options": or_nothing(text(r"[a-zA-Z0-9_]+=[!-~]+( [a-zA-Z0-9_]+=[!-~]+)*", "options, as NAME=VALUE")),
            "blacklisted": FLAG,
            "at_boot": FLAG,
            "initramfs_due": DONE,
            "restart_due": DONE,
        },
        requires=ACCESS,
        restarts=True,
        asks=("restart",),
        # Whether the module runs by then, and so takes it only then, is known once it is done.
        risks=tuple(
            ConsentRule("restart", (Condition(each, of="desired"),))
            for each in ("options", "blacklisted", "restart_due")
        ),
        within=DISTROS,
        undo=UndoRule(instead=DUE_NO_MORE),
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
