"""The scheduled tasks that run as the account that owns the distro."""

from collections.abc import Mapping

from winhost.core.answers import Json
from winhost.core.rules import Condition, KeepIf, NotRestored, UndoRule
from winhost.resources.base import ResourceType, State, resource
from winhost.resources.shared import CONFIG_OF, DISTROS_OF
from winhost.resources.values import one_of, or_nothing, text

NO_TASKS: Mapping[str, Json] = {
    "jobs": "absent",
    "keep_alive": "absent",
    "distro": None,
    "program": None,
    "logon": None,
}
REFUSED = "refused"  # a logon: the password that the tasks have is not the account's any more
STALE = "stale"  # jobs: what the task runs is gone, or of another winhost
# What rollback cannot restore: the value, what rollback reports, and what the plan warns of.
_MENDED = {
    "logon": (REFUSED, "they log on again", "nobody knows the password that the account had"),
    "jobs": (STALE, "they run jobs again", "the script that was there is not kept"),
}
_DISTRO = text(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", "the name of a distro: letters, digits, dots and dashes")


@resource(
    ResourceType(
        "AccountTasks",
        title="the task that runs WSL",
        order=300,
        key=("account",),
        sets={
            "jobs": one_of("absent", "ready", "disabled"),
            "keep_alive": one_of("absent", "ready", "disabled"),
            "distro": or_nothing(_DISTRO),
            "logon": or_nothing(one_of("password", "s4u")),
        },
        after=("LocalAccount", "AccountRight", "Wsl"),
        absent=NO_TASKS,
        dependents=(DISTROS_OF, CONFIG_OF),
        irreversible=tuple(
            KeepIf((Condition(name, of="before", one_of=(broken,)),), why) for name, (broken, _, why) in _MENDED.items()
        ),
        # What bears our name and stands where only ours stand goes back, whatever it was changed to since. But nobody
        # can give an account a password back that nobody here knew, or a script that is not kept.
        undo=UndoRule(
            unconditional=True,
            not_restored=tuple(NotRestored(name, broken, reason) for name, (broken, reason, _) in _MENDED.items()),
        ),
    )
)
class AccountTasks(State):
    """The scheduled tasks that run as the account, in the folder `winhost`.

    jobs: runs wsl.exe for winhost, one job at a time; stale, where its script is gone or another winhost's. keep_alive:
    holds `distro` from the start of Windows on, by `program`; whether it does so now is a property of WslDistro. logon:
    password, a secret created again whenever the tasks are; or s4u, without one: whether WSL starts like that is
    unverified; refused, where somebody gave the account another password. What is set, and what is read, runs a job
    that does nothing: its first logon makes the account's profile.
    """

    jobs: str
    keep_alive: str
    distro: str | None
    program: str | None
    logon: str | None
