"""Keys that lead into a Linux."""

from winhost.core.rules import Condition, ConsentRule, UndoRule
from winhost.resources.base import ResourceType, State, resource
from winhost.resources.shared import ACCESS, DISTROS
from winhost.resources.values import FLAG, or_nothing, text


@resource(
    ResourceType(
        "SshKey",
        title="SSH keys in Linux",
        order=39,
        key=("user", "key"),
        sets={
            "present": FLAG,
            "options": or_nothing(text(r"[!-~]([ -~]*[!-~])?", "options, as in authorized_keys")),
            "comment": or_nothing(text(r"\S(.*\S)?", "one line")),
        },
        after=("LinuxUser",),
        requires=ACCESS,
        absent={"present": False, "options": None, "comment": None},
        within=DISTROS,
        asks=("network",),
        # The key that goes, or gets other options, may be winhost's own.
        risks=(
            ConsentRule("network", (Condition("present", of="before", one_of=(True,)),)),
            ConsentRule("network", unless=(Condition("present", of="before", one_of=(True, False)),)),
        ),
        undo=UndoRule(remove_if_created={"present": False}, unless_changed=True, whole=True),
    )
)
class SshKey(State):
    """A line of a user's `~/.ssh/authorized_keys`, by its key without options and comment (`ssh-ed25519 AAAA...`).

    The other lines stay as they are, byte for byte. A file that sshd would not read is refused: not this one, or one
    that others may write to (`StrictModes`).
    """

    present: bool
    options: str | None
    comment: str | None
