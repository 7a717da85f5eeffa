"""Accounts of Windows that winhost makes, their rights, and what runs in their sessions."""

import json
from collections.abc import Mapping

from winhost.core.answers import Json
from winhost.core.rules import Condition, DependentRule, KeepIf, NotRestored, UndoRule
from winhost.resources.base import ResourceType, State, resource
from winhost.resources.shared import CONFIG_OF_ACCOUNT, DISTROS_OF_ACCOUNT, TASKS_OF_ACCOUNT
from winhost.resources.values import FLAG, SHA256_OR_NOTHING, Value, one_of, or_nothing, secret_reference, text


@resource(
    ResourceType(
        "LocalAccount",
        title="local accounts",
        order=280,
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
        dependents=(
            DISTROS_OF_ACCOUNT,
            TASKS_OF_ACCOUNT,
            DependentRule("AccountRight", on=("account",), unless=("granted", (False,))),
            CONFIG_OF_ACCOUNT,
        ),
        # An account goes only if it is still the one that was made; for its distros see `DISTROS_OF_ACCOUNT`.
        undo=UndoRule(
            keep_if=(
                KeepIf(
                    (
                        Condition("there", of="before", one_of=(False,)),
                        Condition("there", one_of=(True,)),
                        Condition("ours", one_of=(False,)),
                    ),
                    "it is not the account that winhost made any more",
                ),
            ),
            remove_if_created={"there": False},
        ),
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
        title="rights of accounts",
        order=290,
        key=("account", "right"),
        sets={"granted": FLAG},
        after=("LocalAccount",),
        absent={"granted": False},
        dependents=(DISTROS_OF_ACCOUNT, TASKS_OF_ACCOUNT),
    )
)
class AccountRight(State):
    """A right of the local security policy, granted to an account by name, or by SID where it is no local one.

    Read: SeBatchLogonRight, SeServiceLogonRight, SeDenyBatchLogonRight; the first two can be granted and taken back. A
    local account can be asked for by its SID, too; it is listed by its name, and a playbook has to call it so. A group
    that has a right is listed by its SID. A group policy of the domain that assigns the right overrides what is set
    here.
    """

    granted: bool


NO_TASKS: Mapping[str, Json] = {
    "jobs": "absent",
    "keep_alive": "absent",
    "distro": None,
    "program": None,
    "logon": None,
}
REFUSED = "refused"  # a logon: the password that the tasks have is not the account's any more
STALE = "stale"  # jobs, or a task: what it runs is gone, or of another winhost
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
        dependents=(DISTROS_OF_ACCOUNT, CONFIG_OF_ACCOUNT),
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


NO_WATCHER: Mapping[str, Json] = {"task": "absent", "settings": None, "key": None, "digest": None}
_NOT_KEPT = "the script that was there is not kept"
_KEY_NOT_KEPT = "the key that was there is not kept"


def _settings(value: Json) -> bool:
    """True if the text is as `watcher_settings` writes it."""
    try:
        return isinstance(value, str) and value.isascii() and watcher_settings(**json.loads(value)) == value
    except (ValueError, TypeError):
        return False


def watcher_settings(
    *, url: str, programs: tuple[str, ...], full_screen: bool, unlocked: bool, gpu_memory: int | None
) -> str:
    """The text of its settings.json. gpu_memory: in bytes."""
    said = {"url": url, "programs": [*programs], "full_screen": full_screen, "unlocked": unlocked}
    return json.dumps({**said, "gpu_memory": gpu_memory})


_KEPT = (KeepIf((Condition("digest", of="before", none_of=(None,)),), _KEY_NOT_KEPT),)


@resource(
    ResourceType(
        "YieldWatcher",
        title="watchers for somebody at the desktop",
        order=380,
        key=("account",),
        sets={
            "task": one_of("absent", "ready", "disabled"),
            "settings": or_nothing(Value("the settings of the watcher, as one line of JSON", _settings)),
            "key": or_nothing(secret_reference("a yield key of the gateway")),
            "digest": SHA256_OR_NOTHING,
        },
        absent=NO_WATCHER,
        credential="key",
        irreversible=(*_KEPT, KeepIf((Condition("task", of="before", one_of=(STALE,)),), _NOT_KEPT)),
        # It bears our name and stands where only ours stand: it goes back, whatever it was changed to since.
        undo=UndoRule(
            keep_if=_KEPT,
            unconditional=True,
            not_restored=(NotRestored("task", STALE, "it watches again"),),
        ),
    )
)
class YieldWatcher(State):
    """The scheduled task `watch-ACCOUNT` of a local account whose owner works at the desktop, and its files in
    %ProgramData%\\winhost\\watchers\\ACCOUNT, which only that account and administrators can read.

    task: starts with the logon of the account, in its session, without elevation; stale, where its script is gone or
    another winhost's. settings: what it looks for, and the gateway's address. key: the secret reference by which
    winhost found the yield key that it wrote there, never the key; digest: the SHA-256 of the key that is there.
    """

    task: str
    settings: str | None
    key: str | None
    digest: str | None
