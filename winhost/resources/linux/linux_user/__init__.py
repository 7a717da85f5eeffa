"""Users of a Linux."""

from winhost.core.answers import Json
from winhost.core.rules import Condition, ConsentRule, KeepIf, Rests, UndoRule
from winhost.resources.base import ResourceType, State, resource
from winhost.resources.shared import ACCESS, DISTROS
from winhost.resources.values import FLAG, Value, or_nothing, text


def _sorted_names(value: Json) -> bool:
    texts = isinstance(value, list | tuple) and all(isinstance(each, str) for each in value)
    return texts and list(value) == sorted(set(value))


_NAMES = Value("a list of groups, each once and in order", _sorted_names)


@resource(
    ResourceType(
        "LinuxUser",
        title="users in Linux",
        order=38,
        key=("user",),
        sets={
            "there": FLAG,
            "system": FLAG,
            "home": or_nothing(text(r"/[^:\0\n]*", "a folder")),
            "shell": or_nothing(text(r"/[^:\0\n]+", "a program")),
            "groups": or_nothing(_NAMES),
            "expires": or_nothing(text(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", "a day, as 2026-12-31")),
        },
        after=("LinuxGroup", "AptPackages", "DebianPackage"),
        requires=ACCESS,
        absent={
            "there": False,
            "system": False,
            "ours": False,
            **dict.fromkeys(("uid", "home", "shell", "groups", "expires")),
        },
        within=DISTROS,
        asks=("network",),
        # Who is there may be who winhost logs on as; who is made or taken away is not.
        risks=(ConsentRule("network", unless=(Condition("there", of="before", one_of=(True, False)),)),),
        rests=(Rests("SshKey", on=("user",), unless=("present", (False,))),),
        undo=UndoRule(
            keep_if=(
                KeepIf(
                    (
                        Condition("there", of="before", one_of=(False,)),
                        Condition("there", one_of=(True,)),
                        Condition("ours", one_of=(False,)),
                    ),
                    "it is not the user that winhost made any more",
                ),
            ),
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
    """A user of the machine's own files, who gets no password. Where there is none, what it would have is null.

    system: a number below 1000 and no home made; ours: winhost made it; groups: those besides its first, which has its
    name; expires: the day from which on it cannot log on, as `usermod --expiredate` has it.
    """

    there: bool
    system: bool
    ours: bool
    uid: int | None
    home: str | None
    shell: str | None
    groups: tuple[str, ...] | None
    expires: str | None
