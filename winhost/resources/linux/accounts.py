"""Users, groups and SSH keys of a Linux."""

from winhost.core.answers import Json
from winhost.core.rules import Condition, ConsentRule, DependentRule, KeepIf, UndoRule
from winhost.resources.base import State, resource
from winhost.resources.shared import LinuxType
from winhost.resources.values import FLAG, Value, or_nothing, text


def _are_sorted_names(value: Json) -> bool:
    texts = isinstance(value, list | tuple) and all(isinstance(each, str) for each in value)
    return texts and list(value) == sorted(set(value))


def _keep_if_replaced(what: str) -> KeepIf:
    was_not = Condition("there", of="before", one_of=(False,))
    is_theirs = (Condition("there", one_of=(True,)), Condition("ours", one_of=(False,)))
    return KeepIf((was_not, *is_theirs), f"it is not the {what} that winhost made any more")


@resource(
    LinuxType(
        "LinuxGroup",
        title="groups in Linux",
        order=37,
        key=("group",),
        sets={"there": FLAG, "system": FLAG},
        absent={"there": False, "system": False, "ours": False, "gid": None, "members": []},
        undo=UndoRule(
            keep_if=(
                _keep_if_replaced("group"),
                KeepIf(
                    (Condition("members", gained=True), Condition("there", of="before", one_of=(False,))),
                    "{members} belongs to it now",
                ),
            ),
            remove_if_created={"there": False, "system": False},
        ),
    )
)
class LinuxGroup(State):
    """A local group. system: its number is, or will be, below 1000; ours: winhost created it; members: users, including
    those whose primary group it is. Membership is set as a property of `LinuxUser`.
    """

    there: bool
    system: bool
    ours: bool
    gid: int | None
    members: tuple[str, ...]


_GROUP_NAMES = Value("a list of groups, each once and in order", _are_sorted_names)


@resource(
    LinuxType(
        "LinuxUser",
        title="users in Linux",
        order=38,
        key=("user",),
        sets={
            "there": FLAG,
            "system": FLAG,
            "home": or_nothing(text(r"/[^:\0\n]*", "a folder")),
            "shell": or_nothing(text(r"/[^:\0\n]+", "a program")),
            "groups": or_nothing(_GROUP_NAMES),
            "expires": or_nothing(text(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", "a day, as 2026-12-31")),
        },
        after=("LinuxGroup", "AptPackages", "DebianPackage"),
        absent={
            "there": False,
            "system": False,
            "ours": False,
            **dict.fromkeys(("uid", "home", "shell", "groups", "expires")),
        },
        asks=("network",),
        # An existing user may be the one as whom winhost logs on. One that winhost creates or removes is not.
        risks=(ConsentRule("network", unless=(Condition("there", of="before", one_of=(True, False)),)),),
        dependents=(DependentRule("SshKey", on=("user",), unless=("present", (False,))),),
        undo=UndoRule(
            keep_if=(_keep_if_replaced("user"),),
            remove_if_created={
                "there": False,
                "system": False,
                **dict.fromkeys(("home", "shell", "groups", "expires")),
            },
            unless_changed=True,
            whole=True,
        ),
    )
)
class LinuxUser(State):
    """A local user, who gets no password. If there is no such user, the other properties are null.

    system: the number is below 1000, and no home is created; ours: winhost created the user; groups: supplementary
    groups, without the primary group, which has the user's name; expires: the first day on which the user cannot log
    on, as for `usermod --expiredate`.
    """

    there: bool
    system: bool
    ours: bool
    uid: int | None
    home: str | None
    shell: str | None
    groups: tuple[str, ...] | None
    expires: str | None


@resource(
    LinuxType(
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
        absent={"present": False, "options": None, "comment": None},
        asks=("network",),
        # A key that is removed or gets other options may be winhost's own.
        risks=(
            ConsentRule("network", (Condition("present", of="before", one_of=(True,)),)),
            ConsentRule("network", unless=(Condition("present", of="before", one_of=(True, False)),)),
        ),
        undo=UndoRule(remove_if_created={"present": False}, unless_changed=True, whole=True),
    )
)
class SshKey(State):
    """A line of a user's `~/.ssh/authorized_keys`, by its key without options and comment (`ssh-ed25519 AAAA...`).

    Other lines are not changed. A change is refused if sshd would not read the file, because it reads another one or
    because others may write to this one (`StrictModes`).
    """

    present: bool
    options: str | None
    comment: str | None


@resource(
    LinuxType(
        "SshHostKey",
        title="the SSH host key of Linux",
        order=31,
        sets={"prepared": FLAG, "key": text(r"ssh-ed25519 [A-Za-z0-9+/]{68}", "an ed25519 key, without a name")},
        # The new host key is recorded before sshd presents it.
        after=("VmSeed", "LinuxFile"),
        # The old key was on a CD, so a replaced key is never restored.
        undo=UndoRule(gone_if=((Condition(),),)),
    )
)
class SshHostKey(State):
    """The ed25519 host key of sshd, and the prepared key that will replace it.

    key: the public key, null if there is none; next: the public key of a pair that the machine has generated but does
    not use yet; prepared: there is such a pair. `key` can only be set to `next`.
    """

    key: str | None
    next: str | None
    prepared: bool
