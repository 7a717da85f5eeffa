"""The key by which a Linux is known over SSH."""

from winhost.core.rules import Condition, UndoRule
from winhost.resources.base import ResourceType, State, resource
from winhost.resources.shared import ACCESS, DISTROS
from winhost.resources.values import FLAG, text


@resource(
    ResourceType(
        "SshHostKey",
        title="the SSH host key of Linux",
        order=31,
        sets={
            "prepared": FLAG,
            "key": text(r"ssh-ed25519 [A-Za-z0-9+/]{68}", "an ed25519 key, without a name"),
        },
        # Whoever is to know the machine by the new key knows it before it is shown.
        after=("VmSeed", "LinuxFile"),
        requires=ACCESS,
        within=DISTROS,
        # The old one was on a CD. What replaced it stays with the machine that made it.
        undo=UndoRule(gone_if=((Condition(),),)),
    )
)
class SshHostKey(State):
    """The ed25519 key of sshd, and the one that replaces it. key: public; null where there is none. next: public, of a
    pair that the machine has made and does not use yet; prepared: there is one. A key that is set must be the next one.
    """

    key: str | None
    next: str | None
    prepared: bool
