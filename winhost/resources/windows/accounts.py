"""The Windows account that owns the Linux distro: itself, its rights, its tasks, and its configuration of WSL."""

from collections.abc import Mapping

from winhost.model.facts import Json
from winhost.resources.base import Change, Keep, ResourceType, Rests, State, Undo, resource, undo_property_by_property
from winhost.resources.values import FLAG, Value, one_of, text

NO_TASKS: Mapping[str, Json] = {
    "jobs": "absent",
    "keep_alive": "absent",
    "distro": None,
    "program": None,
    "logon": None,
}
REFUSED = "refused"  # a logon: the password that the tasks have is not the account's any more
STALE = "stale"  # jobs: what the task runs is gone, or of another winhost
NO_PROFILE: Mapping[str, Json] = {"unavailable": "AccountTasks"}
# What does not go back to how it was: what rollback says of it, and what the plan.
_MENDED = {
    "logon": (REFUSED, "they log on again", "nobody knows the password that the account had"),
    "jobs": (STALE, "they run jobs again", "the script that was there is not kept"),
}
_DISTRO = text(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", "the name of a distro: letters, digits, dots and dashes")


def or_nothing(value: Value) -> Value:
    """The same, or null."""
    return Value(f"{value.says}, or nothing", lambda given: given is None or value.fits(given))


# Without the account, its right, its tasks or its configuration they could not run as they do.
DISTROS_OF = Rests("WslDistro", on=("account",), disks=True)
_TASKS_OF = Rests("AccountTasks", on=("account",), unless=("jobs", ("absent",)))
_CONFIG_OF = Rests("WslConfig", on=("account",), unless=("text", (None, NO_PROFILE)))


def undo_account(before: Mapping[str, Json], after: Mapping[str, Json], now: Mapping[str, Json]) -> Undo:
    """An account goes only if it is still the one that was made; for its distros see `DISTROS_OF`."""
    if before.get("there") is not False or not now["there"]:
        return undo_property_by_property(before, after, now)
    if not now["ours"]:
        return Keep("it is not the account that winhost made any more")
    return {"there": False}


def undo_tasks(before: Mapping[str, Json], after: Mapping[str, Json], now: Mapping[str, Json]) -> Undo:
    """What bears our name and stands where only ours stand goes back, whatever it was changed to since.

    But nobody can give an account a password back that nobody here knew, or a script that is not kept.
    """
    undone = {name: value for name, value in before.items() if now[name] != value}
    mended = [name for name, (broken, _, _) in _MENDED.items() if undone.get(name) == broken]
    if not mended:
        return undone
    rest = {name: value for name, value in undone.items() if name not in mended}
    return Keep(" and ".join(_MENDED[name][1] for name in mended), rest)


def mended_for_good(change: Change) -> str | None:
    """Why tasks that could not work do not go back to that."""
    why = [why for name, (broken, _, why) in _MENDED.items() if change.before.get(name) == broken]
    return ", and ".join(why) or None


def undo_whole(before: Mapping[str, Json], after: Mapping[str, Json], now: Mapping[str, Json]) -> Undo:
    """All of it, or nothing: its properties are of one piece. Nothing where it went with what it was in."""
    if NO_PROFILE in now.values():
        return {}
    undone = undo_property_by_property(before, after, now)
    return Keep(undone.reason) if isinstance(undone, Keep) else undone


@resource(
    ResourceType(
        "LocalAccount",
        key=("account",),
        sets={"there": FLAG, "administrator": FLAG},
        absent={
            "there": False,
            "sid": None,
            "enabled": False,
            "password_expires": False,
            "administrator": False,
            "ours": False,
            "profile": None,
            "sessions": None,
            "distros": None,
        },
        rests=(
            DISTROS_OF,
            _TASKS_OF,
            Rests("AccountRight", on=("account",), unless=("granted", (False,))),
            _CONFIG_OF,
        ),
        undo=undo_account,
    )
)
class LocalAccount(State):
    """An account of this Windows. winhost makes one with a secret that nobody keeps, and removes only what it made.

    ours: made by winhost, by the mark in its description; profile: the folder that its first logon made; sessions: of
    people who are logged on with it now; distros: disks of WSL in the profile, or the folders, of one of ours.
    A domain controller has no such accounts.
    """

    there: bool
    sid: str | None
    enabled: bool
    password_expires: bool
    administrator: bool
    ours: bool
    profile: str | None
    sessions: int | None
    distros: int | None


@resource(
    ResourceType(
        "AccountRight",
        key=("account", "right"),
        sets={"granted": FLAG},
        after=("LocalAccount",),
        absent={"granted": False},
        rests=(DISTROS_OF, _TASKS_OF),
    )
)
class AccountRight(State):
    """A right of the local security policy, granted to an account by name, or by SID where it is no local one.

    Read: SeBatchLogonRight, SeServiceLogonRight, SeDenyBatchLogonRight; the first two can be granted and taken back.
    A local account can be asked for by its SID, too; it is listed by its name, and a playbook has to call it so.
    A group that has a right is listed by its SID. Where a policy of the domain says who has it, that wins in the end.
    """

    granted: bool


@resource(
    ResourceType(
        "AccountTasks",
        key=("account",),
        sets={
            "jobs": one_of("absent", "ready", "disabled"),
            "keep_alive": one_of("absent", "ready", "disabled"),
            "distro": or_nothing(_DISTRO),
            "logon": or_nothing(one_of("password", "s4u")),
        },
        after=("LocalAccount", "AccountRight", "Wsl"),
        absent=NO_TASKS,
        rests=(DISTROS_OF, _CONFIG_OF),
        irreversible=mended_for_good,
        undo=undo_tasks,
    )
)
class AccountTasks(State):
    """The scheduled tasks that run as the account, in the folder `winhost`.

    jobs: runs wsl.exe for winhost, one job at a time; stale, where its script is gone or another winhost's.
    keep_alive: holds `distro` from the start of Windows on, by `program`; whether it holds it now, WslDistro tells.
    logon: password, a secret made anew whenever the tasks are; or s4u, without one: whether WSL starts like that is
    unverified; refused, where somebody gave the account another password. What is set, and what is read, runs a job
    that does nothing: its first logon makes the account's profile.
    """

    jobs: str
    keep_alive: str
    distro: str | None
    program: str | None
    logon: str | None


@resource(
    ResourceType(
        "WslConfig",
        key=("account",),
        sets={
            "text": Value("text, or nothing", lambda value: value is None or isinstance(value, str)),
            "encoding": or_nothing(one_of("utf-8", "utf-8-bom", "utf-16le")),
        },
        after=("AccountTasks",),
        absent={"text": NO_PROFILE, "encoding": NO_PROFILE},
        rests=(DISTROS_OF,),
        undo=undo_whole,
    )
)
class WslConfig(State):
    """The file .wslconfig in an account's profile, whole and to the letter; both are null where there is none.

    WSL reads it when its VM starts. Bytes that it could not read either are unknown.
    """

    text: str | None
    encoding: str | None
